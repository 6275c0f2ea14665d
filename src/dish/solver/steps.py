"""The inner loop of Algorithm 1 on a GPU: a step is one CUDA graph, and the host waits once per step."""

from __future__ import annotations

import math

from dish.lazy import Tensor, torch
from dish.similarity import Similarity
from dish.solver.columns import Sweep
from dish.solver.device import DeviceColumns
from dish.solver.recorded import Recorded


class DeviceSteps:
    """Steps on the columns of H, one column after another, in tensors that stay where they are.

    A step scores the column b as it is, keeps it if it is the best so far, and makes the next one: what
    ``cbcd.update_column`` does, with all decisions on the device. The host reads them afterwards.
    """

    def __init__(self, H: DeviceColumns, S: Similarity, q: Tensor, lam: float) -> None:
        self.S, self.lam = S, lam
        self.diag = H.r * S.diag - (H.r - 1)  # Q_ii
        self.b, self.before, self.kept = (torch.empty_like(H.Ht[0]) for _ in range(3))
        self.q = torch.empty_like(q[0])
        self.others = torch.ones(H.r, dtype=torch.float64, device=H.device)  # 0 for the column itself
        self.g_kept = torch.full((), math.inf, dtype=torch.float64, device=H.device)
        self.found = torch.zeros(5, dtype=torch.float64, device=H.device)
        self.recorded = Recorded(H.device)

    @classmethod
    def on(cls, H: DeviceColumns, S: Similarity, q: Tensor, lam: float) -> DeviceSteps:
        """Those of the sweep before, if it had the same rows: what was recorded is good for this one too."""
        steps = H.steps
        if not isinstance(steps, cls) or steps.S.diag is not S.diag or steps.lam != lam or steps.q.dtype != q.dtype:
            steps = H.steps = cls(H, S, q, lam)
        return steps

    def update_column(self, H: DeviceColumns, k: int, q: Tensor, result: Sweep, max_steps: int) -> None:
        """Steps on bit k until it stops changing."""
        self._begin(H, k, q)
        moved = 0
        for step in range(max_steps + 1):
            self.recorded(lambda: self._step(H))
            g, bSb, linear, worse, moves = self.found.tolist()
            if not math.isfinite(g):
                raise ValueError(
                    f"bit {k}: the objective is {g}; the linear terms or the similarity hold NaN or infinity"
                )
            if worse:  # than the column we had, which is back
                break
            result.hSh[k], result.qh[k] = bSb, linear
            result.flips += moved
            if step == max_steps:
                self.b.copy_(self.before)
                break
            moved = int(moves)
            if moved == 0:
                break
            result.steps += 1
        H.Ht[k] = self.b

    def _begin(self, H: DeviceColumns, k: int, q: Tensor) -> None:
        self.b.copy_(H.Ht[k])
        self.q.copy_(q)
        self.others.fill_(1)
        self.others[k] = 0
        self.g_kept.fill_(math.inf)

    def _step(self, H: DeviceColumns) -> None:
        S, b = self.S, self.b
        sums, u = H.group_sums(b, S.row_group, S.n_groups), H.against(b) * self.others  # Eᵀb, H'ᵀb
        SB = S.P(S.Rt(sums))  # S b by group
        sim, qb = H.scores_of(b, u, H.r * SB, self.diag, S.row_group, self.q, self.lam, H.n)
        bSb = sums @ SB
        g = -2 * (H.r * bSb - u @ u) + qb
        worse, balanced = g > self.g_kept, sums.sum() == H.n % 2
        keep = balanced & ~worse  # a column that is not balanced is no solution to fall back to
        self.before.copy_(b)
        self.kept.copy_(torch.where(keep, b, self.kept))
        self.g_kept.copy_(torch.where(keep, g, self.g_kept))
        column = H.largest(sim, (H.n + 1) // 2)
        self.found.copy_(torch.stack([g, bSb, qb, worse.double(), (column != b).sum().double()]))
        b.copy_(torch.where(worse, self.kept, column))
