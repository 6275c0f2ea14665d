"""The anchor graph A = Z Λ⁻¹ Zᵀ of AGH and DGH, in which rows near the same anchors are similar."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dish.baselines._pca import Matrix
from dish.checks import check_integer
from dish.hasher import Hasher
from dish.io.rows import RowSource, as_tensor
from dish.kernel.features import choose_anchors
from dish.kernel.typical_rows import TypicalRows
from dish.lazy import torch
from dish.similarity import anchor_weights

ROWS_PER_ANCHOR = 100  # k-means uses at most this many rows per anchor


class AnchorGraphHasher(Hasher):
    """A hasher that ignores y, and whose F is a function of z(x), the weights of the anchors near x.

    ``fit`` calls ``_graph``, which sets ``anchors_`` (m, d) and ``width_``.
    """

    n_anchors: int
    n_neighbors: int
    _state: tuple[str, ...] = ("anchors_", "width_")

    def _check_graph_params(self) -> None:
        self._check_n_bits()
        check_integer("n_anchors", self.n_anchors, low=2)
        check_integer("n_neighbors", self.n_neighbors, low=1)

    def _graph(self, X: NDArray[Any], random_state: np.random.RandomState) -> sp.csr_array:
        """Z (n, m) of the training rows; anchors without weight are dropped."""
        if self.n_anchors > len(X):
            warnings.warn(
                f"n_anchors={self.n_anchors} is more than the {len(X)} rows of X; {len(X)} anchors are used",
                stacklevel=4,
            )
        anchors = self._k_means(X, random_state)
        Z, self.width_ = anchor_weights(X, anchors, self.n_neighbors)
        used = mass(Z) > 0
        self.anchors_ = anchors[used]
        return Z[:, np.flatnonzero(used)]

    def _k_means(self, X: NDArray[Any], random_state: np.random.RandomState) -> Matrix:
        n, most = len(X), ROWS_PER_ANCHOR * self.n_anchors
        some = X if n <= most else X[np.sort(random_state.choice(n, most, replace=False))]
        rows = as_tensor(np.asarray(some, np.float64))
        everything = TypicalRows(rows.mean(0))
        A, _ = choose_anchors(RowSource(rows), self.n_anchors, "kmeans", everything, random_state, rows.device)
        return np.asarray(A)

    def _weights(self, X: NDArray[Any]) -> sp.csr_array:
        """Z of new rows."""
        return anchor_weights(X, self.anchors_, self.n_neighbors, self.width_)[0]


def mass(Z: sp.csr_array) -> NDArray[np.float64]:
    """Zᵀ1 (m,), the diagonal of Λ."""
    return np.asarray(Z.sum(axis=0)).ravel()


def graph_eigenvectors(Z: sp.csr_array, k: int) -> tuple[NDArray[np.float64], Matrix]:
    """σ (p,) and W (m, p), p ≤ k: Y = ZW holds the leading eigenvectors of A with 1ᵀY = 0 and YᵀY = nI.

    The small matrix M = Λ^-½ ZᵀZ Λ^-½ has the same nonzero eigenvalues as A: with M v = σv, y = √n Z Λ^-½ v / √σ.
    Its trivial eigenvector Λ^½ 1, which gives a constant y, is removed. Eigenvalues of zero are left out, so p may be
    less than k.
    """
    n, root = Z.shape[0], np.sqrt(mass(Z))
    M = (Z.T @ Z).toarray() / np.outer(root, root)
    M -= np.outer(root, root) / n  # ‖Λ^½ 1‖² = 1ᵀZ1 = n
    sigma, v = (part.numpy() for part in torch.linalg.eigh(torch.from_numpy(M)))
    sigma, v = sigma[::-1][:k], v[:, ::-1][:, :k]
    keep = sigma > 1e-8
    sigma, v = sigma[keep], v[:, keep]
    return sigma, np.sqrt(n) * v / root[:, None] / np.sqrt(sigma)
