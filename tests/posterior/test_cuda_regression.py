"""The CUDA kernel of the regression, compiled for the CPU, takes the same steps as the CPU."""

import ctypes

import numpy as np
import pytest
import torch

from dish.parallel import ALONE
from dish.posterior import cuda_regression, regression
from dish.similarity import from_labels
from helpers.kernels import compiled, needs_compiler

pytestmark = [pytest.mark.slow, needs_compiler]

RUN = """
extern "C" void run(Step s, int phase, int ahead, int blocks) {
    one_by_one(blocks, [=] { steps(s, phase, ahead); });
}
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    library = compiled(tmp_path_factory.mktemp("kernel"), cuda_regression.KERNEL[0], RUN, cuda_regression.THREADS)
    library.run.argtypes = [cuda_regression.Step, ctypes.c_int, ctypes.c_int, ctypes.c_int]
    return library.run


@pytest.mark.parametrize("multilabel", [False, True])
def test_fused_steps_are_the_ordinary_ones(kernel, multilabel, monkeypatch):
    rng = np.random.default_rng(0)
    n, m, labels, updates, size = 40, 6, 5, 11, 2
    y = (rng.random((n, labels)) < 0.4).astype(int) if multilabel else np.arange(n) % labels
    U = torch.from_numpy(rng.standard_normal((n, m))).float()
    rows = regression.WhitenedRows(U, torch.rand(n), from_labels(y), ALONE, n)
    order = torch.from_numpy(rng.integers(0, n, (updates, size)))
    W, b = torch.randn(m, labels), torch.randn(labels)

    def launch(source, device, blocks, threads, step, phase, ahead):
        kernel(step, phase.value, ahead.value, blocks)

    monkeypatch.setattr(cuda_regression, "launch", launch)
    monkeypatch.setattr(cuda_regression, "UPDATE_BLOCKS", 1)
    fused = cuda_regression.FusedSteps(rows, W, b, order, rate=0.5, decay=0.01, momentum=regression.MOMENTUM)
    ordinary = regression.MomentumSteps(rows, W.clone(), b.clone(), size, 0.01)
    for t, picked in enumerate(order):
        ordinary.take(picked, 0.5 * (1 - t / updates))
    found_W, found_b = fused.take()
    assert (found_W - W).abs().max() > 0.1
    torch.testing.assert_close(found_W, ordinary.W, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found_b, ordinary.b, rtol=1e-4, atol=1e-5)
