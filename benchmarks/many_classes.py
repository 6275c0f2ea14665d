"""DISH and DISH-K on very many classes: seconds by stage, peak memory and MAP. Synthetic data; 64 bits.

Each method runs in its own process, so that peak memory is measured separately. "disjoint": the database has two new
rows of every class, encoded without labels. "labelled": the database are the training rows, with known labels for
DISH (``codes_``) and the learned codes for DISH-K. Writes results/many_classes.json.

    python benchmarks/many_classes.py                      # 20,000 classes, 100,000 rows, 128 features
    python benchmarks/many_classes.py 65536 327680 128     # classes, rows, features
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish import machine, metrics
from dish.experiments import bench

SIZE = (20_000, 100_000, 128)  # classes, rows, features
R, SEED = 64, 0
PER_DATABASE, QUERIES = 2, 2000  # new rows of every class, and queries
GROUPS, LATENT, NOISE, SENSOR = 200, 96, 1.1, 0.3
RESULT = Path(__file__).parent / "results" / "many_classes.json"

Rows = tuple[NDArray[np.float32], NDArray[np.int64]]


def synthetic(l: int, n: int, d: int) -> tuple[Rows, Rows, Rows]:  # noqa: E741
    """Training rows, database rows and queries of l classes.

    Centres lie in groups, classes have spreads of their own, directions different variances, and x is a nonlinear
    function of what differs between rows.
    """
    rng = np.random.default_rng(SEED)
    group, own = (rng.standard_normal((k, LATENT), dtype=np.float32) for k in (GROUPS, l))
    centre = group[rng.integers(0, GROUPS, l)] + 0.8 * own
    spread = NOISE * np.exp(0.3 * rng.standard_normal((l, 1), dtype=np.float32))
    scale = np.exp(0.5 * rng.standard_normal(LATENT, dtype=np.float32))
    A = rng.standard_normal((LATENT, d), dtype=np.float32) / LATENT**0.5

    def rows(y: NDArray[np.int64]) -> Rows:
        Z = centre[y] + spread[y] * scale * rng.standard_normal((len(y), LATENT), dtype=np.float32)
        return np.tanh(Z @ A) + SENSOR * rng.standard_normal((len(y), d), dtype=np.float32), y

    database = rng.permutation(np.repeat(np.arange(l), PER_DATABASE))
    return rows(rng.permutation(np.arange(n) % l)), rows(database), rows(rng.integers(0, l, QUERIES))


def one(method: str, l: int, n: int, d: int) -> dict[str, Any]:  # noqa: E741
    """Fit and score one method in this process."""
    import dish

    (X, y), (X_new, y_new), (X_query, y_query) = synthetic(l, n, d)
    hasher = getattr(dish, method)(R)
    peak, start = machine.PeakMemory(), time.perf_counter()
    hasher.fit(X, y)
    seconds = time.perf_counter() - start
    used = peak.bytes()
    start = time.perf_counter()
    new = hasher.transform(X_new)
    encoding = time.perf_counter() - start
    query = hasher.transform(X_query)
    return {
        "method": method,
        "seconds": seconds,
        "stages": hasher.timings_,
        "peak_bytes": peak.start + used,
        "fit_bytes": used,
        "encoded_rows_per_second": len(new) / encoding,
        "map_disjoint": metrics.mean_average_precision(query, y_query, new, y_new),
        "map_labelled": metrics.mean_average_precision(query, y_query, hasher.codes_, y),
    }


def main(l: int, n: int, d: int) -> None:  # noqa: E741
    """Run both methods, print, write."""
    rows = []
    for method in ("DISH", "DISHK"):
        command = [sys.executable, __file__, str(l), str(n), str(d), method]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(
            f"{method:5}: {rows[-1]['seconds']:.0f} s, {rows[-1]['peak_bytes'] / 1e9:.1f} GB, MAP disjoint "
            f"{rows[-1]['map_disjoint']:.3f}, labelled {rows[-1]['map_labelled']:.3f}; "
            + ", ".join(f"{name} {seconds:.0f}" for name, seconds in rows[-1]["stages"].items() if seconds >= 0.5),
            flush=True,
        )
    setting = {"classes": l, "n": n, "d": d, "r": R, "seed": SEED, "queries": QUERIES, "synthetic": True}
    setting |= {"rows_per_class": n / l, "database_rows_per_class": PER_DATABASE, "noise": NOISE}
    content = {"what": "very many classes", "setting": setting, "rows": rows}
    bench.write_json(RESULT, content | {"environment": machine.environment()})
    print(f"written: {RESULT}")


if __name__ == "__main__":
    size = tuple(int(value) for value in sys.argv[1:4]) or SIZE
    if len(sys.argv) > 4:
        print(json.dumps(one(sys.argv[4], *size)))
    else:
        main(*size)
