"""The plot of benchmarks/scale.py."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np


def plot(results: Path) -> None:
    """Plot seconds and memory against n on logarithmic axes, with the slope at the last points."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for name, label, memory in (("gpu", "one H200", "gpu_bytes"), ("cpu", "two cores, from a file", "peak_bytes")):
        rows = json.loads((results / f"scale_{name}.json").read_text())["sizes"]
        n = np.array([row["n"] for row in rows])
        for axis, values in (
            (axes[0], np.array([row["seconds"] for row in rows])),
            (axes[1], np.array([row[memory] / 1e9 for row in rows])),
        ):
            slope = np.polyfit(np.log(n), np.log(values), 1)[0]
            (line,) = axis.loglog(n, values, "o-", label=f"{label} (slope {slope:.2f})")
            axis.loglog(n, values[-1] * n / n[-1], ":", color=line.get_color(), alpha=0.6)
    axes[0].set(ylabel="seconds", xlabel="rows (synthetic, d = 4096)")
    axes[1].set(ylabel="memory, GB", xlabel="rows (synthetic, d = 4096)")
    for axis in axes:
        axis.grid(True, which="both", alpha=0.3)
        axis.legend(loc="lower right", fontsize="small")
    figure.suptitle("DISH fit, m = 1000, r = 128; dotted: proportional to n")
    figure.savefig(results / "scale.png", dpi=150)
