"""Similarities of unlabelled rows."""

import numpy as np
import pytest

from dish.similarity import anchor_graph, nystroem
from helpers.similarities import RNG


def test_nystroem_with_all_rows_as_landmarks_is_the_kernel():
    X = RNG.standard_normal((15, 3))
    S = nystroem(X, n_landmarks=15, gamma=0.3).dense()
    squared = ((X[:, None] - X[None]) ** 2).sum(2)
    np.testing.assert_allclose(S, 2 * np.exp(-0.3 * squared) - 1, atol=1e-6)


def test_anchor_graph_connects_rows_of_one_cluster(blobs):
    X, y = blobs
    S = anchor_graph(X, n_anchors=12).dense()
    same = y[:, None] == y[None]
    np.testing.assert_allclose(S, S.T, atol=1e-10)
    np.testing.assert_allclose(S.sum(1), 0, atol=1e-9)  # rows of A sum to one, S = nA − 1
    assert (S[~same] == -1).mean() > 0.99  # no common anchor across clusters
    assert S[same].mean() > 1.5  # n A averages 3 within one of three clusters
    weighted = anchor_graph(X, n_anchors=12, similar_weight=2.0).dense()
    assert np.diag(weighted).mean() == pytest.approx(1.0)  # w·1 − 1
