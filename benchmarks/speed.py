"""Fit time of DISH-K relative to its own matrix products, by stage.

59,000 × 512 synthetic float32 rows in 10 overlapping classes (the size of CIFAR-10 with GIST), m = 1000 anchors,
r = 64 bits, 5 iterations. The lower bound is the time of those products that no implementation can avoid: the RBF
product (n×d×m), KᵀK (n×m×m) and 2·n_iter + 1 products n×m×r, each as one torch product, the fastest of five.

    python benchmarks/speed.py            # writes benchmarks/results/speed.json
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from dish import DISHK, machine
from dish.experiments import bench

N, D, M, R, N_ITER, N_CLASSES, SEED = 59_000, 512, 1000, 64, 5, 10, 0
RESULTS = Path(__file__).parent / "results" / "speed.json"


def data() -> tuple[np.ndarray, np.ndarray]:
    """Overlapping Gaussian classes on the sphere; synthetic, for timing only."""
    rng = np.random.default_rng(SEED)
    y = rng.integers(0, N_CLASSES, N)
    X = rng.standard_normal((N, D)) + 0.4 * rng.standard_normal((N_CLASSES, D))[y]
    return (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32), y


def best(product, repeats: int = 5) -> float:
    """Seconds of the fastest run, after a warm-up run."""
    product()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        product()
        times.append(time.perf_counter() - start)
    return min(times)


def floor(X: np.ndarray, kept: int) -> dict[str, float]:
    """Seconds of the matrix products alone. One more sweep than those kept may have been computed."""
    sweeps = min(kept + 1, N_ITER)
    rows, A = torch.from_numpy(X), torch.from_numpy(X[:M].copy())
    K, W = torch.empty(N, M), torch.randn(M, R)
    H = torch.randn(N, R)
    return {
        "RBF product": best(lambda: torch.mm(rows, A.T, out=K)),
        "KᵀK": best(lambda: K.T @ K),
        f"{sweeps} × KW": sweeps * best(lambda: K @ W),
        f"{kept} × KᵀH": kept * best(lambda: K.T @ H),
    }


def main() -> None:
    """Measure, print, write."""
    X, y = data()
    DISHK(n_bits=R, n_anchors=50, n_iter=1).fit(X[:20_000], y[:20_000])  # compile the kernels
    runs = []
    for _ in range(5):
        start = time.perf_counter()
        hasher = DISHK(n_bits=R, n_anchors=M, n_iter=N_ITER, random_state=SEED).fit(X, y)
        runs.append((time.perf_counter() - start, hasher.timings_))
    seconds, stages = min(runs, key=lambda run: run[0])
    products = floor(X, hasher.n_iter_)
    stages["checks and the rest"] = seconds - sum(stages.values())
    ratio = seconds / sum(products.values())

    table = Table(title=f"DISH-K fit, synthetic {N:,} × {D}, m = {M}, r = {R}, {hasher.n_iter_} iterations")
    for name in ("stage", "seconds", "share"):
        table.add_column(name, justify="left" if name == "stage" else "right")
    for name, value in stages.items():
        table.add_row(name, f"{value:.3f}", f"{value / seconds:.0%}")
    table.add_row("fit", f"{seconds:.3f}", "", end_section=True)
    for name, value in products.items():
        table.add_row(name, f"{value:.3f}", "")
    table.add_row("floor: products alone", f"{sum(products.values()):.3f}", "", end_section=True)
    table.add_row("fit / floor", f"{ratio:.2f}", "")
    Console().print(table)
    setting = {
        "n": N,
        "d": D,
        "m": M,
        "r": R,
        "n_iter": N_ITER,
        "classes": N_CLASSES,
        "seed": SEED,
        "synthetic": True,
    }
    bench.write_json(
        RESULTS,
        {
            "what": "fit time over the time of its own matrix products",
            "setting": setting,
            "fit_s": seconds,
            "fit_all_s": [run[0] for run in runs],
            "stages_s": stages,
            "n_iter_done": hasher.n_iter_,
            "floor_s": products,
            "ratio": ratio,
            "environment": machine.environment(),
        },
    )
    print(f"written: {RESULTS}")


if __name__ == "__main__":
    main()
