"""SH: spectral hashing (Weiss, Torralba and Fergus, "Spectral hashing", NIPS 2008)."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dish.baselines._pca import Matrix, PCAHasher, principal, project


class SH(PCAHasher):
    """Bits are signs of the smoothest eigenfunctions of a uniform distribution on a box; ignores y.

    The box is the range [a_j, b_j] of the rows along each of the first min(n_bits, rank) principal directions.
    On it the eigenfunctions are sin(π/2 + kπ/(b_j − a_j)·(x_j − a_j)), k = 1, 2, …, with eigenvalues that grow
    with (kπ/(b_j − a_j))²; the n_bits smallest are taken, so a long side gives several bits. With more bits than
    directions, sides are cut more finely.

    Parameters
    ----------
    n_bits : int
        Code length r.
    random_state : ignored
        Nothing is random here; it is a parameter because all hashers have it.

    Attributes
    ----------
    mean_, W_ : float64 (d,), (d, p)
        The principal projection x_j of a row.
    low_, omega_, direction_ : float64 (p,), float64 (r,), int64 (r,)
        The corner a of the box; frequency kπ/(b_j − a_j) and direction j of every bit.
    """

    _state = (*PCAHasher._state, "low_", "omega_", "direction_")

    def __init__(self, n_bits: int = 64, *, random_state: Any = 0) -> None:
        self.n_bits = n_bits
        self.random_state = random_state

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
    """The r smallest frequencies kπ/side_j over directions j and k = 1 … r, and their directions."""
    k = np.arange(1, r + 1)
    omega: Matrix = np.pi * k[None, :] / side[:, None]  # (p, r)
    order = np.argsort(omega, axis=None, kind="stable")[:r]
    return omega.ravel()[order], order // r
