"""DISH, DISH-K with two similarities S, LSH and l2 distance on real multi-label features.

Each argument is a .npz with X (n, d) and Y (n, l) of 0/1. Every trial has 2,000 random queries; the other rows are
both database and training set. Writes benchmarks/results/multilabel.json.

    python benchmarks/multilabel.py mirflickr.npz corel16k.npz
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.preprocessing import normalize

from dish import DISH, DISHK, datasets, machine, metrics
from dish.baselines.lsh import LSH
from dish.experiments import bench

BITS, TRIALS, N_QUERIES, CUT = (16, 32, 64, 96), 3, 2000, 5000
RESULTS = Path(__file__).parent / "results" / "multilabel.json"
METHODS = {
    "DISH": lambda r, seed: DISH(r, random_state=seed),
    "DISH-K, 2YYᵀ − 1": lambda r, seed: DISHK(r, random_state=seed, multilabel="count"),
    "DISH-K, share one": lambda r, seed: DISHK(r, random_state=seed, multilabel="share_one"),
    "LSH": lambda r, seed: LSH(r, random_state=seed),
}


def trial(data: datasets.Dataset, seed: int) -> list[dict[str, object]]:
    """Score every method and code length on one random split."""
    order = np.random.default_rng(seed).permutation(len(data))
    query, base = order[:N_QUERIES], order[N_QUERIES:]
    X, Y = normalize(data.rows()), np.asarray(data.y)
    scores = {"map": metrics.l2_mean_average_precision(X[query], Y[query], X[base], Y[base])}
    scores["map@5000"] = metrics.l2_mean_average_precision(X[query], Y[query], X[base], Y[base], k=CUT)
    found: list[dict[str, object]] = [{"method": "l2 distance", "bits": None, "trial": seed, **scores}]
    for name, make in METHODS.items():
        for r in BITS:
            start = time.perf_counter()
            hasher = make(r, seed).fit(X[base], Y[base])
            seconds = time.perf_counter() - start
            q, b = hasher.transform(X[query]), hasher.transform(X[base])
            h = metrics.histograms(q, Y[query], b, Y[base], r)
            scores = {
                "map": float(metrics.expected_average_precision(h).mean()),
                "map@5000": float(metrics.expected_average_precision(h, CUT).mean()),
            }
            found.append({"method": name, "bits": r, "trial": seed, **scores, "fit_s": seconds})
    return found


def main(paths: list[str]) -> None:
    """Measure, print, write."""
    content = {"what": __doc__.splitlines()[0], "n_queries": N_QUERIES, "trials": TRIALS, "data": {}}
    for path in paths:
        data = datasets.load_features(path)
        rows = [row for seed in range(TRIALS) for row in trial(data, seed)]
        sets = len(np.unique(np.asarray(data.y), axis=0))
        shape = {"n": len(data), "d": data.X.shape[1], "labels": data.y.shape[1], "distinct_label_sets": sets}
        content["data"][data.name] = {**shape, "runs": rows}
        table = Table(title=f"{data.name} (real, {len(data):,} rows, {sets:,} label sets): MAP / MAP@{CUT}")
        for name in ("method", *(f"{r} bits" for r in BITS), "fit, s (64 bits)"):
            table.add_column(name, justify="left" if name == "method" else "right")
        for method in ("l2 distance", *METHODS):
            cells = []
            for r in BITS:
                some = [x for x in rows if x["method"] == method and x["bits"] in (r, None)]
                cells.append(" / ".join(f"{np.mean([x[key] for x in some]):.3f}" for key in ("map", "map@5000")))
            fits = [x["fit_s"] for x in rows if x["method"] == method and x["bits"] == 64]
            table.add_row(method, *cells, f"{np.mean(fits):.1f}" if fits else "–")
        Console().print(table)
    bench.write_json(RESULTS, content | {"environment": machine.environment()})


if __name__ == "__main__":
    main(sys.argv[1:])
