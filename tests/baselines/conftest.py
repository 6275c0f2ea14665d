"""Data shared by the tests of the rivals."""

import numpy as np
import pytest

from dish.baselines.agh import AGH


@pytest.fixture
def cloud():
    """200 rows of rank 5 with very different variances, in 7 features of which one is constant."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 5)) * [5, 3, 2, 1, 0.5] @ rng.standard_normal((5, 7))
    X[:, 2] = 4.0
    return X


@pytest.fixture(scope="session")
def graph():
    """90 rows, an AGH fitted on them, its Z, and the anchor graph A (n, n) as a dense matrix."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((90, 4)) + 2 * np.repeat(np.eye(3, 4), 30, axis=0)
    hasher = AGH(n_bits=7, n_anchors=12, n_neighbors=3).fit(X)
    Z = hasher._weights(X)
    dense = Z.toarray()
    return X, hasher, Z, dense @ np.diag(1 / dense.sum(0)) @ dense.T


@pytest.fixture(scope="session")
def groups():
    """Four well separated classes: 400 rows and 160 queries."""
    rng = np.random.default_rng(0)
    y = np.arange(560) % 4
    X = rng.standard_normal((560, 8)) + 6 * np.eye(4, 8)[y]
    return X[:400], y[:400], X[400:], y[400:]


@pytest.fixture
def label_sets():
    """120 rows in three groups; each row has the label of its group, and half of them a fourth label too."""
    rng = np.random.default_rng(3)
    y = np.repeat([0, 1, 2], 40)
    Y = np.hstack([np.eye(3, dtype=int)[y], rng.integers(2, size=(120, 1))])
    return rng.standard_normal((120, 6)) + 6 * Y @ np.eye(4, 6), Y
