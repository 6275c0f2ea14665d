"""SH (Weiss, Torralba, Fergus, "Spectral hashing", NIPS 2008)."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dish.baselines._pca import Matrix, PCAHasher, principal, project


class SH(PCAHasher):
    """Signs of the smoothest eigenfunctions of a uniform distribution on a box; ignores y.

    The box is the range [a_j, b_j] of the rows along each of the first min(n_bits, rank) principal directions.
    Its eigenfunctions are sin(π/2 + kπ/(b_j − a_j)·(x_j − a_j)), k = 1, 2, …, with eigenvalues that grow with
    (kπ/(b_j − a_j))². The n_bits functions with the smallest eigenvalues are used, so a long side gives several bits.

    Parameters
    ----------
    n_bits : int
        Code length r.
    random_state : ignored
        The method has no randomness; all hashers have this parameter.

    Attributes
    ----------
    mean_, W_ : float64 (d,), (d, p)
        x_j are the entries of W_ᵀ(x − mean_), the principal components.
    low_, omega_, direction_ : float64 (p,), float64 (r,), int64 (r,)
        The corner a of the box, and the frequency kπ/(b_j − a_j) and direction j of each bit.
    """

    _state = (*PCAHasher._state, "low_", "omega_", "direction_")

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from rows X (n, d)."""
        r = self._check_n_bits()
        X = self._check_X(X, reset=True)
        self.mean_, self.W_, _ = principal(X, r)
        V = project(X, self.mean_, self.W_)  # (n, p)
        self.low_ = V.min(axis=0)
        self.omega_, self.direction_ = smallest_modes(V.max(axis=0) - self.low_, r)
        return self

    def _decision_values(self, X: NDArray[Any]) -> NDArray[Any]:
        V = super()._decision_values(X) - self.low_
        return np.sin(np.pi / 2 + self.omega_ * V[:, self.direction_])


def smallest_modes(side: NDArray[Any], r: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The r smallest frequencies kπ/side_j over j and k = 1 … r, and the direction j of each."""
    k = np.arange(1, r + 1)
    omega: Matrix = np.pi * k[None, :] / side[:, None]  # (p, r)
    order = np.argsort(omega, axis=None, kind="stable")[:r]
    return omega.ravel()[order], order // r
