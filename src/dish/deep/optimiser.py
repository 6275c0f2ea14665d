"""SGD and its schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn


@dataclass(frozen=True)
class Group:
    """Parameters that learn at one rate."""

    params: list[nn.Parameter]
    rate: float  # the highest of the schedule
    decay: float


@dataclass(frozen=True)
class Optimiser:
    """SGD and its schedule: the rate rises for a tenth of the steps, then falls to nothing along a cosine."""

    sgd: torch.optim.SGD
    schedule: torch.optim.lr_scheduler.LRScheduler

    @classmethod
    def one_cycle(cls, groups: list[Group], steps: int, recorded_on: torch.device | None) -> Self:
        """For so many steps; ``recorded_on``: the GPU they are recorded on, if any, on which the rates must lie."""
        rates = [group.rate for group in groups]
        starts = rates if recorded_on is None else [torch.tensor(rate, device=recorded_on) for rate in rates]
        of_sgd = [
            {"params": group.params, "lr": start, "weight_decay": group.decay}
            for group, start in zip(groups, starts, strict=True)
        ]
        sgd = torch.optim.SGD(of_sgd, momentum=0.9, nesterov=True, fused=True if recorded_on is not None else None)
        total = steps + 1
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            sgd,
            max_lr=rates,
            total_steps=total,
            pct_start=0.1 if total != 10 else 0.2,  # torch divides by zero where the rise ends with the first step
            cycle_momentum=False,
        )
        return cls(sgd, schedule)

    @property
    def params(self) -> list[nn.Parameter]:
        """All that is learned."""
        return [p for group in self.sgd.param_groups for p in group["params"] if p.requires_grad]

    @property
    def rates(self) -> list[float]:
        """The present rate of each group of parameters."""
        return [float(group["lr"]) for group in self.sgd.param_groups]

    @property
    def momentum(self) -> list[NDArray[np.float32]]:
        """The running mean of each parameter's gradient."""
        buffers = (self.sgd.state[p].get("momentum_buffer", torch.zeros_like(p)) for p in self.params)
        return [buffer.detach().cpu().numpy() for buffer in buffers]

    def resume(self, rates: list[float], momentum: list[NDArray[np.float32]], steps: int) -> None:
        """Go on as an optimiser that took so many steps left off."""
        for group, rate in zip(self.sgd.param_groups, rates, strict=True):
            group["lr"] = group["lr"].fill_(rate) if isinstance(group["lr"], Tensor) else rate
        for p, m in zip(self.params, momentum, strict=True):
            self.sgd.state[p]["momentum_buffer"] = torch.tensor(m, device=p.device)
        taken = {"last_epoch": steps, "_step_count": steps + 1, "_last_lr": rates}
        self.schedule.load_state_dict({**self.schedule.state_dict(), **taken})
