"""Fits on a GPU: 1.28 million rows of two shapes, from the device and from host memory; few rows; several labels.

    python benchmarks/gpu.py          # on a machine with a GPU; writes benchmarks/results/gpu.json

Rows are synthetic and made on the device. "imagenet": 1,000 classes of SyntheticImageNet, which settle after one or
two sweeps. "overlapping": 100 Gaussian classes of different sizes that overlap, which move for longer. Every fit runs
with the defaults and as the paper has it (loss="ridge", similar_weight=2.0), three times; the fastest counts.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dish import DISH, machine
from dish.experiments import bench
from scale import M, N, R, gpu_ceilings, rows_on_gpu

RESULTS = Path(__file__).parent / "results" / "gpu.json"
LOSSES: dict[str, dict[str, Any]] = {"default": {}, "paper": {"loss": "ridge", "similar_weight": 2.0}}
BARS = {"device_s": 1.0, "host_s": 2.0, "10,000 rows_s": 0.25, "multi-label 60,000 rows_s": 1.0}
REPEATS = 3


def overlapping(n: int, d: int = 4096, classes: int = 100, seed: int = 1) -> tuple[torch.Tensor, np.ndarray]:
    """Gaussian classes on the sphere, the largest with some thirty times the rows of the smallest."""
    draw = torch.Generator(device="cuda").manual_seed(seed)
    share = torch.arange(1, classes + 1, device="cuda", dtype=torch.float32) ** -0.75
    y = torch.multinomial(share, n, replacement=True, generator=draw)
    centres = 0.25 * torch.randn(classes, d, device="cuda", generator=draw)
    X = torch.randn(n, d, device="cuda", generator=draw)
    for rows in torch.arange(n, device="cuda").split(1 << 16):
        X[rows] = torch.nn.functional.normalize(X[rows] + centres[y[rows]])
    return X, y.cpu().numpy()


def several_labels(n: int, sets: int = 15_000, labels: int = 80, seed: int = 2) -> tuple[torch.Tensor, np.ndarray]:
    """Rows with one of so many sets of a few labels each; a row is the sum of its labels' centres and noise."""
    rng = np.random.default_rng(seed)
    Y = (rng.random((sets, labels)) < 4 / labels).astype(np.uint8)[np.arange(n) % sets]
    draw = torch.Generator(device="cuda").manual_seed(seed)
    centres = 0.25 * torch.randn(labels, 512, device="cuda", generator=draw)
    X = torch.from_numpy(Y).cuda().float() @ centres + torch.randn(n, 512, device="cuda", generator=draw)
    return X, Y


def timed(X: torch.Tensor, y: np.ndarray, n_bits: int = R) -> dict[str, Any]:
    """Both losses: seconds of every fit, the fastest, and its stages."""
    out = {}
    for name, params in LOSSES.items():
        runs = []
        for _ in range(REPEATS):
            torch.cuda.synchronize()
            start = time.perf_counter()
            hasher = DISH(n_bits=n_bits, n_anchors=M, device="cuda", **params).fit(X, y)
            torch.cuda.synchronize()
            runs.append((time.perf_counter() - start, hasher.timings_, hasher.n_iter_))
        seconds, stages, n_iter = min(runs, key=lambda run: run[0])
        out[name] = {"s": seconds, "all_s": [run[0] for run in runs], "n_iter": n_iter, "stages_s": stages}
        print(f"{len(X):,} rows on {X.device.type}, {name}: {seconds:.3f} s, {out[name]}", flush=True)
    return out


def main() -> None:
    """Measure, print, write after every part: a machine may be taken away."""
    content: dict[str, Any] = {"what": "fits on a GPU", "d": 4096, "m": M, "r": R, "bars": BARS}
    gemm, copy = gpu_ceilings()
    content |= {"gemm_flops": gemm, "copy_bytes_s": copy, "load_average": os.getloadavg()}
    content |= {"environment": machine.environment(), "fits": {}}

    def keep(name: str, found: dict[str, Any]) -> None:
        content["fits"][name] = found
        bench.write_json(RESULTS, content)

    X, Y = several_labels(60_000)
    timed(X[:20_000], Y[:20_000], 64)  # libraries load, kernels compile
    keep("multi-label 60,000 rows", timed(X, Y, 64))
    for name, make in (("imagenet", rows_on_gpu), ("overlapping", lambda: overlapping(N))):
        X, y = make()
        keep(f"{name}, 10,000 rows", timed(X[:10_000], y[:10_000]))
        keep(f"{name}, device", timed(X, y))
        host = X.cpu()
        del X
        torch.cuda.empty_cache()
        keep(f"{name}, host", timed(host, y))
        del host
    print(f"written: {RESULTS}")


if __name__ == "__main__":
    main()
