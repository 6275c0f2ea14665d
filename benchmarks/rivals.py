"""Fit times of DISH-K, DISH and their nearest rivals, measured in turn in one process: results/rivals.json.

Runs of a table may be hours apart, and the load of the machine changes. Here every round times each method once, on
CIFAR-10 GIST at 64 bits. The result is the median of all rounds but the first, which compiles.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from dish import machine
from dish.experiments import bench
from dish.experiments.bench import Run

ROUNDS = 6
METHODS = ("dish_k", "dish", "sdh", "fasth", "cosdish")


def main() -> None:
    """Time, print, write."""
    data = bench.load_data("cifar10_gist")
    results = {}
    for n_train in (5000, None):
        split = data.split(0, n_train)
        X, y = bench.prepared(data, split.train), data.y[split.train]
        seconds: dict[str, list[float]] = {name: [] for name in METHODS}
        for _ in range(ROUNDS):
            for name in METHODS:
                start = time.perf_counter()
                bench.make_method(Run("cifar10_gist", name, 64)).fit(X, y)
                seconds[name].append(time.perf_counter() - start)
        medians = {name: statistics.median(all_[1:]) for name, all_ in seconds.items()}
        results[str(len(X))] = {"median_s": medians, "seconds": seconds}
        print(len(X), {name: round(value, 2) for name, value in medians.items()})
    content = {"what": "fit, 64 bits, CIFAR-10 GIST", "results": results, "environment": machine.environment()}
    bench.write_json(Path(__file__).parent / "results" / "rivals.json", content)


if __name__ == "__main__":
    main()
