"""Similarities of unlabelled rows, from their distances: Nyström landmarks, or an anchor graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dish.similarity.lowrank import LowRank


def nystroem(
    X: Any,
    n_landmarks: int = 300,
    gamma: float | None = None,
    similar_weight: float = 2.0,
    random_state: int | None = 0,
) -> LowRank:
    """S = w·K̃ − 1 with K̃ ≈ exp(−γ‖x − x′‖²) by Nyström landmarks.

    ``gamma=None`` means one over the mean squared distance between rows.
    """
    from sklearn.kernel_approximation import Nystroem

    X = np.asarray(X, np.float64)
    if gamma is None:
        gamma = 1.0 / max(2 * X.var(axis=0).sum(), 1e-12)  # E‖x−y‖² = 2·tr cov
    maker = Nystroem(gamma=gamma, n_components=min(n_landmarks, len(X)), random_state=random_state)
    Phi = maker.fit_transform(X)  # (n, landmarks), K̃ = Phi Phiᵀ
    one = np.ones((len(X), 1))
    return LowRank(np.hstack([similar_weight * Phi, one]), np.hstack([Phi, -one]))


def anchor_graph(
    X: Any,
    n_anchors: int = 300,
    n_neighbors: int = 3,
    similar_weight: float | None = None,
    random_state: int | None = 0,
) -> LowRank:
    """S = w·A/mean(diag A) − 1 with the anchor graph A = Z Λ⁻¹ Zᵀ, Λ = diag(Zᵀ1).

    Row i of Z has the weights of the ``n_neighbors`` k-means anchors nearest to row i (``anchor_weights``). A_ij > 0
    only if rows i and j have a common anchor. ``similar_weight=None`` means S = nA − 1, whose rows sum to zero.
    """
    from sklearn.cluster import MiniBatchKMeans

    X = np.asarray(X, np.float64)
    anchors = MiniBatchKMeans(min(n_anchors, len(X)), n_init=1, random_state=random_state).fit(X).cluster_centers_
    Z, _ = anchor_weights(X, anchors, n_neighbors)
    mass = np.asarray(Z.sum(axis=0)).ravel()
    Z_scaled = sp.csr_array(Z @ sp.diags_array(1.0 / np.maximum(mass, 1e-12)))  # Z Λ⁻¹
    scale = len(X) if similar_weight is None else similar_weight / float((Z_scaled * Z).sum(axis=1).mean())
    one = sp.csr_array(np.ones((len(X), 1)))
    return LowRank(sp.hstack([scale * Z_scaled, one]), sp.hstack([Z, -one]))


def anchor_weights(
    X: NDArray[Any], anchors: NDArray[Any], n_neighbors: int, width: float | None = None
) -> tuple[sp.csr_array, float]:
    """Z (n, m) of the anchor graph, and the width of its Gaussian weights.

    Z_ij ∝ exp(−‖x_i − a_j‖² / width) for the ``n_neighbors`` anchors nearest to row i, and 0 for the others. Each row
    sums to one. ``width=None`` means the mean squared distance to the farthest of these anchors.
    """
    from sklearn.neighbors import NearestNeighbors

    s = min(n_neighbors, len(anchors))
    index = np.empty((len(X), s), np.int64)
    squared = np.empty((len(X), s))
    near = NearestNeighbors(n_neighbors=s).fit(np.asarray(anchors, np.float64))
    for i in range(0, len(X), 2**13):  # float64, one block of X at a time
        rows = slice(i, i + 2**13)
        squared[rows], index[rows] = near.kneighbors(np.asarray(X[rows], np.float64))
    squared **= 2
    if width is None:
        width = max(float(squared[:, -1].mean()), 1e-12)
    weight = np.exp(-(squared - squared[:, :1]) / width)
    weight /= weight.sum(axis=1, keepdims=True)
    indptr = np.arange(0, index.size + 1, s)
    return sp.csr_array((weight.ravel(), index.ravel(), indptr), shape=(len(X), len(anchors))), width
