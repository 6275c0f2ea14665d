"""SDH (Shen, Shen, Liu, Shen, "Supervised discrete hashing", CVPR 2015).

Codes B (n, r) of ±1 that predict the labels Y (n, l) linearly, and that the kernel features K predict linearly:

    min  ‖Y − B W‖² + λ‖W‖² + ν (‖B − K P − 1cᵀ‖² + ρ‖P‖²)   over W (r, l), P (m, r), c (r,) and B.

W and P are ridge regressions. B is updated by discrete cyclic coordinate descent: with Q = Y Wᵀ + ν F and M = W Wᵀ,
each bit of a row in turn becomes sgn(q_k − Σ_{j≠k} M_kj b_j), its best value given the row's other bits. Rows are
independent of each other.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from dish import codes
from dish.baselines._pairs import labelled
from dish.checks import check_integer, check_number
from dish.encoder import Linear
from dish.kernel.features import F_blocks, feature_blocks
from dish.kernel.kernel_hasher import KernelHasher
from dish.kernel.whitening import Whitening
from dish.lazy import Tensor, torch
from dish.numba_lazy import njit, prange
from dish.progress import rounds
from dish.similarity import Classes, LabelCounts

MAX_SWEEPS = 10  # over the bits in one B-step, as in the authors' code; most rows stop changing earlier


class SDH(KernelHasher):
    """Codes that predict the labels linearly, with the squared (L2) loss. The defaults are the authors'.

    Parameters
    ----------
    n_bits, n_anchors, gamma, ridge, device, random_state
        As in ``DISHK``; ``random_state`` also draws the initial codes.
    lam, nu : float
        λ and ν of the objective.
    n_iter : int
        Maximum number of iterations of the three steps; an iteration that changes no bit is the last.

    Attributes
    ----------
    codes_ : uint8 (n, ceil(n_bits/8))
        B of the training rows, packed.
    objective_ : float64 (iterations,)
        The objective after every iteration; it never rises.
    """

    _state = (*KernelHasher._state, "codes_", "objective_")

    def __init__(
        self,
        n_bits: int = 64,
        *,
        n_anchors: int = 1000,
        gamma: float | str = "auto",
        lam: float = 1.0,
        nu: float = 1e-5,
        n_iter: int = 5,
        ridge: float = 1e-6,
        device: str = "auto",
        random_state: Any = 0,
    ) -> None:
        self.n_bits, self.n_anchors, self.gamma, self.lam, self.nu = n_bits, n_anchors, gamma, lam, nu
        self.n_iter, self.ridge, self.device, self.random_state = n_iter, ridge, device, random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from rows X (n, d) and labels y: (n,) classes, or (n, l) of 0 and 1."""
        self._check_params()
        data = self._fit_data(X, y)
        labels, K, white = LabelMatrix(labelled(data.S)), data.K, data.white
        assert isinstance(K, Tensor)
        start = 2 * data.rng.randint(2, size=(data.n, self.n_bits)).astype(np.int8) - 1
        B = torch.from_numpy(start).to(data.device)

        with self._stage("F-step"):
            P, c = f_step(K, white, B)
        objective = []
        for _ in rounds(self.n_iter):
            with self._stage("G-step"):
                W = g_step(B, labels, self.lam)
            with self._stage("B-step"):
                flips = b_step(B, K, P, c, W, labels, self.nu)
            with self._stage("F-step"):
                P, c = f_step(K, white, B)
            objective.append(value(B, W, P, c, white, labels, self.lam, self.nu))
            if flips == 0:
                break
        self.objective_ = np.array(objective)
        self.codes_ = codes.pack(B.cpu().numpy())
        self._keep(data, Linear.of(P.to(K.dtype), c.cpu().numpy()))
        return self

    def _check_params(self) -> None:
        check_number("lam", self.lam, low=0, strict=True)
        check_number("nu", self.nu, low=0)
        check_integer("n_iter", self.n_iter, low=1)


