"""COSDISH (Kang, Li, Zhou, "Column sampling based discrete supervised hashing", AAAI 2016)."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dish import codes
from dish.baselines._pairs import regress, similar_columns
from dish.checks import check_integer
from dish.kernel.kernel_hasher import KernelHasher
from dish.lazy import Tensor, torch
from dish.machine import threads_for
from dish.numba_lazy import njit
from dish.progress import rounds
from dish.similarity import Similarity


class COSDISH(KernelHasher):
    """Codes B (n, r) with B Bᵀ ≈ r S, learned from a few columns Ω of S at a time: min ‖r S^Ω − B (B^Ω)ᵀ‖².

    With the drawn rows B^Ω fixed, all other rows become B^Γ = sgn(S^Γ B^Ω), the minimiser in the ℓ₁ norm. With B^Γ
    fixed, each bit of B^Ω is a binary quadratic problem over the drawn rows. The dissimilar entries of S are scaled
    so that both kinds have the same total weight.

    Parameters
    ----------
    n_bits, n_anchors, gamma, ridge, device, random_state
        As in ``DISHK``.
    n_draws : int
        Number of draws of columns.
    n_alternations : int
        Alternations between B^Ω and B^Γ for each draw.
    n_columns : int or None
        Columns per draw; None means ``n_bits``, as in the paper. With many classes use several per class: all classes
        that are not in the last draw get the same code.
    kernel : "rbf" or "linear"
        Features of the hash function, a ridge regression on B. The paper's is linear (or boosted trees).

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
        n_draws: int = 10,
        n_alternations: int = 3,
        n_columns: int | None = None,
        kernel: str = "rbf",
        ridge: float = 1e-6,
        device: str = "auto",
        random_state: Any = 0,
    ) -> None:
        self.n_bits, self.n_anchors, self.gamma, self.n_draws = n_bits, n_anchors, gamma, n_draws
        self.n_alternations, self.n_columns, self.kernel = n_alternations, n_columns, kernel
        self.ridge, self.device, self.random_state = ridge, device, random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from rows X (n, d) and labels y: (n,) classes, or (n, l) of 0 and 1."""
        r = self._check_n_bits()
        check_integer("n_draws", self.n_draws, low=1)
        check_integer("n_alternations", self.n_alternations, low=1)
        c = r if self.n_columns is None else check_integer("n_columns", self.n_columns, low=1)
        data = self._fit_data(X, y)
        S, n, rng = data.S, data.n, data.rng
        B = torch.from_numpy(np.where(rng.random_sample((n, r)) < 0.5, 1.0, -1.0)).to(data.device)
        with self._stage("codes"), threads_for(n):
            for _ in rounds(self.n_draws):
                columns = torch.from_numpy(rng.choice(n, min(c, n), replace=False)).to(data.device)
                draw = Draw(S, columns)
                for _ in range(self.n_alternations):
                    draw.update_drawn(B)
                    draw.update_others(B)
        self.codes_ = codes.pack(B.cpu().numpy())
        self._keep(data, regress(data, B))
        return self


class Draw:
    """The drawn columns Ω of S, stored per group of rows. Similar entries are 1, all others −(similar)/(others)."""

    def __init__(self, S: Similarity, columns: Tensor) -> None:
        self.columns, self.row_group, self.n_groups = columns, S.row_group.long(), S.n_groups
        similar = similar_columns(S, columns).double()  # (g, c)
        ones = float(S.group_sizes() @ similar.sum(1))
        others = S.n * len(columns) - ones
        self.table = similar - (ones / max(others, 1.0)) * (1 - similar)

    def update_others(self, B: Tensor) -> None:
        """B^Γ = sgn(S^Γ B^Ω), in place; a bit is kept where the product is 0."""
        drawn = B[self.columns]
        votes = (self.table @ drawn)[self.row_group]  # (n, r): equal for all rows of a group
        B.copy_(torch.where(votes.abs() < 1e-9, B, votes.sign()))
        B[self.columns] = drawn

    def update_drawn(self, B: Tensor) -> None:
        """B^Ω bit by bit, in place: min ‖r S^Γ − B^Γ (B^Ω)ᵀ‖² + ‖r S^ΩΩ − B^Ω (B^Ω)ᵀ‖².

        With all bits but k fixed and b = B^Ω_k, this is −2 bᵀM b − 2 pᵀb with M = r S^ΩΩ − Σ_{l≠k} B^Ω_l (B^Ω_l)ᵀ
        and p = r (S^Γ)ᵀB^Γ_k − Σ_{l≠k} B^Ω_l (B^Γ_l)ᵀB^Γ_k. The sums over all n rows are computed once.
        """
        r = B.shape[1]
        drawn = B[self.columns].cpu().numpy()  # (c, r)
        others = B.clone()
        others[self.columns] = 0
        sums = B.new_zeros(self.n_groups, r).index_add_(0, self.row_group, others)
        SB = (self.table.T @ sums).cpu().numpy()  # (c, r): (S^Γ)ᵀ B^Γ
        gram = (others.T @ others).cpu().numpy()  # (r, r)
        S_drawn = self.table[self.row_group[self.columns]].cpu().numpy()  # (c, c)
        residue = r * S_drawn - drawn @ drawn.T
        for k in range(r):
            residue += np.outer(drawn[:, k], drawn[:, k])  # now M, without bit k
            p = r * SB[:, k] - drawn @ gram[:, k] + drawn[:, k] * gram[k, k]
            drawn[:, k] = local_maximum(residue, p / 2, drawn[:, k])
            residue -= np.outer(drawn[:, k], drawn[:, k])
        B[self.columns] = torch.from_numpy(drawn).to(B)


def local_maximum(M: NDArray[np.float64], c: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """A local maximum of bᵀM b + 2cᵀb over b ∈ {−1, 1}ⁿ, reached from b by the best single flip each time.

    M is symmetric. A local maximum is also a fixed point of the two-means clustering that the paper uses.
    """
    b = b.copy()
    _flip(M, c, b, M @ b - np.diag(M) * b + c)  # the diagonal adds a constant, as b_i² = 1
    return b


@njit(cache=True)
def _flip(M: Any, c: Any, b: Any, gradient: Any) -> None:
    """Flip the best entry of b until no flip helps, in place; ``gradient`` is Mb + c, with M without its diagonal."""
    while True:
        i = np.argmin(b * gradient)  # flipping b_i adds −4 b_i gradient_i
        if not b[i] * gradient[i] < -1e-9 * (1 + np.abs(c[i])):
            return
        b[i], own = -b[i], gradient[i]
        gradient += 2 * b[i] * M[i]
        gradient[i] = own
