"""PCA-ITQ (Gong, Lazebnik, CVPR 2011): principal components, rotated so that their signs lose little.

"Iterative quantization: a Procrustean approach to learning binary codes".
"""

from __future__ import annotations

from typing import Any, Self

from dish.baselines._pca import PCAHasher, principal, project
from dish.checks import check_integer, check_random_state
from dish.lazy import torch
from dish.posterior.projection import rotation


class PCAITQ(PCAHasher):
    """Principal components, rotated to minimise ‖B − VR‖² over signs B and orthogonal R; ignores y.

    V (n, p) are the projections on the first p = min(n_bits, rank) principal directions. If n_bits exceeds p,
    R (p, n_bits) has orthonormal rows: V is padded with zero columns and then rotated.

    Parameters
    ----------
    n_bits : int
        Code length r.
    n_iter : int
        Iterations of B-step and R-step.
    random_state : int, RandomState or None
        Seed of the initial R.

    Attributes
    ----------
    mean_, W_ : float64 (d,), (d, r)
        F(x) = W_ᵀ(x − mean_); W_ holds the principal directions times R.
    objective_ : float64 (n_iter,)
        ‖B − VR‖² after every iteration; it never rises.
    """

    _state = (*PCAHasher._state, "objective_")

    def __init__(self, n_bits: int = 64, *, n_iter: int = 50, random_state: Any = 0) -> None:
        self.n_bits, self.n_iter, self.random_state = n_bits, n_iter, random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from rows X (n, d)."""
        r = self._check_n_bits()
        check_integer("n_iter", self.n_iter, low=1)
        X = self._check_X(X, reset=True)
        self.mean_, W, _ = principal(X, r)
        V = torch.from_numpy(project(X, self.mean_, W))  # (n, p)
        R, self.objective_ = rotation(V, r, self.n_iter, check_random_state(self.random_state))
        self.W_ = W @ R  # (d, r)
        return self
