"""Fits on a GPU: 1.28 million rows of two kinds, from the device and from host memory; few rows; multi-label rows.

    python benchmarks/gpu.py                          # on a machine with a GPU; writes benchmarks/results/gpu.json
    python benchmarks/gpu.py labels --out try.json    # one part; without a GPU, a few rows as a check
    python benchmarks/gpu.py --page                   # rewrites the tables of docs/scale-results.md

Rows are synthetic and made on the device. "imagenet": 1,000 classes of SyntheticImageNet, which settle after one or
two sweeps. "overlapping": 100 Gaussian classes of different sizes that overlap, which move for longer. Every fit runs
by DISH ("default") and by DISH-K ("paper"), three times, from host memory twice; the fastest counts.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pages
from dish import DISH, DISHK, machine, metrics
from dish.experiments import bench
from scale import M, N, R, gpu_ceilings, rows_on_gpu

RESULTS = Path(__file__).parent / "results" / "gpu.json"
METHODS: dict[str, Any] = {"default": DISH, "paper": DISHK}
BARS = {"device_s": 1.0, "host_s": 2.0, "10,000 rows_s": 0.25, "multi-label 60,000 rows_s": 1.0}
REPEATS = 3
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Keep = Callable[[str, dict[str, Any]], None]


def overlapping(n: int, d: int = 4096, classes: int = 100, seed: int = 1) -> tuple[torch.Tensor, np.ndarray]:
    """Gaussian classes on the sphere; the largest has about thirty times as many rows as the smallest."""
    draw = torch.Generator(device=DEVICE).manual_seed(seed)
    share = torch.arange(1, classes + 1, device=DEVICE, dtype=torch.float32) ** -0.75
    y = torch.multinomial(share, n, replacement=True, generator=draw)
    centres = 0.25 * torch.randn(classes, d, device=DEVICE, generator=draw)
    X = torch.randn(n, d, device=DEVICE, generator=draw)
    for rows in torch.arange(n, device=DEVICE).split(1 << 16):
        X[rows] = torch.nn.functional.normalize(X[rows] + centres[y[rows]])
    return X, y.cpu().numpy()


def several_labels(n: int, sets: int = 15_000, labels: int = 80, seed: int = 2) -> tuple[torch.Tensor, np.ndarray]:
    """Multi-label rows with ``sets`` different label sets. A row is the sum of its labels' centres, plus noise."""
    rng = np.random.default_rng(seed)
    Y = (rng.random((sets, labels)) < 4 / labels).astype(np.uint8)[np.arange(n) % sets]
    draw = torch.Generator(device=DEVICE).manual_seed(seed)
    centres = 0.25 * torch.randn(labels, 512, device=DEVICE, generator=draw)
    noise = torch.randn(n, 512, device=DEVICE, generator=draw)
    return torch.from_numpy(Y).to(DEVICE).float() @ centres + noise, Y


def timed(name: str, X: torch.Tensor, y: np.ndarray, n_bits: int = R, repeats: int = REPEATS) -> dict[str, Any]:
    """Both methods: seconds of every fit, the fastest, its stages, and the MAP of its codes."""
    out = {}
    for method, kind in METHODS.items():
        runs = []
        for _ in range(repeats):
            synchronize()
            start = time.perf_counter()
            hasher = kind(n_bits=n_bits, n_anchors=M, device=DEVICE).fit(X, y)
            synchronize()
            runs.append((time.perf_counter() - start, hasher.timings_, hasher.n_iter_))
        seconds, stages, n_iter = min(runs, key=lambda run: run[0])
        out[method] = {"s": seconds, "all_s": [run[0] for run in runs], "n_iter": n_iter, "stages_s": stages}
        out[method]["map"] = score(hasher, X, y)
        shown = {stage: round(s, 4) for stage, s in stages.items()}
        print(
            f"{name}, {method}: {seconds:.3f} s, sweeps {n_iter}, MAP {out[method]['map']:.4f}, {shown}", flush=True
        )
    return out


def score(hasher: Any, X: torch.Tensor, y: np.ndarray) -> float:
    """MAP of 500 training rows against 4,500 others, as a check of the result."""
    codes, y = hasher.transform(X[:5_000].cpu()), y[:5_000]
    counts = metrics.histograms(codes[:500], y[:500], codes[500:], y[500:], hasher.n_bits, DEVICE)
    return float(metrics.expected_average_precision(counts).mean())


