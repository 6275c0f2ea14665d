"""Queries per second of HammingIndex and faiss IndexBinaryFlat: 1,000,000 codes, same machine, same run.

Four kinds of codes, with 64 and 128 bits:

- random: uniform.
- jittered: codes of DISH, fitted to the 59,000 database rows of CIFAR-10 (GIST), for these rows and for copies of
  them with noise of 5 % of each feature's standard deviation.
- tiled: the codes of the 59,000 rows, repeated.
- learned: the codes that DISH learned for the training rows (``codes_``), repeated.

Queries are 500 held-out images (random codes for the random kind). The distances of both must be equal. faiss cannot
limit a radius search to 1,000 rows per query; it lists all rows.

    python benchmarks/index.py            # writes benchmarks/results/index.json and the table in docs/searching.md
    python benchmarks/index.py --table    # writes only the table, from the existing results
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numba
import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.preprocessing import normalize

import pages
from dish import DISH, HammingIndex, machine
from dish.experiments import bench

N, N_QUERIES, N_RADIUS, N_SINGLE, SEED, JITTER = 1_000_000, 500, 100, 100, 0, 0.05
LIMIT = 1000  # rows per query in limited radius searches
RESULTS = Path(__file__).parent / "results" / "index.json"
COLUMNS = {  # task → heading of the table
    "k=10, 1 threads": "k = 10",
    "k=100, 1 threads": "k = 100",
    "radius 2, 1 threads": "radius 2",
    "radius 2 cut off, 1 threads": "radius 2, at most 1,000 rows",
    "k=10, one at a time, 1 threads": "k = 10, one query a call",
    "k=10, 2 threads": "k = 10, 2 threads",
    "radius 2, 2 threads": "radius 2, 2 threads",
    "k=10, one at a time, 2 threads": "k = 10, one query a call, 2 threads",
}


def learned(n_bits: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return DISH's codes and query codes of CIFAR-10 by kind."""
    data = bench.load_data("cifar10_gist")
    split = data.split(0, None)
    X, Xq = (normalize(data.rows(rows)) for rows in (split.database, split.query))
    hasher = DISH(n_bits=n_bits, random_state=SEED).fit(X, data.y[split.database])
    rng, noise = np.random.default_rng(SEED), np.float32(JITTER) * X.std(axis=0)
    codes, Q = hasher.transform(X), hasher.transform(Xq)[:N_QUERIES]
    copies = [codes]
    while sum(map(len, copies)) < N:
        copies.append(hasher.transform(X + noise * rng.standard_normal(X.shape, dtype=np.float32)))
    rows = np.arange(N) % len(X)
    return {
        "jittered": (np.concatenate(copies)[:N], Q),
        "tiled": (codes[rows], Q),
        "learned": (hasher.codes_[rows], Q),
    }


