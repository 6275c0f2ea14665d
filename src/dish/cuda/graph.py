"""Work on a GPU as a CUDA graph: short kernels end before the CPU has launched them one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dish.lazy import torch


class Recorded:
    """Work that always does the same to the same tensors: recorded when done for the second time, then replayed.

    What it does may depend on numbers in those tensors, on nothing else; nothing in it may wait for the device. On a
    CPU it is simply done.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.done = device, 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, work: Callable[[], None]) -> None:
        """Do it once. (It is not kept: who has it would be kept with it.)"""
        self.done += 1
        if self.device.type != "cuda":
            work()
            return
        with torch.cuda.device(self.device):  # streams and graphs are those of the device in use
            if self.done == 1:  # libraries choose their kernels and get their memory now: that cannot be recorded
                _aside(work)
                return
            if self.graph is None:
                self.graph = torch.cuda.CUDAGraph()
                _aside(lambda: _record(self.graph, work))
            self.graph.replay()


def _record(graph: Any, work: Callable[[], None]) -> None:
    """Not by ``torch.cuda.graph``, which gives all free memory back to the driver first."""
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        work()
    finally:
        graph.capture_end()


def _aside(work: Callable[[], None]) -> None:
    """On a stream of its own, as recording asks for."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
