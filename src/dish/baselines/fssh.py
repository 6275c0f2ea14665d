"""FSSH (Luo, Nie, He, Wu, Chen, Xu, "Fast scalable supervised hashing", SIGIR 2018)."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from dish import codes
from dish.baselines._pairs import labelled
from dish.baselines.cca_itq import label_covariances, label_products
from dish.checks import check_integer, check_number
from dish.encoder import Linear
from dish.kernel.features import F_blocks, feature_blocks
from dish.kernel.kernel_hasher import KernelHasher
from dish.lazy import Tensor, torch
from dish.progress import rounds
from dish.similarity import Classes, LabelCounts


class FSSH(KernelHasher):
    """Codes B (n, r) that both the features and the labels predict, and whose inner products are the similarity:

        min  ‖r S − (K W)(Y G)ᵀ‖² + n μ ‖B − Y G‖² + n θ ‖B − K W‖²   over W (m, r), G (l, r) and B = ±1.

    W and G have closed forms in KᵀSY, KᵀK and YᵀY, which are computed once, and B = sgn(μ YG + θ KW).

    Parameters
    ----------
    n_bits, n_anchors, gamma, ridge, device, random_state
        As in ``DISHK``.
    mu, theta : float
        μ and θ. They are multiplied by n, because the first term has n times as many entries as the others.
    n_iter : int
        Maximum number of iterations of the three steps; an iteration that changes no bit is the last.

    Attributes
    ----------
    codes_ : uint8 (n, ceil(n_bits/8))
        B of the training rows, packed.
    """

    _state = (*KernelHasher._state, "codes_")

    def __init__(
        self,
        n_bits: int = 64,
        *,
        n_anchors: int = 1000,
        gamma: float | str = "auto",
        mu: float = 1.0,
        theta: float = 1.0,
        n_iter: int = 10,
        ridge: float = 1e-6,
        device: str = "auto",
        random_state: Any = 0,
    ) -> None:
        self.n_bits, self.n_anchors, self.gamma, self.mu, self.theta = n_bits, n_anchors, gamma, mu, theta
        self.n_iter, self.ridge, self.device, self.random_state = n_iter, ridge, device, random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from rows X (n, d) and labels y: (n,) classes, or (n, l) of 0 and 1."""
        check_number("mu", self.mu, low=0, strict=True)
        check_number("theta", self.theta, low=0, strict=True)
        check_integer("n_iter", self.n_iter, low=1)
        data = self._fit_data(X, y)
        S, K, white, n = labelled(data.S), data.K, data.white, data.n
        assert isinstance(K, Tensor)
        with self._stage("sums"):
            sums = Sums.of(K, S, white.gram(), self.n_bits)
        signs = np.where(data.rng.random_sample((n, self.n_bits)) < 0.5, 1, -1).astype(np.int8)
        B = torch.from_numpy(signs).to(data.device)
        W = white.solve(KtB(K, B))
        with self._stage("codes"):
            for _ in rounds(self.n_iter):
                G = sums.g_step(W, YtB(S, B), n * self.mu)
                W = white.solve(sums.w_step(G, KtB(K, B), n * self.theta))
                if b_step(B, K, W, sums.Y_g @ G, S, self.mu, self.theta) == 0:
                    break
        self.codes_ = codes.pack(B.cpu().numpy())
        self._keep(data, Linear.of(W.to(K.dtype)))
        return self


class Sums:
    """The sums over all rows that the steps for W and G need."""

    def __init__(self, Y_g: Tensor, rKtSY: Tensor, KtK: Tensor, YtY: Tensor) -> None:
        self.Y_g, self.rKtSY, self.KtK, self.YtY = Y_g, rKtSY, KtK, YtY
        ridge = 1e-6 * YtY.diagonal().mean()  # a label may not occur at all
        self.L = torch.linalg.cholesky(YtY + ridge * torch.eye(len(YtY)).to(YtY))

    @classmethod
    def of(cls, K: Tensor, S: Classes | LabelCounts, KtK: Tensor, r: int) -> Sums:
        """From centred features K (n, m) and labels. KᵀS = 2KᵀYYᵀ, because S = 2YYᵀ − 1 and Kᵀ1 = 0."""
        Y_g = torch.eye(S.n_groups, dtype=torch.float64) if isinstance(S, Classes) else S.Y_g.to_dense()
        Y_g = Y_g.to(S.diag)
        YtY = label_products(S)[0]
        KtY = len(K) * label_covariances(K, S)[0]
        return cls(Y_g, 2 * r * KtY @ YtY, KtK, YtY)

    def g_step(self, W: Tensor, YtB: Tensor, mu: float) -> Tensor:
        """G (l, r) = (YᵀY)⁻¹ (r YᵀSᵀKW + μ YᵀB) (WᵀKᵀKW + μI)⁻¹."""
        inner = W.T @ self.KtK @ W
        inner.diagonal().add_(mu)
        right = self.rKtSY.T @ W + mu * YtB
        return torch.linalg.solve(inner, torch.cholesky_solve(right, self.L).T).T

    def w_step(self, G: Tensor, KtB: Tensor, theta: float) -> Tensor:
        """KᵀK W (m, r) = (r KᵀSYG + θ KᵀB) (GᵀYᵀYG + θI)⁻¹."""
        inner = G.T @ self.YtY @ G
        inner.diagonal().add_(theta)
        return torch.linalg.solve(inner, (self.rKtSY @ G + theta * KtB).T).T


def KtB(K: Tensor, B: Tensor) -> Tensor:
    """KᵀB (m, r), float64."""
    return sum((block.T @ B[rows].to(K.dtype) for rows, block in feature_blocks(K)), torch.tensor(0.0)).double()


def YtB(S: Classes | LabelCounts, B: Tensor) -> Tensor:
    """YᵀB (l, r), float64."""
    sums = torch.zeros(S.n_groups, B.shape[1], dtype=torch.float64, device=B.device)
    for rows, block in feature_blocks(B):
        sums.index_add_(0, S.row_group[rows].long(), block.double())
    return S.Rt(sums)[:-1]  # R = [Y, −1]


def b_step(B: Tensor, K: Tensor, W: Tensor, YG: Tensor, S: Classes | LabelCounts, mu: float, theta: float) -> int:
    """B = sgn(μ YG + θ KW), in place, with YG given per group; returns the number of changed bits."""
    flips = 0
    for rows, F in F_blocks(K, W.to(K.dtype)):
        better = torch.where(mu * YG[S.row_group[rows].long()] + theta * F.double() >= 0, 1, -1).to(B.dtype)
        flips += int((better != B[rows]).sum())
        B[rows] = better
    return flips
