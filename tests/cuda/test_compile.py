"""Compiling and launching kernels, with fakes for torch's compiler and the CUDA driver."""

import ctypes
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from dish.cbcd import cuda_sweep
from dish.cuda import compile
from dish.posterior import cuda_regression

GPU = torch.device("cuda", 0)


@pytest.fixture
def started(monkeypatch):
    """Records what is compiled and launched; ``status`` is what the driver returns."""
    said = SimpleNamespace(compiled=[], started=[], status=0)

    def compile_kernel(text, name, nvcc_options):
        said.compiled.append((text, name, nvcc_options))
        return SimpleNamespace(func=ctypes.c_void_p(7))

    def start(kind):
        return lambda *arguments: said.started.append((kind, arguments)) or said.status

    driver = SimpleNamespace(cuLaunchKernel=start("alone"), cuLaunchCooperativeKernel=start("together"))
    monkeypatch.setattr(torch.cuda, "_compile_kernel", compile_kernel, raising=False)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=5))
    monkeypatch.setattr(compile, "_driver", lambda: driver)
    compile._compiled.cache_clear()
    yield said
    compile._compiled.cache_clear()


def test_compiles_once_and_passes_arguments(started):
    given = [(ctypes.c_int(phase), ctypes.c_double(0.5)) for phase in (1, 2)]
    for arguments in given:
        compile.launch(cuda_regression.KERNEL, GPU, 3, 256, *arguments)
    ((text, name, options),) = started.compiled
    assert name == "steps"
    assert f"void __launch_bounds__(THREADS) {name}(" in text
    assert options == []
    kinds, calls = zip(*started.started, strict=True)
    assert kinds == ("alone", "alone")
    assert calls[0][1:8] == (3, 1, 1, 256, 1, 1, 0)
    places = calls[1][9]
    assert ctypes.cast(places[0], ctypes.POINTER(ctypes.c_int))[0] == 2
    assert ctypes.cast(places[1], ctypes.POINTER(ctypes.c_double))[0] == 0.5


def test_sweep_is_a_cooperative_launch_of_all_its_sources(started):
    sizes, q = cuda_sweep.Sizes(n=40, r=35, labels=6), SimpleNamespace(dtype=torch.float64, device=GPU)
    cuda_sweep._launch(sizes, cuda_sweep.Memory(), 2, q)
    ((text, name, options),) = started.compiled
    assert name == "sweep"
    assert all(source.read_text() in text for source in cuda_sweep.SOURCES)
    assert options == ["-DLINEAR=double", "--fmad=false"]
    ((kind, call),) = started.started
    assert kind == "together"
    assert call[7] == 4 * (6 + 2 * 128 + 36)


def test_failed_launch_raises(started):
    started.status = 720
    with pytest.raises(RuntimeError, match=r"did not start the kernel steps\.cu: CUDA driver error 720"):
        compile.launch(cuda_regression.KERNEL, GPU, 1, 32)


def test_cannot_compile_for_the_cpu():
    assert not compile.can_compile(torch.device("cpu"))
