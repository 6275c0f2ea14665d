"""CCA-ITQ (Gong, Lazebnik, Gordo, Perronnin, PAMI 2013): canonical directions of features and labels, rotated.

"Iterative quantization: a Procrustean approach to learning binary codes for large-scale image retrieval".
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dish.baselines._pairs import labelled
from dish.checks import check_integer, check_number
from dish.encoder import Linear
from dish.errors import InputError
from dish.kernel.features import feature_blocks
from dish.kernel.kernel_hasher import KernelHasher
from dish.lazy import Tensor, torch
from dish.posterior.projection import rotation
from dish.similarity import Classes, LabelCounts


class CCAITQ(KernelHasher):
    """Canonical directions of features and labels, each scaled by its correlation, then rotated as in ITQ.

    The directions w solve C_xy (C_yy + ρ_y I)⁻¹ C_yx w = λ² (C_xx + ρ_x I) w, and direction k is scaled by λ_k.
    c classes give p = c − 1 directions with λ > 0. With more bits than directions, R (p, n_bits) has orthonormal rows
    and distributes the directions over all bits.

    Parameters
    ----------
    n_bits, n_iter, random_state
        As in ``PCAITQ``.
    ridge : float
        ρ_x and ρ_y, relative to the mean diagonal of C_xx and of C_yy.
    kernel : "linear", "rbf" or a function (X, A) → (n, m)
        The features: the rows themselves as in the paper, or kernel values at anchors as in ``DISHK``.
    n_anchors, gamma, anchors, device
        As in ``DISHK``; the first three are not used by the linear kernel.

    Attributes
    ----------
    correlations_ : float64 (p,)
        λ, largest first.
    objective_ : float64 (n_iter,)
        ‖B − VR‖² after every iteration; it never rises.
    """

    _state = (*KernelHasher._state, "correlations_", "objective_")

    def __init__(
        self,
        n_bits: int = 64,
        *,
        n_iter: int = 50,
        ridge: float = 0.1,
        kernel: Any = "linear",
        n_anchors: int = 1000,
        gamma: float | str = "auto",
        anchors: Any = "random",
        device: str = "auto",
        random_state: Any = 0,
    ) -> None:
        self.n_bits, self.n_iter, self.ridge, self.kernel = n_bits, n_iter, ridge, kernel
        self.n_anchors, self.gamma, self.anchors, self.device = n_anchors, gamma, anchors, device
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from rows X (n, d) and labels y: (n,) classes, or (n, l) of 0 and 1."""
        check_integer("n_iter", self.n_iter, low=1)
        check_number("ridge", self.ridge, low=0, strict=True)
        data = self._fit_data(X, y)
        S, K, white = labelled(data.S), data.K, data.white
        assert isinstance(K, Tensor)
        with self._stage("CCA"):
            C_xy, C_yy = label_covariances(K, S)
            C_yy.diagonal().add_(self.ridge * C_yy.diagonal().mean())
            L = white.L / len(K) ** 0.5  # LLᵀ = C_xx + ρ_x I
            W, self.correlations_ = canonical_directions(L, C_xy, C_yy, self.n_bits)
        with self._stage("rotation"):
            V = torch.cat([block.double() @ W for _, block in feature_blocks(K)])  # (n, p)
            R, self.objective_ = rotation(V, self.n_bits, self.n_iter, data.rng)
        self._keep(data, Linear.of(torch.from_numpy(W.cpu().numpy() @ R).to(K.dtype)))
        return self


def label_covariances(K: Tensor, S: Classes | LabelCounts) -> tuple[Tensor, Tensor]:
    """Covariances C_xy (m, l) and C_yy (l, l) of centred features K (n, m) and labels Y (n, l), float64."""
    n = len(K)
    KtY = S.project(feature_blocks(K))[1][:-1].T  # R = [Y, −1]
    YtY, totals = label_products(S)
    return KtY / n, YtY / n - torch.outer(totals / n, totals / n)


def label_products(S: Classes | LabelCounts) -> tuple[Tensor, Tensor]:
    """YᵀY (l, l) and Yᵀ1 (l,), float64."""
    size = S.group_sizes()
    if isinstance(S, Classes):
        return torch.diag(size), size
    Y_g = S.Y_g.to_dense()  # (g, l): one row per group
    return Y_g.T @ (size[:, None] * Y_g), Y_g.T @ size


def canonical_directions(L: Tensor, C_xy: Tensor, C_yy: Tensor, r: int) -> tuple[Tensor, NDArray[np.float64]]:
    """W (m, p), p ≤ r, whose column k is a canonical direction times its correlation λ_k > 0, and λ (p,).

    With C_xx = L Lᵀ and C_yy = M Mᵀ the singular triplets (u, λ, ·) of L⁻¹ C_xy M⁻ᵀ give w = L⁻ᵀu.
    """
    M = torch.linalg.cholesky(C_yy)
    T = torch.linalg.solve_triangular(L, C_xy, upper=False)
    T = torch.linalg.solve_triangular(M, T.T, upper=False).T
    U, lam, _ = torch.linalg.svd(T, full_matrices=False)
    keep = (
        (lam > 1e-4 * lam[0].clamp(min=1e-300)).nonzero().ravel()[:r]
    )  # smaller ones may be rounding errors of a float32 K
    if len(keep) == 0:
        raise InputError("no direction of X correlates with y: CCA-ITQ has nothing to learn")
    U = U[:, keep]
    U = U * torch.sign(
        U.gather(0, U.abs().argmax(0, keepdim=True))
    )  # fix the sign of each direction, which is arbitrary
    return torch.linalg.solve_triangular(L.T, U, upper=True) * lam[keep], lam[keep].cpu().numpy()
