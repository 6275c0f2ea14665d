"""IsoH (Kong, Li, "Isotropic hashing", NIPS 2012), by lift and projection."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dish.baselines._pca import Matrix, PCAHasher, principal
from dish.checks import check_integer, check_number, check_random_state


class IsoH(PCAHasher):
    """Principal components, rotated so that all bits have the same variance; ignores y.

    Let Λ hold the variances of the principal components. The rotation Q makes the diagonal of QΛQᵀ constant,
    a = tr Λ / r. With more bits than components, Λ is padded with zeros, so that all bits share the variance.

    Parameters
    ----------
    n_bits : int
        Code length r.
    n_iter : int
        Maximum number of iterations of lift and projection.
    tol : float
        Stop when all variances are within ``tol`` · a of a.
    random_state : int, RandomState or None
        Seed of the initial Q.

    Attributes
    ----------
    mean_, W_ : float64 (d,), (d, r)
        F(x) = W_ᵀ(x − mean_); W_ holds the principal directions times Qᵀ.
    objective_ : float64 (n_iter_,)
        ‖T − QΛQᵀ‖²/‖Λ‖² after every iteration, where T has diagonal a and QΛQᵀ has eigenvalues Λ; it never rises.
    n_iter_ : int
        Number of iterations.
    """

    _state = (*PCAHasher._state, "objective_", "n_iter_")

    def __init__(self, n_bits: int = 64, *, n_iter: int = 1000, tol: float = 1e-3, random_state: Any = 0) -> None:
        self.n_bits, self.n_iter, self.tol, self.random_state = n_bits, n_iter, tol, random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from rows X (n, d)."""
        r = self._check_n_bits()
        check_integer("n_iter", self.n_iter, low=1)
        check_number("tol", self.tol, low=0)
        X = self._check_X(X, reset=True)
        self.mean_, W, variance = principal(X, r)
        padded = np.zeros(r)
        padded[: len(variance)] = variance
        Q, self.objective_ = equalise(padded, self.n_iter, self.tol, check_random_state(self.random_state))
        self.n_iter_ = len(self.objective_)
        self.W_ = W @ Q[:, : len(variance)].T  # (d, r)
        return self


def equalise(
    variance: NDArray[np.float64], n_iter: int, tol: float, random_state: np.random.RandomState
) -> tuple[Matrix, NDArray[np.float64]]:
    """Orthogonal Q (r, r) with diag(QΛQᵀ) ≈ a, for Λ in descending order, and the objective per iteration.

    Alternates between the nearest matrix with eigenvalues Λ (lift: same eigenvectors, eigenvalues by rank) and the
    nearest matrix with diagonal a (projection).
    """
    r = len(variance)
    lam, a = variance / variance.mean(), 1.0  # independent of the unit of X
    Q = np.linalg.qr(random_state.standard_normal((r, r)))[0]
    distance = []
    for _ in range(n_iter):
        T = (Q * lam) @ Q.T
        np.fill_diagonal(T, a)
        Q = np.linalg.eigh(T)[1][:, ::-1]  # eigenvalues in descending order, as Λ
        lifted = (Q * lam) @ Q.T
        distance.append(float(((T - lifted) ** 2).sum() / (lam**2).sum()))
        if np.abs(lifted.diagonal() - a).max() <= tol:
            break
    return Q, np.array(distance)
