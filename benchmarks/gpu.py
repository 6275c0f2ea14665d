"""Fits on a GPU: 1.28 million rows of two shapes, from the device and from host memory; few rows; several labels.

    python benchmarks/gpu.py                      # on a machine with a GPU; writes benchmarks/results/gpu.json
    python benchmarks/gpu.py labels --profile     # one part, and what its fit launches and waits for

Rows are synthetic and made on the device. "imagenet": 1,000 classes of SyntheticImageNet, which settle after one or
two sweeps. "overlapping": 100 Gaussian classes of different sizes that overlap, which move for longer. Every fit runs
with the defaults and as the paper has it (loss="ridge", similar_weight=2.0), three times; the fastest counts.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dish import DISH, machine, metrics
from dish.experiments import bench
from scale import M, N, R, gpu_ceilings, rows_on_gpu

RESULTS = Path(__file__).parent / "results" / "gpu.json"
LOSSES: dict[str, dict[str, Any]] = {"default": {}, "paper": {"loss": "ridge", "similar_weight": 2.0}}
BARS = {"device_s": 1.0, "host_s": 2.0, "10,000 rows_s": 0.25, "multi-label 60,000 rows_s": 1.0}
REPEATS = 3
Keep = Callable[[str, dict[str, Any]], None]


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


def timed(X: torch.Tensor, y: np.ndarray, n_bits: int = R, repeats: int = REPEATS) -> dict[str, Any]:
    """Both losses: seconds of every fit, the fastest, its stages, and the MAP of its codes."""
    out = {}
    for name, params in LOSSES.items():
        runs = []
        for _ in range(repeats):
            torch.cuda.synchronize()
            start = time.perf_counter()
            hasher = DISH(n_bits=n_bits, n_anchors=M, device="cuda", **params).fit(X, y)
            torch.cuda.synchronize()
            runs.append((time.perf_counter() - start, hasher.timings_, hasher.n_iter_))
        seconds, stages, n_iter = min(runs, key=lambda run: run[0])
        out[name] = {"s": seconds, "all_s": [run[0] for run in runs], "n_iter": n_iter, "stages_s": stages}
        out[name]["map"] = score(hasher, X, y)
        shown = {stage: round(s, 4) for stage, s in stages.items()}
        print(
            f"{len(X):,} rows on {X.device.type}, {name}: {seconds:.3f} s, sweeps {n_iter}, "
            f"map {out[name]['map']:.4f}, {shown}",
            flush=True,
        )
    return out


def score(hasher: DISH, X: torch.Tensor, y: np.ndarray) -> float:
    """MAP of 500 rows against 9,500 others, all of them trained on: that it was not fast for nothing."""
    codes = hasher.transform(X[:10_000].cpu())
    return metrics.mean_average_precision(codes[:500], y[:500], codes[500:], y[500:10_000], device="cuda")


def profiled(X: torch.Tensor, y: np.ndarray, n_bits: int = R) -> None:
    """What a fit with the defaults launches and waits for, by number of calls."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        DISH(n_bits=n_bits, n_anchors=M, device="cuda").fit(X, y)
        torch.cuda.synchronize()
    calls = profiler.key_averages()
    for key in ("count", "self_cpu_time_total", "self_device_time_total"):
        print(calls.table(sort_by=key, row_limit=14, max_name_column_width=44), flush=True)


def labels(keep: Keep, profile: bool) -> None:
    """Several labels per row."""
    X, Y = several_labels(60_000)
    timed(X[:40_000], Y[:40_000], 64, 1)  # libraries load, kernels compile
    keep("multi-label 60,000 rows", timed(X, Y, 64))
    if profile:
        profiled(X, Y, 64)


def rows(name: str, make: Callable[[], tuple[torch.Tensor, np.ndarray]], keep: Keep, profile: bool) -> None:
    """One label per row: few rows, all rows from the device, all rows from host memory."""
    X, y = make()
    timed(X[:20_000], y[:20_000], repeats=1)
    keep(f"{name}, 10,000 rows", timed(X[:10_000], y[:10_000]))
    keep(f"{name}, device", timed(X, y))
    if profile:
        profiled(X[:10_000], y[:10_000])
        profiled(X, y)
    host = X.cpu()
    del X
    torch.cuda.empty_cache()
    keep(f"{name}, host", timed(host, y, repeats=2))


PARTS: dict[str, Callable[[Keep, bool], None]] = {
    "labels": labels,
    "imagenet": lambda keep, profile: rows("imagenet", rows_on_gpu, keep, profile),
    "overlapping": lambda keep, profile: rows("overlapping", lambda: overlapping(N), keep, profile),
}


def main() -> None:
    """Measure, print, write after every part: a machine may be taken away."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)}; none: all")
    parser.add_argument("--profile", action="store_true", help="print what fits launch and wait for")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    content: dict[str, Any] = {"what": "fits on a GPU", "data": "synthetic", "d": 4096, "m": M, "r": R, "bars": BARS}
    gemm, copy = gpu_ceilings()
    content |= {"gemm_flops": gemm, "copy_bytes_s": copy, "load_average": os.getloadavg()}
    content |= {"environment": machine.environment(), "fits": {}}

    def keep(name: str, found: dict[str, Any]) -> None:
        content["fits"][name] = found
        bench.write_json(given.out, content)

    for part in given.parts or PARTS:
        PARTS[part](keep, given.profile)
    print(f"written: {given.out}")


if __name__ == "__main__":
    main()