def synchronize() -> None:
    """Wait for the device."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def labels(keep: Keep, share: float) -> None:
    """Several labels per row."""
    n = int(60_000 * share)
    X, Y = several_labels(n)
    timed("several labels, first fit", X[: n // 2], Y[: n // 2], 64, 1)  # libraries load
    keep("multi-label 60,000 rows", timed("several labels", X, Y, 64))


def one_label(name: str, make: Callable[[], tuple[torch.Tensor, np.ndarray]]) -> Callable[[Keep, float], None]:
    """One label per row: few rows, all rows from the device, all rows from host memory."""

    def measure(keep: Keep, share: float) -> None:
        X, y = make()
        X, y, few = X[: int(share * N)], y[: int(share * N)], int(10_000 * max(share, 0.2))
        timed(f"{name}, first fit", X[: 2 * few], y[: 2 * few], repeats=1)
        keep(f"{name}, 10,000 rows", timed(f"{name}, few rows", X[:few], y[:few]))
        keep(f"{name}, device", timed(f"{name}, device", X, y))
        host = X.cpu()
        del X
        keep(f"{name}, host", timed(f"{name}, host", host, y, repeats=2))

    return measure


PARTS: dict[str, Callable[[Keep, float], None]] = {
    "labels": labels,
    "imagenet": one_label("imagenet", lambda: rows_on_gpu() if DEVICE == "cuda" else overlapping(4000, classes=900)),
    "overlapping": one_label("overlapping", lambda: overlapping(N if DEVICE == "cuda" else 4000)),
}


# --- the page ---

ONE_LABEL = [f"{data}, {what}" for data in ("imagenet", "overlapping") for what in ("10,000 rows", "device", "host")]
NAMES = ("multi-label 60,000 rows", *ONE_LABEL)


def table(content: dict[str, Any]) -> str:
    """Seconds of all fits with their limits, and the stages of DISH."""
    fits = content["fits"]
    lines = ["| fit, s | `DISH` | `DISHK` | limit |", "|---|---:|---:|---:|"]
    for name in NAMES:
        bar = content["bars"][f"{name.split(', ')[-1]}_s" if name != NAMES[0] else f"{name}_s"]
        found = [fits[name][method]["s"] if name in fits else None for method in METHODS]
        cells = ["not measured" if s is None else f"{s:.2f}" + (" (missed)" if s > bar else "") for s in found]
        lines.append(f"| {name} | {' | '.join(cells)} | {bar:g} |")
    shown = [name for name in NAMES if name in fits]
    stages = {stage: None for name in shown for stage in fits[name]["default"]["stages_s"]}
    lines += ["", f"| stage of `DISH`, s | {' | '.join(shown)} |", "|---|" + "---:|" * len(shown)]
    for stage in stages:
        found = [fits[name]["default"]["stages_s"].get(stage) for name in shown]
        lines.append(f"| {stage} | {' | '.join('–' if s is None else f'{s:.3f}' for s in found)} |")
    return "\n".join(lines)


def write_page() -> None:
    """Write the tables of the committed results into the page, between its markers."""
    pages.write("gpu", table(json.loads(RESULTS.read_text())))


def main() -> None:
    """Measure and print. Results are written after every part, in case the machine is lost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)}; none: all")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--page", action="store_true", help="measure nothing: rewrite the tables of docs/scale.md")
    given = parser.parse_args()
    if given.page:
        return write_page()
    content: dict[str, Any] = {"what": "fits on a GPU", "data": "synthetic", "d": 4096, "m": M, "r": R, "bars": BARS}
    content |= {"load_average": os.getloadavg(), "environment": machine.environment(), "fits": {}}
    if DEVICE == "cuda":
        content |= dict(zip(("gemm_flops", "copy_bytes_s"), gpu_ceilings(), strict=True))

    def keep(name: str, found: dict[str, Any]) -> None:
        content["fits"][name] = found
        bench.write_json(given.out, content)

    failed = []
    for part in given.parts or PARTS:
        try:
            PARTS[part](keep, 1.0 if DEVICE == "cuda" else 0.05)
        except Exception:  # continue with the other parts
            traceback.print_exc()
            failed.append(part)
    print(f"written: {given.out}" + (f"; failed: {', '.join(failed)}" if failed else ""), flush=True)
    sys.exit(len(failed))


if __name__ == "__main__":
    main()
