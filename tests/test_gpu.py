"""The same fits and scores on a GPU. Skipped where torch sees none."""

import numpy as np
import pytest
import torch

from dish import DISH, cbcd, codes, metrics
from dish.similarity import from_labels

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU on this machine")


def test_a_sweep_gives_the_same_codes():
    rng = np.random.default_rng(0)
    y, start = rng.integers(0, 7, 5001), codes.pack(rng.standard_normal((5001, 19)))
    q = torch.from_numpy(5 * rng.standard_normal((19, 5001))).float()
    on_cpu, on_gpu = cbcd.PackedColumns(start, 19), cbcd.DenseColumns(start, 19, "cuda")
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
