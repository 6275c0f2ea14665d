"""The plot of benchmarks/scale.py."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from dish.experiments import style


def plot(results: Path) -> None:
    """Plot seconds and memory against n on logarithmic axes, with the slope at the last points."""
    figure, axes = style.panels(2, "DISH-K fit, m = 1000, r = 128; dotted: proportional to n", 3.2, columns=1)
    devices = (("gpu", "one H200", "gpu_bytes", 0), ("cpu", "two cores, from a file", "peak_bytes", 1))
    for name, label, memory, variant in devices:
        rows = json.loads((results / f"scale_{name}.json").read_text())["sizes"]
        n = np.array([row["n"] for row in rows])
        for axis, values in (
            (axes[0], np.array([row["seconds"] for row in rows])),
            (axes[1], np.array([row[memory] / 1e9 for row in rows])),
        ):
            slope = np.polyfit(np.log(n), np.log(values), 1)[0]
            look = style.style("dish_k", variant)
            axis.loglog(n, values, label=f"{label} (slope {slope:.2f})", **look)
            axis.loglog(n, values[-1] * n / n[-1], ":", color=look["color"], alpha=0.6, label="_")
    axes[0].set(ylabel="seconds", xlabel="rows (synthetic, d = 4096)")
    axes[1].set(ylabel="memory, GB", xlabel="rows (synthetic, d = 4096)")
    for axis in axes:
        style.name_lines(axis, axis.lines[::2])
    style.write(figure, results / "scale.svg")
