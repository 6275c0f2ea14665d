"""Repeated work as a CUDA graph: one replay replaces many kernel launches, which take the CPU longer than the GPU."""

from __future__ import annotations

from collections.abc import Callable

from dish.lazy import torch


class CudaGraph:
    """Runs the same work again and again. On a GPU it is recorded after the warm-up calls and then replayed.

    The work must apply the same operations to the same tensors every time. It may depend on the values in those
    tensors, but on nothing that changes on the CPU, and it may not wait for the device. On a CPU it simply runs.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        warm_up: int = 1,
        generator: torch.Generator | None = None,
        free_memory: bool = False,
    ) -> None:
        """Prepare to record.

        ``warm_up`` calls run without recording: libraries choose kernels and allocate memory then, which cannot be
        recorded. ``generator`` is one that the work draws from, other than torch's default. ``free_memory`` returns
        cached memory to the driver before recording: needed for large graphs, too slow for small ones.
        """
        self.device, self.warm_up, self.generator, self.free_memory = device, warm_up, generator, free_memory
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, work: Callable[[], None]) -> None:
        """Run ``work`` once. It is not stored, so the graph keeps nothing alive that ``work`` refers to."""
        self.calls += 1
        if self.device.type != "cuda":
            work()
            return
        with torch.cuda.device(self.device):  # streams and graphs belong to the current device
            if self.calls <= self.warm_up:
                _on_side_stream(work)
                return
            if self.graph is None:
                self._record(work)
            assert self.graph is not None
            self.graph.replay()

    def _record(self, work: Callable[[], None]) -> None:
        self.graph = torch.cuda.CUDAGraph()
        if self.generator is not None:
            self.graph.register_generator_state(self.generator)
        if self.free_memory:
            with torch.cuda.graph(self.graph):  # frees cached memory first
                work()
        else:
            _on_side_stream(lambda: self._capture(work))

    def _capture(self, work: Callable[[], None]) -> None:
        assert self.graph is not None
        self.graph.capture_begin(capture_error_mode="thread_local")
        try:
            work()
        finally:
            self.graph.capture_end()


def _on_side_stream(work: Callable[[], None]) -> None:
    """Run ``work`` on a stream of its own: recording is not allowed on the default stream."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
