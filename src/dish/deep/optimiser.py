"""SGD with a learning rate that rises for a tenth of the steps and then falls to zero along a cosine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn


@dataclass(frozen=True)
class Group:
    """Parameters that share a learning rate and a weight decay."""

    params: list[nn.Parameter]
    rate: float  # the maximum of the schedule
    decay: float


@dataclass(frozen=True)
class Optimiser:
    """SGD with Nesterov momentum, and its schedule."""

    sgd: torch.optim.SGD
    schedule: torch.optim.lr_scheduler.LRScheduler

    @classmethod
    def one_cycle(cls, groups: list[Group], steps: int, graph_device: torch.device | None) -> Self:
        """For this many steps. ``graph_device`` is the GPU on which steps are recorded as a CUDA graph, if any.

        Recorded steps read the learning rates from tensors on that GPU.
        """
        rates = [group.rate for group in groups]
        starts = rates if graph_device is None else [torch.tensor(rate, device=graph_device) for rate in rates]
        options = [
            {"params": group.params, "lr": start, "weight_decay": group.decay}
            for group, start in zip(groups, starts, strict=True)
        ]
        sgd = torch.optim.SGD(options, momentum=0.9, nesterov=True, fused=True if graph_device is not None else None)
        total = steps + 1
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            sgd,
            max_lr=rates,
            total_steps=total,
            pct_start=0.1 if total != 10 else 0.2,  # torch divides by zero if the rise ends with the first step
            cycle_momentum=False,
        )
        return cls(sgd, schedule)

    @property
    def params(self) -> list[nn.Parameter]:
        """All parameters that are trained."""
        return [p for group in self.sgd.param_groups for p in group["params"] if p.requires_grad]

    @property
    def rates(self) -> list[float]:
        """The current learning rate of each group."""
        return [float(group["lr"]) for group in self.sgd.param_groups]

    @property
    def momentum(self) -> list[NDArray[np.float32]]:
        """The momentum buffer of each parameter."""
        buffers = (self.sgd.state[p].get("momentum_buffer", torch.zeros_like(p)) for p in self.params)
        return [buffer.detach().cpu().numpy() for buffer in buffers]

    def resume(self, rates: list[float], momentum: list[NDArray[np.float32]], steps: int) -> None:
        """Continue from the state of an optimiser that had taken this many steps."""
        for group, rate in zip(self.sgd.param_groups, rates, strict=True):
            group["lr"] = group["lr"].fill_(rate) if isinstance(group["lr"], Tensor) else rate
        for p, m in zip(self.params, momentum, strict=True):
            self.sgd.state[p]["momentum_buffer"] = torch.tensor(m, device=p.device)
        taken = {"last_epoch": steps, "_step_count": steps + 1, "_last_lr": rates}
        self.schedule.load_state_dict({**self.schedule.state_dict(), **taken})
