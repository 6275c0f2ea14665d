"""KᵀK and its Cholesky factor, which the F-step and the spectral start solve with."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from dish.encoder import ROWS_IN_CACHE
from dish.errors import InputError
from dish.kernel.features import KernelMatrix, feature_blocks
from dish.lazy import Tensor, torch
from dish.machine import require_memory
from dish.parallel import ALONE, Ranks

RIDGE = 1e-6  # default of every kernel hasher


def gram(K: KernelMatrix, ranks: Ranks = ALONE) -> Tensor:
    """KᵀK (m, m) in float64. Products within a block use the dtype of K; sums across blocks use float64."""
    m = K.shape[1]
    if K.device.type == "cpu":  # KᵀK, its factor and their inverse
        remedy = "reduce the features of X, or use kernel='rbf', whose features are the anchors"
        with ranks.raise_together():
            require_memory(24 * m * m, f"X: the products of {m:,} kernel features", remedy)
    quarters = [slice(m * i // 4, m * (i + 1) // 4) for i in range(4)]
    G = torch.zeros(m, m, dtype=torch.float64, device=K.device)
    for _, block in feature_blocks(K, 16 * ROWS_IN_CACHE, "KᵀK"):
        for part in quarters:  # the upper triangle only: 0.6 of the work
            G[part, part.start :] += block[:, part].T @ block[:, part.start :]
    for part in quarters:
        G[part.stop :, part] = G[part, part.stop :].T
    return ranks.total(G)


def factor(
    K: KernelMatrix,
    ridge: float,
    n: int,
    ranks: Ranks,
    stage: Callable[[str], AbstractContextManager[None]],
    scale: float = 1.0,
) -> Whitening:
    """Factor KᵀK + ρI of all processes' n rows; ``scale``: the largest feature before centring."""
    with stage("gram"):
        G = gram(K, ranks)
    with stage("factor"):
        check_features_vary(G, n, K.dtype, scale)
        return Whitening.of(G, ridge, torch.finfo(K.dtype).eps)


def check_features_vary(G: Tensor, n: int, dtype: torch.dtype, scale: float = 1.0) -> None:
    """Raise InputError if KᵀK of n rows overflows, or is only rounding error."""
    if not torch.isfinite(G).all():
        raise InputError("X holds values whose squares overflow: scale X, for example to unit variance")
    if float(G.diagonal().max()) <= 100 * n * (torch.finfo(dtype).eps * scale) ** 2:
        raise InputError(
            "the kernel features of X do not vary: all rows are equal, or gamma is far too small (with "
            "kernel='linear': the values of X are); scale X, for example to unit variance"
        )


def factor_exactly(G: Tensor, eps: float) -> Tensor:
    """L of G itself; an error if G is singular up to rounding.

    The factorisation may succeed for a singular matrix, because of rounding. So look at the eigenvalues, for features
    of equal length: rounding changes one of 0 by about the error of a feature, or of the eigenvalues themselves.
    """
    L, failed = torch.linalg.cholesky_ex(G)
    if not failed:
        scale = G.diagonal().rsqrt()
        values = torch.linalg.eigvalsh(scale[:, None] * G * scale)
        failed = values[0] <= 10 * max(eps, sys.float_info.epsilon * float(values[-1]))
    if failed:
        raise InputError(
            "ridge=0, but KᵀK is singular: some kernel features of X depend on others (nearly equal anchors, or as "
            "many anchors as rows). Use fewer or other anchors, or a ridge above 0 such as 1e-6"
        )
    return L


@dataclass
class Whitening:
    """KᵀK + ρI = L Lᵀ, factored once; ρ is ``ridge`` times the mean of its diagonal."""

    L: Tensor  # (m, m) float64, lower
    rho: float
    A: Tensor  # KᵀK + ρI, kept because L Lᵀ takes longer to compute than the factorisation

    @classmethod
    def of(cls, G: Tensor, ridge: float, eps: float = sys.float_info.epsilon) -> Whitening:
        """Factor G + ρI, overwriting G. ρ is raised if rounding makes the matrix indefinite, unless it is 0.

        ``eps``: the rounding error of the features.
        """
        if ridge == 0:
            return cls(factor_exactly(G, eps), 0.0, G)
        scale, rho = float(G.diagonal().mean()), 0.0
        for boost in (1.0, 1e2, 1e4, 1e6):
            G.diagonal().add_(ridge * boost * scale - rho)
            rho = ridge * boost * scale
            L, failed = torch.linalg.cholesky_ex(G)
            if not failed:
                if boost > 1 and ridge != RIDGE:  # no warning for the default, which the user did not choose
                    warnings.warn(
                        f"ridge={ridge:g} is too small: rounding makes KᵀK singular (nearly equal anchors, or more "
                        f"anchors than the rows support). Using ridge={ridge * boost:g}",
                        stacklevel=2,
                    )
                return cls(L, rho, G)
        raise InputError("KᵀK is singular: the kernel features of X are degenerate. Increase ridge")

    def solve(self, B: Tensor) -> Tensor:
        """(KᵀK + ρI)⁻¹ B."""
        return torch.cholesky_solve(B.double(), self.L)

    def gram(self) -> Tensor:
        """KᵀK."""
        G = self.A.clone()
        G.diagonal().sub_(self.rho)
        return G

    def inverse_factor(self) -> Tensor:
        """L⁻¹."""
        eye = torch.eye(len(self.L), dtype=self.L.dtype, device=self.L.device)
        return torch.linalg.solve_triangular(self.L, eye, upper=False)
