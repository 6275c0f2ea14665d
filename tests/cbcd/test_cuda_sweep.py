"""The sweep kernel of the GPU, compiled for the CPU from the same source, with threads in place of CUDA's."""

import ctypes

import numpy as np
import pytest
import torch

from dish import cbcd, codes
from dish.cbcd import Sweep, cuda_sweep
from dish.similarity import from_labels
from helpers.kernels import compiled, needs_compiler

pytestmark = [pytest.mark.slow, needs_compiler]

RUN = """
extern "C" void run(Sizes k, Memory m, int blocks) {
    together(blocks, sizeof(Shared) + 4 * (k.labels + 128 * ((k.r + 31) / 32) + k.r + 1), [=] { sweep(k, m); });
}
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    library = compiled(tmp_path_factory.mktemp("kernel"), cuda_sweep.SOURCES, RUN, 64)
    library.run.argtypes = [cuda_sweep.Sizes, cuda_sweep.Memory, ctypes.c_int]
    return lambda sizes, memory, blocks, q: library.run(sizes, memory, blocks)


RNG = np.random.default_rng(0)
CASES = {
    "classes": (RNG.integers(0, 4, 97), {"sweeps": 2}),
    "a weight, λ, few steps": (RNG.integers(0, 7, 130), {"w": 3.3, "lam": 7.0, "steps": 2}),
    "sets of labels": ((RNG.random((100, 6)) < 0.3).astype(int), {}),
    "ties": (RNG.integers(0, 3, 97), {"scale": 0.0, "steps": 3}),
}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.long) if case in ("classes", "ties", "sets of labels") else case
        for case in CASES
    ],
)
def test_kernel_takes_the_same_steps_as_the_cpu(kernel, case, monkeypatch):
    monkeypatch.setattr(cuda_sweep, "THREADS", 64)
    y, how = CASES[case]
    n, r, steps = len(y), 3, how.get("steps", 20)
    start = codes.pack(RNG.standard_normal((n, r)))
    q = torch.from_numpy(how.get("scale", 5.0) * RNG.standard_normal((r, n))).float()
    S = from_labels(y, similar_weight=how.get("w", 2.0))
    on_cpu, on_gpu = cbcd.PackedColumns(start, r), cbcd.TorchColumns(torch.from_numpy(start), r)
    on_gpu.Ht = on_gpu.Ht.bfloat16()
    sweep = cuda_sweep.CudaSweep(on_gpu, S, 2)
    for _ in range(how.get("sweeps", 1)):
        expected = cbcd.sweep(on_cpu, S, q, lam=how.get("lam", 0.0), max_steps=steps)
        found = Sweep(np.zeros(r), np.zeros(r), np.zeros((r, r)))
        sweep(on_gpu, q, how.get("lam", 0.0), steps, found, kernel)
        np.testing.assert_array_equal(on_gpu.packed(), on_cpu.packed())
        assert (found.steps, found.flips) == (expected.steps, expected.flips)
        np.testing.assert_allclose(found.hSh, expected.hSh, rtol=1e-12)
        np.testing.assert_allclose(found.qh, expected.qh, rtol=1e-9, atol=1e-9)


def test_kernel_names_the_bit_that_is_not_finite(kernel, monkeypatch):
    monkeypatch.setattr(cuda_sweep, "THREADS", 64)
    H = cbcd.TorchColumns(torch.from_numpy(codes.pack(RNG.standard_normal((70, 3)))), 3)
    H.Ht, q = H.Ht.bfloat16(), torch.zeros(3, 70)
    q[1, 5] = torch.nan
    sweep = cuda_sweep.CudaSweep(H, from_labels(RNG.integers(0, 3, 70)), 2)
    with pytest.raises(ValueError, match="bit 1: the objective is nan"):
        sweep(H, q, 0.0, 20, Sweep(np.zeros(3), np.zeros(3), np.zeros((3, 3))), kernel)
