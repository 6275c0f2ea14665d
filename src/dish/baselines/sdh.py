"""SDH: supervised discrete hashing (Shen, Shen, Liu, Shen, CVPR 2015).

Codes B in {−1, 1} (n, r) from which the labels Y (n, l) can be read off linearly, and from the rows the codes:

    min  ‖Y − B W‖² + λ‖W‖² + ν (‖B − K P − 1cᵀ‖² + ρ‖P‖²)   over W (r, l), P (m, r), c (r,) and B.

W and P are ridge regressions. For B, discrete cyclic coordinate descent: with Q = Y Wᵀ + ν F and M = W Wᵀ, each bit
of a row in turn takes its best value sgn(q_k − Σ_{j≠k} M_kj b_j), given the row's other bits. Rows do not meet here.
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
from dish.similarity import Classes, LabelCounts

MAX_PASSES = 10  # over the bits in one B-step, as its authors do; most rows stop changing before


class SDH(KernelHasher):
    """Codes from which a linear map reads the labels; the squared (L2) loss. Defaults are its authors'.

    ``y``: (n,) classes, or (n, l) labels of 0 and 1, dense or CSR. ``lam`` and ``nu`` are λ and ν of the objective,
    ``n_iter`` the rounds of its three steps (fewer if a round changes no bit), ``ridge`` the ρ of the hash function
    as a share of the mean of diag(KᵀK). Codes start at random.

    ``codes_`` are the learned B of the training rows, packed; ``objective_`` is the objective after every round.
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
        self.n_bits = n_bits
        self.n_anchors = n_anchors
        self.gamma = gamma
        self.lam = lam
        self.nu = nu
        self.n_iter = n_iter
        self.ridge = ridge
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from rows X (n, d) and labels y."""
        self._check_params()
        problem = self._fit_data(X, y)
        labels, K, white = Labels(labelled(problem.S)), problem.K, problem.white
        assert isinstance(K, Tensor)
        start = 2 * problem.rng.randint(2, size=(problem.n, self.n_bits)).astype(np.int8) - 1
        B = torch.from_numpy(start).to(problem.device)

        with self._stage("F-step"):
            P, c = f_step(K, white, B)
        objective = []
        for _ in range(self.n_iter):
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
        self._keep(problem, Linear.of(P.to(K.dtype), c.cpu().numpy()))
        return self

    def _check_params(self) -> None:
        check_number("lam", self.lam, low=0, strict=True)
        check_number("nu", self.nu, low=0)
        check_integer("n_iter", self.n_iter, low=1)


class Labels:
    """Products with the 0/1 matrix Y (n, l), never built: rows with the same labels share a row of it."""

    def __init__(self, S: Classes | LabelCounts) -> None:
        self.S, self.row_group = S, S.row_group.long()
        self.n_ones = float(((S.diag + 1) / S.w) @ S.group_sizes())  # ‖Y‖²; S_ii = w|Y_i| − 1

    def Y(self, Z: Tensor) -> Tensor:
        """Y Z by distinct set of labels: (l, k) → (g, k). P of the similarity is [wY, 1]."""
        return self.S.P(torch.cat([Z, Z.new_zeros(1, Z.shape[1])])) / self.S.w

    def Yt(self, B: Tensor) -> Tensor:
        """YᵀB: (n, r) → (l, r). R of the similarity is [Y, −1]."""
        sums = torch.zeros(self.S.n_groups, B.shape[1], dtype=torch.float64, device=B.device)
        for rows, block in feature_blocks(B):
            sums.index_add_(0, self.row_group[rows], block.double())
        return self.S.Rt(sums)[:-1]


def g_step(B: Tensor, labels: Labels, lam: float) -> Tensor:
    """W (r, l) = (BᵀB + λI)⁻¹ BᵀY."""
    A = gram(B)
    A.diagonal().add_(lam)
    return torch.linalg.solve(A, labels.Yt(B).T)


def f_step(K: Tensor, white: Whitening, B: Tensor) -> tuple[Tensor, Tensor]:
    """P (m, r) = (KᵀK + ρI)⁻¹ KᵀB, and the intercept: the mean of B, since K is centred."""
    KtB = torch.zeros(K.shape[1], B.shape[1], dtype=torch.float64, device=K.device)
    for rows, block in feature_blocks(K):
        KtB += block.T @ B[rows].to(K.dtype)
    return white.solve(KtB), B.double().mean(0)


def b_step(B: Tensor, K: Tensor, P: Tensor, c: Tensor, W: Tensor, labels: Labels, nu: float) -> int:
    """Better codes in place of B; how many bits changed."""
    M, YWt = W @ W.T, labels.Y(W.T)  # (r, r), (g, r)
    flips = 0
    for rows, F in F_blocks(K, P.to(K.dtype)):
        Q = YWt[labels.row_group[rows]] + nu * (F.double() + c)
        if B.device.type == "cpu":
            flips += int(_descend(B[rows].numpy(), Q.numpy(), M.numpy(), MAX_PASSES))
        else:
            flips += descend(B[rows], Q, M)
    return flips


def descend(B: Tensor, Q: Tensor, M: Tensor) -> int:
    """Discrete cyclic coordinate descent on all rows at once, in place: min bᵀMb − 2 qᵀb. The readable form."""
    start = B.clone()
    for _ in range(MAX_PASSES):
        before = B.clone()
        for k in range(B.shape[1]):
            b = B.double()
            z = Q[:, k] - b @ M[:, k] + M[k, k] * b[:, k]
            B[:, k] = torch.where(z == 0, b[:, k], z.sign()).to(B.dtype)
        if torch.equal(before, B):
            break
    return int((start != B).sum())


@njit(parallel=True, cache=True)
def _descend(B: Any, Q: Any, M: Any, max_passes: int) -> Any:
    """The same, row by row: Mb is kept up to date, so that a bit that stays costs one comparison."""
    n, r = B.shape
    flips = np.zeros(n, np.int64)
    for i in prange(n):
        start, Mb = B[i].copy(), np.zeros(r)
        for k in range(r):
            Mb += B[i, k] * M[k]
        for _ in range(max_passes):
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
    B: Tensor, W: Tensor, P: Tensor, c: Tensor, white: Whitening, labels: Labels, lam: float, nu: float
) -> float:
    """The objective, for the P and c that belong to B: their residual is n(r − ‖c‖²) − ‖LᵀP‖², KᵀK + ρI = LLᵀ."""
    n, r = B.shape
    to_labels = labels.n_ones - 2 * (labels.Yt(B).T * W).sum() + (W * (gram(B) @ W)).sum() + lam * W.square().sum()
    to_rows = n * (r - c.square().sum()) - (white.L.T @ P).square().sum()
    return float(to_labels + nu * to_rows)


def gram(B: Tensor) -> Tensor:
    """BᵀB (r, r) float64 of ±1 codes; exact."""
    G = torch.zeros(B.shape[1], B.shape[1], dtype=torch.float64, device=B.device)
    for _, block in feature_blocks(B):
        G += block.float().T @ block.float()
    return G
