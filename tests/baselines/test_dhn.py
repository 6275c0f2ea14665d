"""DHN: its loss against a loop over pairs, and retrieval."""

import itertools

import numpy as np
import pytest

from dish.baselines.dhn import DHN, pair_loss
from helpers.deep import batch, patches, score, tiny


@pytest.mark.parametrize("multilabel", [False, True])
def test_the_loss_equals_a_loop_over_pairs(multilabel):
    F, share, target = batch(multilabel)
    z = np.tanh(F.numpy())
    parts = {True: [], False: []}
    for i, j in itertools.permutations(range(7), 2):
        p = 1 / (1 + np.exp(-z[i] @ z[j] / 2))
        parts[bool(share[i, j])].append(-np.log(p if share[i, j] else 1 - p))
    expected = np.mean(parts[True]) + np.mean(parts[False]) + 0.1 * np.log(np.cosh(np.abs(z) - 1)).mean()
    assert float(pair_loss(F, target)) == pytest.approx(expected)


def test_codes_retrieve():
    (X, y), (Xq, yq) = patches(400, 0), patches(100, 1)
    assert score(tiny(DHN, epochs=15).fit(X, y), X, y, Xq, yq) > 0.8
