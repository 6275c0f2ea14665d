"""Steps of SGD as a CUDA graph: a small network's kernels end before the CPU has launched them one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

Batch = Any  # a dataclass with ``rows``, as ``training`` has it
WARM_UP = 3  # ordinary steps first: libraries choose their kernels then


class GraphedStep:
    """A step that is recorded once and then replayed with other rows.

    What it does may not depend on numbers that change on the CPU, and its shapes may not change.
    """

    def __init__(self, step: Callable[[Batch], Tensor], generator: torch.Generator) -> None:
        """``generator``: what the step draws from, beside torch's own."""
        self.step, self.generator, self.taken = step, generator, 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, batch: Batch) -> Tensor:
        """Take one step; its loss, to be used before the next."""
        with torch.cuda.device(batch.rows.device):  # streams and graphs are those of the device in use
            return self._take(batch)

    def _take(self, batch: Batch) -> Tensor:
        self.taken += 1
        if self.taken <= WARM_UP:
            return self._aside(batch)
        if self.graph is None:
            self.rows = batch.rows.clone()
            self.graph = torch.cuda.CUDAGraph()
            self.graph.register_generator_state(self.generator)
            with torch.cuda.graph(self.graph):
                self.loss = self.step(replace(batch, rows=self.rows))
        self.rows.copy_(batch.rows)
        self.graph.replay()
        return self.loss

    def _aside(self, batch: Batch) -> Tensor:
        """An ordinary step on another stream, as recording asks for."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            loss = self.step(batch)
        torch.cuda.current_stream().wait_stream(stream)
        return loss
