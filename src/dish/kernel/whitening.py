"""KᵀK, and its factor: the coordinates in which the F-step and the spectral start are easy."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from dish.errors import InputError
from dish.kernel.features import ROWS_IN_CACHE, KernelMatrix, feature_blocks
from dish.lazy import Tensor, torch
from dish.parallel import ALONE, Ranks

RIDGE = 1e-6  # of every kernel hasher, unless told otherwise


def gram(K: KernelMatrix, ranks: Ranks = ALONE) -> Tensor:
    """KᵀK (m, m) float64: products in the type of K within a block, sums in float64 across blocks."""
    m = K.shape[1]
    quarters = [slice(m * i // 4, m * (i + 1) // 4) for i in range(4)]
    G = torch.zeros(m, m, dtype=torch.float64, device=K.device)
    for _, block in feature_blocks(K, 16 * ROWS_IN_CACHE, "KᵀK"):
        for part in quarters:  # on and right of the diagonal only: 0.6 of the work
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
    """KᵀK + ρI of the n rows of all processes, factored; ``scale``: of the features before they were centred."""
    with stage("gram"):
        G = gram(K, ranks)
    with stage("factor"):
        largest = float(G.diagonal().max())
        if not torch.isfinite(G).all():
            raise InputError("X holds values whose squares overflow: scale X, for example to unit variance")
        if largest <= 100 * n * (torch.finfo(K.dtype).eps * scale) ** 2:  # nothing but rounding
            raise InputError(
                "the kernel features of X do not vary: its rows are all alike, or gamma is far too small (for the "
                "linear kernel: their values are); scale X, for example to unit variance"
            )
        return Whitening.of(G, ridge)


@dataclass
class Whitening:
    """KᵀK + ρI = L Lᵀ, factored once; ρ is ``ridge`` times the mean of its diagonal."""

    L: Tensor  # (m, m) float64, lower
    rho: float
    A: Tensor  # KᵀK + ρI: to multiply L by its transpose takes longer than to factor A

    @classmethod
    def of(cls, G: Tensor, ridge: float) -> Whitening:
        """Factor G + ρI (G changes), with a larger ρ if rounding leaves it short of positive definite."""
        scale, rho = float(G.diagonal().mean()), 0.0
        for boost in (1.0, 1e2, 1e4, 1e6):
            G.diagonal().add_(ridge * boost * scale - rho)
            rho = ridge * boost * scale
            L, failed = torch.linalg.cholesky_ex(G)
            if not failed:
                if boost > 1 and ridge != RIDGE:  # the default may be raised: nobody has chosen it
                    warnings.warn(
                        f"ridge={ridge:g} is too small for rounding in KᵀK (anchors nearly alike, or many for so few "
                        f"rows): ridge={ridge * boost:g} is used",
                        stacklevel=2,
                    )
                return cls(L, rho, G)
        raise InputError("the kernel features of X are degenerate: KᵀK cannot be factored; raise ridge")

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
