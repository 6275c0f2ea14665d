"""ADSH: codes of the training rows are learned as such, and a network for queries beside them.

Jiang, Li, "Asymmetric deep supervised hashing", AAAI 2018.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dish import codes
from dish.deep.checkpoint import State
from dish.deep.data import Problem
from dish.deep.deep_hasher import DeepHasher, Fitted
from dish.deep.training import Batch, Training

GAMMA = 200.0  # weight of ‖V − U‖² beside ‖UVᵀ − rS‖²


class ADSH(DeepHasher):
    """min ‖UVᵀ − rS‖² + γ‖V − U‖² over U = tanh F and V of ±1, which are ``codes_``, the codes of the training rows.

    V is solved again after every pass, one column after the other. A database of new rows has to be encoded by the
    network, whose codes were never asked to be near each other: the authors' figures are of the learned V.

    S is 1 for rows that share a label and −ρ for others, ρ such that S sums to zero (the authors' own program has
    that, too): with −1 one code for all U and its opposite for all V would already be right for most pairs.
    """

    def _learn(self, training: Training, done: State | None) -> Fitted:
        if done is not None:
            return {"codes_": done.codes}
        problem = training.problem
        steps = training.steps_of(problem.n) // self.epochs * self.accumulate  # of one pass, a loss for each part
        state = Asymmetric(problem, self.n_bits, steps)

        def loss(phi: Tensor, F: Tensor, batch: Batch) -> Tensor:
            return state.loss(torch.tanh(F), batch.rows)

        training.run(loss, 0, training.optimiser())
        state.solve()
        packed = codes.pack(state.V.cpu().numpy())
        training.save(0, packed)
        return {"codes_": packed}


class Asymmetric:
    """V, the U of the rows seen last, and the sums over V by which S is used through its groups."""

    def __init__(self, problem: Problem, r: int, steps: int) -> None:
        """``steps``: calls of the loss in one pass."""
        self.ranks, self.steps, self.taken = problem.ranks, steps, 0
        device = problem.device
        self.group = problem.S.row_group.long().to(device)
        self.table = balanced(problem.S.between_groups(), problem.S.row_group).float().to(device)  # S between groups
        start = torch.Generator().manual_seed(problem.seed)
        self.V = torch.where(torch.rand(problem.n, r, generator=start) < 0.5, -1.0, 1.0).to(device)
        self.U, self.fresh = self.V.clone(), torch.full_like(self.V, torch.nan)
        self.sum_up()

    def loss(self, u: Tensor, rows: Tensor) -> Tensor:
        """The mean over rows and training rows of (u·v − rS)² / r², and γ/n times that of (v − u)²."""
        n, r = self.V.shape
        if self.taken and self.taken % self.steps == 0:
            self.solve()
        self.taken += 1
        self.fresh[rows] = u.detach()
        fit = (
            ((u @ self.gram) * u).sum(1)
            - 2 * r * (u * self.pulled[self.group[rows]]).sum(1)
            + self.constant[self.group[rows]]
        )
        return (fit + GAMMA * (self.V[rows] - u).square().sum(1)).mean() / (n * r * r)

    def solve(self) -> None:
        """V column by column, each the best given the others."""
        seen = self.ranks.sum((~self.fresh.isnan()).float())[0] > 0
        new = self.ranks.sum(self.fresh.nan_to_num(0.0))[0].to(self.U)
        self.U = torch.where(seen, new, self.U)
        self.fresh.fill_(torch.nan)
        U, V, r = self.U, self.V, self.V.shape[1]
        pull = r * self.times_S(U) + GAMMA * U
        for k in range(r):
            others = V @ (U.T @ U[:, k]) - V[:, k] * (U[:, k] @ U[:, k])
            V[:, k] = torch.where(pull[:, k] - others >= 0, 1.0, -1.0)
        self.sum_up()

    def times_S(self, A: Tensor) -> Tensor:
        """S A (n, r)."""
        return (self.table @ self.by_group(A))[self.group]

    def by_group(self, A: Tensor) -> Tensor:
        """EᵀA (g, r)."""
        return torch.zeros(len(self.table), A.shape[1], device=A.device).index_add_(0, self.group, A)

    def sum_up(self) -> None:
        """VᵀV, SV by group, and r² Σ_j S_gj²."""
        sizes = torch.bincount(self.group, minlength=len(self.table)).float()
        self.gram, self.pulled = self.V.T @ self.V, self.table @ self.by_group(self.V)
        self.constant = self.V.shape[1] ** 2 * (self.table.square() @ sizes)


def balanced(table: Tensor, group: Tensor) -> Tensor:
    """The signs of S between groups (g, g), those below zero weighted so that S sums to zero over all rows."""
    sizes, alike = torch.bincount(group, minlength=len(table)).to(table), (table > 0).to(table)
    alike_pairs = sizes @ alike @ sizes
    other_pairs = (sizes.sum() ** 2 - alike_pairs).clamp(min=1)
    return alike - alike_pairs / other_pairs * (1 - alike)
