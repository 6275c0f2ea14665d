"""MAP and fit time of DISH by number of anchors: CIFAR-10 GIST, 64 bits, 59,000 training and database rows.

    python benchmarks/anchors.py                         # 4,000 anchors, 3 trials
    python benchmarks/anchors.py --anchors 1000,4000 --trials 5

Writes benchmarks/results/anchors.json after every run, and skips the runs that it already contains.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from dish import DISH, machine, metrics
from dish.datasets import cifar10_gist
from dish.experiments import bench

RESULTS = Path(__file__).parent / "results" / "anchors.json"
BITS = 64


def measure(m: int, trial: int) -> dict[str, Any]:
    """Fit, encode and score one split."""
    data = cifar10_gist()
    split = data.split(trial)
    X, y = data.X, data.y
    start = time.perf_counter()
    hasher = DISH(BITS, n_anchors=m, random_state=trial).fit(X[split.train], y[split.train])
    seconds = time.perf_counter() - start
    q, b = hasher.transform(X[split.query]), hasher.transform(X[split.database])
    found = metrics.evaluate(q, y[split.query], b, y[split.database], n_bits=BITS)
    scores = {"map": found.map, "precision_within_2": found.precision_within_2}
    run = {"anchors": m, "trial": trial, "bits": BITS, "rows": len(split.train), **scores, "fit_s": seconds}
    return {**run, "stages_s": hasher.timings_, "load_average": os.getloadavg(), "environment": machine.environment()}


def main() -> None:
    """Do the runs that are not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--anchors", default="4000")
    parser.add_argument("--trials", type=int, default=3)
    args = parser.parse_args()
    content: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"runs": []}
    done = {(run["anchors"], run["trial"]) for run in content["runs"]}
    wanted = [(int(m), trial) for m in args.anchors.split(",") for trial in range(args.trials)]
    for m, trial in wanted:
        if (m, trial) not in done:
            run = measure(m, trial)
            content["runs"].append(run)
            bench.write_json(RESULTS, content)
            print(f"{m} anchors, trial {trial}: MAP {run['map']:.4f}, {run['fit_s']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
