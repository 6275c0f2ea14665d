"""What the tests of several rivals share."""

import itertools

import numpy as np

from dish import metrics


def all_signs(n):
    """Every vector of {−1, 1}ⁿ, (2ⁿ, n)."""
    return np.array(list(itertools.product((-1.0, 1.0), repeat=n)))


def map_of(hasher, X, y, Xq, yq):
    """MAP of queries Xq against the database X, both encoded by a fitted hasher."""
    return metrics.mean_average_precision(hasher.transform(Xq), yq, hasher.transform(X), y)


def label_data(kind):
    """150 rows X that depend on their labels: (X, y, Y) with y classes or y = Y labels of 0 and 1."""
    rng = np.random.default_rng(3)
    if kind == "classes":
        y = rng.integers(0, 4, 150)
        Y = np.eye(4)[y]
    else:
        y = Y = (rng.random((150, 4)) < 0.4).astype(float)
    X = Y @ rng.standard_normal((4, 6)) + rng.standard_normal((150, 6))
    return X, y, Y
