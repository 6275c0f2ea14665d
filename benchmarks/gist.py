"""Time to compute the GIST of all 60,000 CIFAR-10 images, and its l2 MAP. Writes results/gist.json.

python benchmarks/gist.py
"""

from __future__ import annotations

import time
from pathlib import Path

from sklearn.preprocessing import normalize

from dish import datasets, machine, metrics
from dish.datasets.gist import gist
from dish.experiments import bench

RESULTS = Path(__file__).parent / "results" / "gist.json"


def main() -> None:
    """Measure, print, write."""
    images = datasets.load_cifar10()
    start = time.perf_counter()
    X = normalize(gist(images.X))
    seconds = time.perf_counter() - start
    split = images.split(0)
    y = images.y
    value = metrics.l2_mean_average_precision(X[split.query], y[split.query], X[split.database], y[split.database])
    print(f"GIST of {len(X):,} images: {seconds:.1f} s; l2 MAP {value:.4f}")
    content = {"what": "GIST of CIFAR-10 (real)", "seconds": seconds, "l2_map": value, "trial": 0}
    bench.write_json(RESULTS, content | {"environment": machine.environment()})


if __name__ == "__main__":
    main()
