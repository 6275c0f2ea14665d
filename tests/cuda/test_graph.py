"""When work runs, when it is recorded and when it is replayed; CUDA itself is replaced by a fake."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from dish.cuda.graph import CudaGraph

GPU = torch.device("cuda", 0)


@pytest.fixture
def log(monkeypatch):
    """The calls of a fake CUDA, in order."""
    events = []

    class FakeGraph:
        def register_generator_state(self, generator):
            events.append(("generator", generator))

        def capture_begin(self, capture_error_mode):
            events.append(f"begin {capture_error_mode}")

        def capture_end(self):
            events.append("end")

        def replay(self):
            events.append("replay")

    @contextmanager
    def graph(graph):
        assert isinstance(graph, FakeGraph)
        events.append("free and begin")
        yield
        events.append("end")

    @contextmanager
    def stream(_):
        events.append("side stream")
        yield

    def make_stream():
        return SimpleNamespace(wait_stream=lambda other: None)

    for name, value in {
        "CUDAGraph": FakeGraph,
        "graph": graph,
        "device": lambda device: nullcontext(),
        "Stream": make_stream,
        "current_stream": make_stream,
        "stream": stream,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return events


def test_work_on_a_cpu_runs_on_every_call():
    counted = []
    graph = CudaGraph(torch.device("cpu"))
    for _ in range(3):
        graph(lambda: counted.append(1))
    assert len(counted) == 3
    assert graph.graph is None


def test_work_is_recorded_on_the_second_call_and_then_replayed(log):
    graph = CudaGraph(GPU)
    for _ in range(3):
        graph(lambda: log.append("work"))
    assert log == ["side stream", "work", "side stream", "begin thread_local", "work", "end", "replay", "replay"]


def test_warm_up_generator_and_free_memory(log):
    generator = torch.Generator()
    graph = CudaGraph(GPU, warm_up=3, generator=generator, free_memory=True)
    for _ in range(5):
        graph(lambda: log.append("work"))
    assert log[:6] == ["side stream", "work"] * 3
    assert log[6:] == [("generator", generator), "free and begin", "work", "end", "replay", "replay"]


def test_recording_ends_if_the_work_fails(log):
    graph = CudaGraph(GPU, warm_up=0)

    def fail():
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        graph(fail)
    assert log[-1] == "end"
