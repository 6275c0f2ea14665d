"""The recall of float neighbours against an enumeration of all orders of ties."""

from itertools import permutations

import numpy as np
import pytest

from dish import codes, metrics


def test_recall_is_the_share_of_true_neighbours_in_the_shortlist():
    rng = np.random.default_rng(0)
    X, Xq = rng.standard_normal((6, 3)), rng.standard_normal((4, 3))
    B, Q = codes.pack(X[:, :2]), codes.pack(Xq[:, :2])  # two bits: many ties
    D, k = codes.hamming(Q, B), 2
    expected = {1: [], 2: []}
    for i in range(4):
        true = set(np.argsort(((Xq[i] - X) ** 2).sum(1))[:k].tolist())
        orders = [o for o in permutations(range(6)) if (np.diff(D[i, list(o)]) >= 0).all()]
        for factor, values in expected.items():
            values.append(np.mean([len(true & set(o[: factor * k])) / k for o in orders]))
    found = metrics.neighbour_recall(Xq, Q, X, B, k=k, oversampling=(1, 2, 3, 50))
    for factor, values in expected.items():
        assert found[factor] == pytest.approx(np.mean(values))
    assert found[3] == found[50] == 1.0  # the shortlist is the whole database
    with pytest.raises(ValueError, match="at least 1"):
        metrics.neighbour_recall(Xq, Q, X, B, k=2, oversampling=(0.5,))
    with pytest.raises(ValueError, match="X has 5 rows for 6 codes"):
        metrics.neighbour_recall(Xq, Q, X[:5], B)
