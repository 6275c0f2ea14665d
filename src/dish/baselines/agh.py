"""AGH (Liu, Wang, Kumar, Chang, "Hashing with graphs", ICML 2011): anchor graph hashing with two layers."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dish.baselines._anchorgraph import AnchorGraphHasher, graph_eigenvectors, mass
from dish.baselines._pca import Matrix
from dish.checks import check_random_state
from dish.errors import InputError


class AGH(AnchorGraphHasher):
    """Thresholds the smoothest eigenvectors of an anchor graph twice; ignores y.

    Eigenvector k gives bit k, the sign of y, and bit ⌈r/2⌉ + k, which divides the positive rows at b⁺ and the
    negative rows at b⁻. If n_bits is odd, the last eigenvector gives one bit only. m anchors give at most m − 1
    eigenvectors, so n_bits can be at most 2(m − 1).

    Parameters
    ----------
    n_bits : int
        Code length r.
    n_anchors : int
        Number m of k-means anchors. With fewer rows there are as many anchors as rows, with a warning.
    n_neighbors : int
        Number s of anchors with nonzero weight for a row.
    random_state : int, RandomState or None
        Seed of k-means.

    Attributes
    ----------
    anchors_, width_ : float64 (m, d), float
        z(x) has the weights of the s nearest anchors, proportional to exp(−‖x − a‖² / width_); they sum to one.
    W_ : float64 (m, ⌈r/2⌉)
        y = W_ᵀ z(x).
    eigenvalues_ : float64 (⌈r/2⌉,)
        Eigenvalues, largest first.
    upper_, lower_ : float64 (⌊r/2⌋,)
        b⁺ and b⁻.
    """

    _state = (*AnchorGraphHasher._state, "W_", "eigenvalues_", "upper_", "lower_")

    def __init__(
        self, n_bits: int = 64, *, n_anchors: int = 300, n_neighbors: int = 3, random_state: Any = 0
    ) -> None:
        self.n_bits, self.n_anchors, self.n_neighbors = n_bits, n_anchors, n_neighbors
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from rows X (n, d)."""
        self._check_graph_params()
        X = self._check_X(X, reset=True)
        Z = self._graph(X, check_random_state(self.random_state))
        first, second = self.n_bits - self.n_bits // 2, self.n_bits // 2
        self.eigenvalues_, self.W_ = graph_eigenvectors(Z, first)
        p = len(self.eigenvalues_)
        if p < first:
            raise InputError(
                f"n_bits={self.n_bits} needs {first} eigenvectors, but the anchor graph of n_samples={len(X)} rows "
                f"and {len(self.anchors_)} anchors has {p}: n_bits can be at most {2 * p}, unless n_anchors is raised"
            )
        self.upper_, self.lower_ = thresholds(Z, Z @ self.W_[:, :second])
        return self

    def _decision_values(self, X: NDArray[Any]) -> NDArray[Any]:
        Y = self._weights(X) @ self.W_  # (n, ⌈r/2⌉)
        cut = Y[:, : self.n_bits // 2]
        return np.hstack([Y, np.where(cut >= 0, cut - self.upper_, self.lower_ - cut)])


def thresholds(Z: sp.csr_array, Y: Matrix) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The b⁺ and b⁻ (k,) that minimise ȳᵀLȳ subject to 1ᵀȳ = 0, with L = I − A, for each column y of Y.

    ȳ is y − b⁺ where y ≥ 0, and b⁻ − y elsewhere. The means of both sides satisfy the constraint, and so does any
    step t from there along f, which is −1/n⁺ on one side and 1/n⁻ on the other. The best step is −fᵀLȳ / fᵀLf.
    """
    above = Y >= 0
    n_above, n_below = np.maximum(above.sum(axis=0), 1), np.maximum((~above).sum(axis=0), 1)
    upper, lower = (Y * above).sum(axis=0) / n_above, (Y * ~above).sum(axis=0) / n_below
    y_bar = np.where(above, Y - upper, lower - Y)
    f = np.where(above, -1 / n_above, 1 / n_below)
    Lf = f - Z @ ((Z.T @ f) / mass(Z)[:, None])
    curvature = (f * Lf).sum(axis=0)
    flat = curvature <= 1e-12 * (f**2).sum(axis=0)  # no edge crosses y = 0: all t are equally good
    t = np.where(flat, 0, -(Lf * y_bar).sum(axis=0) / np.where(flat, 1, curvature))
    return upper + t / n_above, lower + t / n_below
