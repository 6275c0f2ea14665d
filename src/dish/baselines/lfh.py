"""LFH (Zhang, Zhang, Li, Guo, "Supervised hashing with latent factor models", SIGIR 2014)."""

from __future__ import annotations

from typing import Any, Self

from dish import codes
from dish.baselines._pairs import regress, similar_columns
from dish.checks import check_integer, check_number
from dish.encoder import row_blocks
from dish.kernel.kernel_hasher import KernelHasher
from dish.lazy import Tensor, torch
from dish.machine import threads_for
from dish.progress import rounds
from dish.similarity import Similarity


class LFH(KernelHasher):
    """Signs of real factors U (n, r) that maximise the likelihood of the pairwise labels.

    Rows i and j are similar with probability σ(Θ_ij), Θ = ½UUᵀ, and U has a normal prior of variance β:

        L(U) = Σ_ij [s_ij Θ_ij − log(1 + e^Θ_ij)] − ‖U‖²/2β ,   s_ij ∈ {0, 1} .

    Each iteration draws some columns of S and takes one Newton step for every row of U on those columns. A bound
    replaces the Hessian, so that no step lowers the likelihood of its row.

    Parameters
    ----------
    n_bits, n_anchors, gamma, ridge, device, random_state
        As in ``DISHK``.
    beta : float
        β, the variance of the prior.
    n_iter : int
        Number of iterations.
    n_columns : int or None
        Columns per iteration; None means ``n_bits``, as in the paper.
    kernel : "rbf" or "linear"
        Features of the hash function, a ridge regression on the signs of U. The paper's is linear.

    Attributes
    ----------
    codes_ : uint8 (n, ceil(n_bits/8))
        The signs of U, packed.
    """

    _state = (*KernelHasher._state, "codes_")

    def __init__(
        self,
        n_bits: int = 64,
        *,
        n_anchors: int = 1000,
        gamma: float | str = "auto",
        beta: float = 30.0,
        n_iter: int = 50,
        n_columns: int | None = None,
        kernel: str = "rbf",
        ridge: float = 1e-6,
        device: str = "auto",
        random_state: Any = 0,
    ) -> None:
        self.n_bits, self.n_anchors, self.gamma, self.beta = n_bits, n_anchors, gamma, beta
        self.n_iter, self.n_columns, self.kernel, self.ridge = n_iter, n_columns, kernel, ridge
        self.device, self.random_state = device, random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from rows X (n, d) and labels y: (n,) classes, or (n, l) of 0 and 1."""
        r = self._check_n_bits()
        check_number("beta", self.beta, low=0, strict=True)
        check_integer("n_iter", self.n_iter, low=1)
        c = r if self.n_columns is None else check_integer("n_columns", self.n_columns, low=1)
        data = self._fit_data(X, y)
        S, n, rng = data.S, data.n, data.rng
        U = torch.from_numpy(rng.standard_normal((n, r))).to(data.device)
        with self._stage("factors"), threads_for(n):
            for _ in rounds(self.n_iter):
                columns = torch.from_numpy(rng.choice(n, min(c, n), replace=False)).to(data.device)
                update_factors(U, S, columns, self.beta)
        H = torch.where(U >= 0, 1.0, -1.0)
        self.codes_ = codes.pack(H.cpu().numpy())
        self._keep(data, regress(data, H))
        return self


def update_factors(U: Tensor, S: Similarity, columns: Tensor, beta: float) -> None:
    """One step for every row of U (n, r), in place, given some columns of S.

    Rows outside the drawn columns do not depend on each other and are updated together. The drawn rows do, and are
    updated one after the other.
    """
    similar = similar_columns(S, columns)  # (g, c)
    drawn = torch.zeros(len(U), dtype=torch.bool, device=U.device)
    drawn[columns] = True
    U_c = U[columns]
    for block in row_blocks(len(U), 8192):
        rows = block.start + torch.nonzero(~drawn[block]).ravel()
        s = similar[S.row_group[rows].long()].to(U)
        U[rows] += newton_step(U[rows], U_c, s, beta)
    V = U[columns].cpu()  # on the CPU: launching such small steps on a GPU takes longer
    s = similar[S.row_group[columns].long()].cpu().to(V)
    with threads_for(1):
        for k in range(len(V)):
            others = torch.arange(len(V)) != k  # a row is not paired with itself
            V[k] += newton_step(V[k][None], V[others], s[k, others][None], beta)[0]
    U[columns] = V.to(U)


def newton_step(U: Tensor, V: Tensor, s: Tensor, beta: float) -> Tensor:
    """Newton steps of rows U (b, r) against fixed rows V (c, r) with labels s (b, c).

    For each row u, L(u) = 2 Σ_j [s_j θ_j − log(1 + e^θ_j)] − ‖u‖²/2β with θ_j = ½uᵀv_j (each pair counts in both
    orders). Its Hessian −½ Σ σ(θ_j)(1 − σ(θ_j)) v_j v_jᵀ − I/β is bounded below by −⅛ VᵀV − I/β.
    """
    gradient = (s - torch.sigmoid(U @ V.T / 2)) @ V - U / beta
    bound = V.T @ V / 8 + torch.eye(V.shape[1], dtype=V.dtype, device=V.device) / beta
    return torch.linalg.solve(bound, gradient.T).T


def log_posterior(U: Tensor, s: Tensor, beta: float) -> Tensor:
    """L(U) for the whole s (n, n) without its diagonal, for tests and tiny n."""
    Theta = U @ U.T / 2
    terms = s * Theta - torch.nn.functional.softplus(Theta)
    return terms.sum() - terms.diagonal().sum() - U.square().sum() / (2 * beta)
