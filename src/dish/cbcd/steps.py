"""The inner loop of Algorithm 1 on a GPU: a step is one CUDA graph, and the host waits once per step."""

from __future__ import annotations

import math

from dish.cbcd.columns import Sweep, check_objective
from dish.cbcd.torch_columns import DeviceColumns
from dish.cuda.graph import CudaGraph
from dish.lazy import Tensor, torch
from dish.similarity import Similarity


class DeviceSteps:
    """Steps on the columns of H, one column after another, in tensors that stay where they are.

    What ``cbcd.update_column`` does, with all decisions on the device: ``_score`` scores the column b as it is, keeps
    it if it is the best so far, and looks whether it is what ``_select`` would make of it.
    """

    def __init__(self, H: DeviceColumns, S: Similarity, q: Tensor, lam: float) -> None:
        self.S, self.lam = S, lam
        self.diag = H.r * S.diag - (H.r - 1)  # Q_ii
        self.b, self.kept = torch.empty_like(H.Ht[0]), torch.empty_like(H.Ht[0])
        self.q = torch.empty_like(q[0])
        new = self.diag.new_zeros  # float64, on the device
        self.sim, self.g_kept, self.found, self.moved = new(H.n), new(()), new(6), new(())
        self.others = new(H.r)  # 1, but 0 for the column itself
        self.score, self.select = CudaGraph(H.device), CudaGraph(H.device)

    @classmethod
    def on(cls, H: DeviceColumns, S: Similarity, q: Tensor, lam: float) -> DeviceSteps:
        """Those of the sweep before, if it had the same rows: what was recorded is good for this one too."""
        steps = H.steps
        if not isinstance(steps, cls) or steps.S.diag is not S.diag or steps.lam != lam or steps.q.dtype != q.dtype:
            steps = H.steps = cls(H, S, q, lam)
        return steps

    def update_column(self, H: DeviceColumns, k: int, q: Tensor, result: Sweep, max_steps: int) -> None:
        """Steps on bit k until it stops changing. The host waits for the device once per step."""
        self._begin(H, k, q)
        for step in range(max_steps + 1):
            self.score(lambda: self._score(H))
            g, bSb, linear, worse, settled, moved = self.found.tolist()
            check_objective(k, g)
            result.steps += step > 0 and moved > 0
            if worse:  # than the column we had, which is back
                break
            result.hSh[k], result.qh[k] = bSb, linear
            result.flips += int(moved)
            if settled or step == max_steps or (step and not moved):
                break
            self.select(lambda: self._select(H))
        H.Ht[k] = self.b

    def _begin(self, H: DeviceColumns, k: int, q: Tensor) -> None:
        self.b.copy_(H.Ht[k])
        self.q.copy_(q)
        self.others.fill_(1)
        self.others[k] = 0
        self.g_kept.fill_(math.inf)
        self.moved.fill_(0)

    def _score(self, H: DeviceColumns) -> None:
        S, b = self.S, self.b
        sums, u = H.group_sums(b, S.row_group, S.n_groups), H.against(b) * self.others  # Eᵀb, H'ᵀb
        SB = S.P(S.Rt(sums))  # S b by group
        sim, qb = H.scores_of(b, u, H.r * SB, self.diag, S.row_group, self.q, self.lam, H.n)
        bSb = sums @ SB
        g = -2 * (H.r * bSb - u @ u) + qb
        worse, balanced = g > self.g_kept, sums.sum() == H.n % 2
        keep = balanced & ~worse  # a column that is not balanced is no solution to fall back to
        self.kept.copy_(torch.where(keep, b, self.kept))
        self.g_kept.copy_(torch.where(keep, g, self.g_kept))
        inside, outside = torch.where(b > 0, sim, math.inf).amin(), torch.where(b > 0, -math.inf, sim).amax()
        settled = balanced & (inside > outside)  # the largest sim are where b is +1 already
        self.sim.copy_(sim)
        self.found.copy_(torch.stack([g, bSb, qb, worse.double(), settled.double(), self.moved]))
        b.copy_(torch.where(worse, self.kept, b))

    def _select(self, H: DeviceColumns) -> None:
        column = H.largest(self.sim, (H.n + 1) // 2)
        self.moved.copy_((column != self.b).sum())
        self.b.copy_(column)