class LabelMatrix:
    """Products with the 0/1 matrix Y (n, l), which is never built: rows with the same labels have equal rows."""

    def __init__(self, S: Classes | LabelCounts) -> None:
        self.S, self.row_group = S, S.row_group.long()
        self.n_ones = float(((S.diag + 1) / S.w) @ S.group_sizes())  # ‖Y‖²; S_ii = w|Y_i| − 1

    def Y(self, Z: Tensor) -> Tensor:
        """Y Z per group of rows: (l, k) → (g, k), with P = [wY, 1] of the similarity."""
        return self.S.P(torch.cat([Z, Z.new_zeros(1, Z.shape[1])])) / self.S.w

    def Yt(self, B: Tensor) -> Tensor:
        """YᵀB: (n, r) → (l, r), with R = [Y, −1] of the similarity."""
        sums = torch.zeros(self.S.n_groups, B.shape[1], dtype=torch.float64, device=B.device)
        for rows, block in feature_blocks(B):
            sums.index_add_(0, self.row_group[rows], block.double())
        return self.S.Rt(sums)[:-1]


def g_step(B: Tensor, labels: LabelMatrix, lam: float) -> Tensor:
    """W (r, l) = (BᵀB + λI)⁻¹ BᵀY."""
    A = gram(B)
    A.diagonal().add_(lam)
    return torch.linalg.solve(A, labels.Yt(B).T)


def f_step(K: Tensor, white: Whitening, B: Tensor) -> tuple[Tensor, Tensor]:
    """P (m, r) = (KᵀK + ρI)⁻¹ KᵀB, and the intercept, which is the mean of B because K is centred."""
    KtB = torch.zeros(K.shape[1], B.shape[1], dtype=torch.float64, device=K.device)
    for rows, block in feature_blocks(K):
        KtB += block.T @ B[rows].to(K.dtype)
    return white.solve(KtB), B.double().mean(0)


def b_step(B: Tensor, K: Tensor, P: Tensor, c: Tensor, W: Tensor, labels: LabelMatrix, nu: float) -> int:
    """Update B in place; returns the number of changed bits."""
    M, YWt = W @ W.T, labels.Y(W.T)  # (r, r), (g, r)
    flips = 0
    for rows, F in F_blocks(K, P.to(K.dtype)):
        Q = YWt[labels.row_group[rows]] + nu * (F.double() + c)
        if B.device.type == "cpu":
            flips += int(_descend(B[rows].numpy(), Q.numpy(), M.numpy(), MAX_SWEEPS))
        else:
            flips += descend(B[rows], Q, M)
    return flips


def descend(B: Tensor, Q: Tensor, M: Tensor) -> int:
    """Discrete cyclic coordinate descent on all rows at once, in place: min bᵀMb − 2 qᵀb. The readable version."""
    start = B.clone()
    for _ in range(MAX_SWEEPS):
        before = B.clone()
        for k in range(B.shape[1]):
            b = B.double()
            z = Q[:, k] - b @ M[:, k] + M[k, k] * b[:, k]
            B[:, k] = torch.where(z == 0, b[:, k], z.sign()).to(B.dtype)
        if torch.equal(before, B):
            break
    return int((start != B).sum())


@njit(parallel=True, cache=True)
def _descend(B: Any, Q: Any, M: Any, max_sweeps: int) -> Any:
    """The same row by row. Mb is updated with each flip, so that a bit that does not flip costs one comparison."""
    n, r = B.shape
    flips = np.zeros(n, np.int64)
    for i in prange(n):
        start, Mb = B[i].copy(), np.zeros(r)
        for k in range(r):
            Mb += B[i, k] * M[k]
        for _ in range(max_sweeps):
            changed = False
            for k in range(r):
                b = float(B[i, k])
                if (Q[i, k] - Mb[k] + M[k, k] * b) * b < 0:
                    B[i, k] = -B[i, k]
                    Mb -= 2 * b * M[k]
                    changed = True
            if not changed:
                break
        flips[i] = (B[i] != start).sum()
    return flips.sum()


def value(
    B: Tensor, W: Tensor, P: Tensor, c: Tensor, white: Whitening, labels: LabelMatrix, lam: float, nu: float
) -> float:
    """The objective, for the P and c of ``f_step(B)``: their residual is n(r − ‖c‖²) − ‖LᵀP‖² with LLᵀ = KᵀK + ρI."""
    n, r = B.shape
    to_labels = labels.n_ones - 2 * (labels.Yt(B).T * W).sum() + (W * (gram(B) @ W)).sum() + lam * W.square().sum()
    to_rows = n * (r - c.square().sum()) - (white.L.T @ P).square().sum()
    return float(to_labels + nu * to_rows)


def gram(B: Tensor) -> Tensor:
    """BᵀB (r, r) float64 of ±1 codes, exact."""
    G = torch.zeros(B.shape[1], B.shape[1], dtype=torch.float64, device=B.device)
    for _, block in feature_blocks(B):
        G += block.float().T @ block.float()
    return G
