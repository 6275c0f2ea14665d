"""The same fits and scores on a GPU. Skipped where torch sees none."""

import numpy as np
import pytest
import torch

from dish import DISH, codes, metrics
from dish.similarity import from_labels
from dish.solver import cbcd

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU on this machine"),
]


def test_a_sweep_gives_the_same_codes():
    rng = np.random.default_rng(0)
    y, start = rng.integers(0, 7, 5001), codes.pack(rng.standard_normal((5001, 19)))
    q = torch.from_numpy(5 * rng.standard_normal((19, 5001))).float()
    on_cpu, on_gpu = cbcd.PackedColumns(start, 19), cbcd.DeviceColumns(torch.from_numpy(start).cuda(), 19)
    cbcd.sweep(on_cpu, from_labels(y), q)
    cbcd.sweep(on_gpu, from_labels(y).to(torch.device("cuda")), q.cuda())
    np.testing.assert_array_equal(on_cpu.packed(), on_gpu.packed())


def test_fit_on_the_gpu_is_as_good(digits, tmp_path):
    X, y, Xq, yq = digits
    scores = []
    for device in ("cpu", "cuda"):
        hasher = DISH(n_bits=32, n_anchors=200, device=device).fit(X, y)
        assert (np.diff(hasher.objective_) <= 0).all()
        scores.append(metrics.mean_average_precision(hasher.transform(Xq), yq, hasher.transform(X), y))
    assert scores[0] == pytest.approx(scores[1], abs=0.01)


def test_encoding_agrees(digits):
    X, y, Xq, _ = digits
    hasher = DISH(n_bits=64, n_anchors=200, device="cpu").fit(X, y)
    on_cpu = np.unpackbits(hasher.transform(Xq))
    on_gpu = np.unpackbits(hasher.set_params(device="cuda").transform(Xq))
    assert (on_cpu == on_gpu).mean() > 0.999


@pytest.mark.parametrize("multi", [False, True])
def test_histograms_are_equal(multi):
    rng = np.random.default_rng(0)
    q, b = (np.packbits(rng.random((n, 70)) < 0.5, axis=1) for n in (50, 3000))
    yq, yb = ((rng.random((n, 80)) < 0.05).astype(int) if multi else rng.integers(0, 5, n) for n in (50, 3000))
    on_cpu, on_gpu = (metrics.histograms(q, yq, b, yb, device=d) for d in ("cpu", "cuda"))
    np.testing.assert_array_equal(on_cpu.all_, on_gpu.all_)
    np.testing.assert_array_equal(on_cpu.relevant, on_gpu.relevant)


def test_large_fits_give_the_same_codes():
    """Float32 sums differ in their last digits: all but a few bits in a thousand agree, and the objective does."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 40, 90_000)
    X = (rng.standard_normal((90_000, 24)) + rng.standard_normal((40, 24))[y]).astype(np.float32)
    on_cpu = DISH(n_bits=32, n_anchors=300, device="cpu").fit(X, y)
    on_gpu = DISH(n_bits=32, n_anchors=300, device="cuda").fit(torch.from_numpy(X).cuda(), y)
    assert (np.unpackbits(on_cpu.codes_) == np.unpackbits(on_gpu.codes_)).mean() >= 0.999
    assert on_gpu.objective_[-1] == pytest.approx(on_cpu.objective_[-1], rel=1e-4)
    again = DISH(n_bits=32, n_anchors=300, device="cuda").fit(torch.from_numpy(X).cuda(), y)
    np.testing.assert_array_equal(again.codes_, on_gpu.codes_)


def test_bad_rows_on_the_gpu_are_named():
    X = torch.randn(1000, 5, device="cuda")
    X[700, 2] = torch.inf
    with pytest.raises(ValueError, match="NaN or infinity in row 700"):
        DISH(n_bits=4, n_anchors=20, device="cuda").fit(X, np.arange(1000) % 3)


def test_selection_of_many_ties():
    columns = cbcd.DeviceColumns(torch.zeros(200_000, 1, dtype=torch.uint8, device="cuda"), 1)
    for values in (torch.zeros(200_000), torch.arange(200_000) % 3, torch.randn(200_000)):
        sim = values.double().cuda()
        threshold, ties = columns.kth_largest(sim, 100_000)
        assert threshold == float(sim.sort(descending=True).values[99_999])
        assert int((columns.above(sim, threshold, ties) > 0).sum()) == 100_000