def uniform(n_bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Return uniform random codes and queries."""
    rng = np.random.default_rng(SEED)
    return tuple(rng.integers(0, 256, (n, n_bits // 8), dtype=np.uint8) for n in (N, N_QUERIES))


def rate(run: Callable[[], Any], n: int, repeats: int = 2) -> float:
    """Return the queries per second of the fastest run, after a warm-up run."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return n / min(times)


def measure(B: np.ndarray, Q: np.ndarray) -> dict[str, Any]:
    """Measure both engines on the same codes."""
    ours, flat = HammingIndex(8 * B.shape[1]), faiss.IndexBinaryFlat(8 * B.shape[1])
    start = time.perf_counter()
    ours.add(B)
    add_s = time.perf_counter() - start
    flat.add(B)
    some, single = Q[:N_RADIUS], Q[:N_SINGLE]
    tasks = {
        "k=10": (N_QUERIES, lambda: ours.search(Q, 10), lambda: flat.search(Q, 10)),
        "k=100": (N_QUERIES, lambda: ours.search(Q, 100), lambda: flat.search(Q, 100)),
        "radius 2": (N_RADIUS, lambda: ours.radius_search(some, 2), lambda: flat.range_search(some, 3)),
        "radius 2 cut off": (
            N_RADIUS,
            lambda: (ours.radius_search(some, 2, limit=LIMIT), ours.radius_count(some, 2)),
            lambda: flat.range_search(some, 3),
        ),
        "k=10, one at a time": (
            N_SINGLE,
            lambda: [ours.search(single[i : i + 1], 10) for i in range(N_SINGLE)],
            lambda: [flat.search(single[i : i + 1], 10) for i in range(N_SINGLE)],
        ),
    }
    result: dict[str, Any] = {"distinct_codes": len(np.unique(B.view(f"V{B.shape[1]}"))), "add_s": add_s}
    for name, (n, run_ours, run_faiss) in tasks.items():
        check(name, run_ours(), run_faiss())
        for threads in (1, 2):
            numba.set_num_threads(threads)
            faiss.omp_set_num_threads(threads)
            a, b = rate(run_ours, n), rate(run_faiss, n)
            result[f"{name}, {threads} threads"] = {"ours_qps": a, "faiss_qps": b, "ratio": a / b}
    result["rows_within_radius_2"] = len(ours.radius_search(some, 2)[1]) / N_RADIUS
    result["bytes_per_row"] = {what: size / N for what, size in ours.nbytes().items()}
    return result


def check(name: str, ours: Any, theirs: Any) -> None:
    """Check that both engines found the same distances."""
    if name == "radius 2 cut off":
        assert (ours[1] == np.diff(theirs[0])).all()
        assert (np.diff(ours[0][0]) == np.minimum(ours[1], LIMIT)).all()
    elif name == "radius 2":
        assert (ours[0] == theirs[0]).all()
        assert (np.bincount(ours[1], minlength=3) == np.bincount(theirs[1].astype(int), minlength=3)).all()
    else:
        pairs = zip(ours, theirs, strict=True) if isinstance(ours, list) else [(ours, theirs)]
        assert all((a[0] == b[0]).all() for a, b in pairs)


def table(content: dict[str, Any]) -> str:
    """Return the results as a Markdown table: ours / faiss (ratio)."""
    lines = [
        f"| codes | bits | distinct | {' | '.join(COLUMNS.values())} | bytes |",
        "|---" * (len(COLUMNS) + 4) + "|",
    ]
    for name, result in content["results"].items():
        kind, bits = name.removesuffix(" bits").split(", ")
        cells = [_cell(result.get(task)) for task in COLUMNS]
        width = sum(result["bytes_per_row"][what] for what in ("codes", "search"))
        lines.append(f"| {kind} | {bits} | {result['distinct_codes']:,} | {' | '.join(cells)} | {width:.1f} |")
    about = content["environment"]
    load = content.get("load_average")
    how = "not noted" if load is None else f"{load[0]:.1f} before and {load[1]:.1f} after"
    lines += [
        "",
        f"{about['cpu']}, {about['cores']} cores, load average {how}; faiss {about['versions']['faiss-cpu']}, numba "
        f"{about['versions']['numba']}, commit {about['commit']}, {about['date'][:10]}.",
    ]
    return "\n".join(lines)


def _cell(value: dict[str, float] | None) -> str:
    if value is None:
        return "not measured"
    ratio = value["ratio"]
    times = f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.1f}"
    return f"{value['ours_qps']:,.0f} / {value['faiss_qps']:,.0f} ({times}×)"


def write_table(content: dict[str, Any]) -> None:
    """Write the table into the page, between the marks."""
    pages.write("index", table(content))


def run() -> dict[str, Any]:
    """Measure, print and return the results."""
    results, before = {}, os.getloadavg()[0]
    for n_bits in (64, 128):
        for kind, (B, Q) in {"random": uniform(n_bits), **learned(n_bits)}.items():
            results[f"{kind}, {n_bits} bits"] = measure(B, Q)
            show(f"{kind}, {n_bits} bits", results[f"{kind}, {n_bits} bits"])
    environment = machine.environment()
    environment["versions"]["faiss-cpu"] = importlib.metadata.version("faiss-cpu")
    return {
        "what": "queries per second of HammingIndex and of faiss IndexBinaryFlat, exact, 1,000,000 codes",
        "setting": {"n": N, "queries": N_QUERIES, "jitter": JITTER, "seed": SEED, "data": "cifar10 GIST, real"},
        "load_average": (before, os.getloadavg()[0]),
        "results": results,
        "environment": environment,
    }


def main() -> None:
    """Write the results and the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--table", action="store_true", help="write only the table, from the existing results")
    given = parser.parse_args()
    if not given.table:
        bench.write_json(RESULTS, run())
        print(f"written: {RESULTS}")
    write_table(json.loads(RESULTS.read_text()))


def show(title: str, result: dict[str, Any]) -> None:
    """Print the results of one kind of codes."""
    table = Table(title=f"{title}: {result['distinct_codes']:,} distinct codes")
    for name in ("task", "ours, queries/s", "faiss, queries/s", "ratio"):
        table.add_column(name, justify="left" if name == "task" else "right")
    for name, value in result.items():
        if isinstance(value, dict) and "ratio" in value:
            table.add_row(name, f"{value['ours_qps']:,.0f}", f"{value['faiss_qps']:,.0f}", f"{value['ratio']:.1f}")
    Console().print(table)
    print({what: round(size, 1) for what, size in result["bytes_per_row"].items()}, "bytes per row")


if __name__ == "__main__":
    main()
