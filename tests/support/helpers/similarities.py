"""One similarity of every kind, each with its dense matrix."""

import numpy as np
import scipy.sparse as sp

from dish.similarity import LowRank, from_labels

RNG = np.random.default_rng(0)
Y = (RNG.random((12, 4)) < 0.4).astype(float)


def share_one(Y, w=2.0):
    """w − 1 for rows with a common label, else −1."""
    return w * ((Y @ Y.T) > 0) - 1


def every_kind():
    """(name, similarity, its dense matrix)."""
    y = RNG.integers(0, 3, 12)
    onehot = np.eye(3)[y]
    P, R = RNG.standard_normal((12, 3)), RNG.standard_normal((12, 3))
    symmetric = P @ R.T
    jaccard_union = np.maximum(Y.sum(1)[:, None] + Y.sum(1)[None] - Y @ Y.T, 1)
    yield "classes", from_labels(y), 2 * onehot @ onehot.T - 1
    yield "balanced", from_labels(y, similar_weight=10), 10 * onehot @ onehot.T - 1
    yield "counts", from_labels(Y), 2 * Y @ Y.T - 1
    yield "counts_csr", from_labels(sp.csr_array(Y)), 2 * Y @ Y.T - 1
    yield "share_one", from_labels(Y, multilabel="share_one"), share_one(Y)
    yield "jaccard", from_labels(Y, multilabel="jaccard"), 2 * (Y @ Y.T) / jaccard_union - 1
    yield "low_rank", LowRank(P, P), P @ P.T
    yield "low_rank_csr", LowRank(sp.csr_array(Y), sp.csr_array(2 * Y)), 2 * Y @ Y.T
    yield "asymmetric", LowRank(P, R), (symmetric + symmetric.T) / 2


KINDS = {name: (S, dense) for name, S, dense in every_kind()}
