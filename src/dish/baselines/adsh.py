"""ADSH: the codes of the training rows are learned directly, together with a network for queries.

Jiang, Li, "Asymmetric deep supervised hashing", AAAI 2018.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dish import codes
from dish.deep.data import DeepFitData
from dish.deep.deep_hasher import DeepHasher, Learned
from dish.deep.training import Batch, Objective, RoundState, Training

GAMMA = 200.0  # weight of ‖V − U‖² relative to ‖UVᵀ − rS‖²


class ADSH(DeepHasher):
    """min ‖UVᵀ − rS‖² + γ‖V − U‖² over U = tanh F and V of ±1, which are ``codes_``, the codes of the training rows.

    V is solved for after every epoch, column by column. New database rows have to be encoded by the network, which is
    not trained to bring its own codes together: the authors report results for the learned V.

    S is 1 for rows that share a label and −ρ for others, with ρ such that S sums to zero (as in the authors'
    program). With −1, one code for all U and its opposite for all V would be right for most pairs.
    """

    def _learn(self, training: Training, state: RoundState | None) -> Learned:
        if state is not None:
            return Learned(attributes={"codes_": state.codes})
        steps = training.steps_per_epoch(training.data.n) * self.accumulate  # the loss is computed for each part
        solver = Asymmetric(training.data, self.n_bits, steps)

        def loss(phi: Tensor, F: Tensor, batch: Batch) -> Tensor:
            return solver.loss(torch.tanh(F), batch.rows)

        training.run_objective(Objective(loss))
        solver.solve()
        packed = codes.pack(solver.V.cpu().numpy())
        training.save(0, packed)
        return Learned(attributes={"codes_": packed})


class Asymmetric:
    """V, the latest U of every row, and sums over V by group, so that S is never built."""

    def __init__(self, data: DeepFitData, r: int, steps: int) -> None:
        """``steps``: calls of the loss per epoch."""
        self.ranks, self.steps, self.taken = data.ranks, steps, 0
        device = data.device
        self.group = data.S.row_group.long().to(device)
        self.table = balanced(data.S.between_groups(), data.S.row_group).float().to(device)  # S between groups
        start = torch.Generator().manual_seed(data.seed)
        self.V = torch.where(torch.rand(data.n, r, generator=start) < 0.5, -1.0, 1.0).to(device)
        self.U, self.fresh = self.V.clone(), torch.full_like(self.V, torch.nan)
        self.sum_up()

    def loss(self, u: Tensor, rows: Tensor) -> Tensor:
        """The mean over rows and training rows of (u·v − rS)² / r, plus γ/(n r) times ‖v − u‖².

        The authors' loss is r times as large; this one has gradients that do not grow with r. With r², they would
        shrink, and one learning rate would leave long codes half trained.
        """
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
        return (fit + GAMMA * (self.V[rows] - u).square().sum(1)).mean() / (n * r)

    def solve(self) -> None:
        """Set each column of V to its optimum given the others."""
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
        """Update VᵀV, SV by group, and r² Σ_j S_gj²."""
        sizes = torch.bincount(self.group, minlength=len(self.table)).float()
        self.gram, self.pulled = self.V.T @ self.V, self.table @ self.by_group(self.V)
        self.constant = self.V.shape[1] ** 2 * (self.table.square() @ sizes)


def balanced(table: Tensor, group: Tensor) -> Tensor:
    """S between groups (g, g): 1 where positive, else the −ρ for which S sums to zero over all rows."""
    sizes, similar = torch.bincount(group, minlength=len(table)).to(table), (table > 0).to(table)
    similar_pairs = sizes @ similar @ sizes
    other_pairs = (sizes.sum() ** 2 - similar_pairs).clamp(min=1)
    return similar - similar_pairs / other_pairs * (1 - similar)
