"""Time and memory of a DISH-K fit as n doubles: 25k … 400k synthetic rows, d = 128, 100 classes, r = 64, m = 1000.

Each size runs in its own process, so that peak memory is measured separately. Writes results/scaling.json and .svg.

    python benchmarks/scaling.py
    python benchmarks/scaling.py plot       # measures nothing: draws the results again
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from dish import machine
from dish.experiments import bench, style

SIZES = (25_000, 50_000, 100_000, 200_000, 400_000)
D, N_CLASSES, R, M, N_ITER = 128, 100, 64, 1000, 5
REPEATS = 3
RESULTS = Path(__file__).parent / "results"


def one(n: int) -> dict[str, float]:
    """Fit n rows in this process; the fewest seconds, and the peak memory in addition to X, y and K."""
    from dish import DISHK

    rng = np.random.default_rng(0)
    y = rng.integers(0, N_CLASSES, n)
    centres = rng.standard_normal((N_CLASSES, D)).astype(np.float32)
    X = np.empty((n, D), np.float32)
    for start in range(0, n, 10_000):  # large temporaries would hide the peak of fit
        rows = slice(start, min(n, start + 10_000))
        X[rows] = centres[y[rows]] + 4 * rng.standard_normal((len(y[rows]), D), dtype=np.float32)
    DISHK(n_bits=R, n_anchors=M, n_iter=1).fit(X[:20_000], y[:20_000])  # compile, start thread pools
    peak = machine.PeakMemory()
    seconds = []
    for _ in range(REPEATS):
        start_time = time.perf_counter()
        hasher = DISHK(n_bits=R, n_anchors=M, n_iter=N_ITER).fit(X, y)
        seconds.append(time.perf_counter() - start_time)
    used = peak.bytes()
    K = 4 * n * M
    return {
        "n": n,
        "seconds": min(seconds),
        "n_iter_done": hasher.n_iter_,
        "peak_bytes": peak.start + used,
        "beyond_X_and_K_bytes": used - K,
        "beyond_X_and_K_bytes_a_row": (used - K) / n,
    }


def plot(rows: list[dict[str, float]], path: Path) -> None:
    """Plot time and peak memory against n on logarithmic axes, with a line proportional to n."""
    n = np.array([row["n"] for row in rows])
    figure, axes = style.panels(2, "DISH-K fit, m = 1000, r = 64: time and memory against n", columns=1)
    for axis, name, values in (
        (axes[0], "seconds", np.array([row["seconds"] for row in rows])),
        (axes[1], "peak memory, GB", np.array([row["peak_bytes"] / 1e9 for row in rows])),
    ):
        axis.loglog(n, values, label="measured", **style.style("dish_k"))
        axis.loglog(n, values[-1] * n / n[-1], "--", color=style.INK, label="proportional to n")
        axis.set_xticks(n, [f"{k // 1000}k" for k in n])
        axis.minorticks_off()
        axis.set(xlabel="rows (synthetic, d = 128)", ylabel=name)
        style.name_lines(axis, axis.lines)
    style.write(figure, path)


def main() -> None:
    """Run every size, print, write, draw."""
    rows = []
    for n in SIZES:
        done = subprocess.run([sys.executable, __file__, str(n)], capture_output=True, text=True, check=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        grown = rows[-1]["seconds"] / rows[-2]["seconds"] if len(rows) > 1 else float("nan")
        print(
            f"n = {n:>7,}: {rows[-1]['seconds']:6.2f} s (×{grown:.2f}), {rows[-1]['n_iter_done']} iterations, "
            f"{rows[-1]['beyond_X_and_K_bytes_a_row']:6.0f} bytes a row beyond X and K (bound {12 * R})",
            flush=True,
        )
    n, beyond = (np.array([row[key] for row in rows]) for key in ("n", "beyond_X_and_K_bytes"))
    slope, constant = np.polyfit(n, beyond, 1)
    print(f"beyond X and K: {slope:.0f} bytes a row (bound {12 * R}) and a constant {constant / 1e6:.0f} MB")
    setting = {
        "d": D,
        "m": M,
        "r": R,
        "n_iter": N_ITER,
        "classes": N_CLASSES,
        "synthetic": True,
        "repeats": REPEATS,
    }
    content = {"what": "fit time and memory against n", "setting": setting, "rows": rows}
    content |= {"beyond_slope_bytes_a_row": slope, "beyond_constant_bytes": constant}
    bench.write_json(RESULTS / "scaling.json", content | {"environment": machine.environment()})
    plot(rows, RESULTS / "scaling.svg")
    print(f"written: {RESULTS / 'scaling.json'} and scaling.svg")


if __name__ == "__main__":
    if sys.argv[1:] == ["plot"]:
        plot(json.loads((RESULTS / "scaling.json").read_text())["rows"], RESULTS / "scaling.svg")
    elif len(sys.argv) > 1:
        print(json.dumps(one(int(sys.argv[1]))))
    else:
        main()
