"""Fit times of DISH, DISH-K, SDH and logistic LSH, the time of the README's ten lines, and encoding speed.

Writes results/fit_times.json. Fits: 60,000 × 512 synthetic float32 rows in 10 and in 200 classes, 64 bits, default
parameters; every round times each method once, because the load of the machine changes. Ten lines: scikit-learn's
digits (1,497 rows, 300 queries), every time in a new process. Encoding: rows per second of a new process that may use
one core. The result is the best round; a first round of few rows compiles and does not count.

    python benchmarks/fit_times.py
    python benchmarks/fit_times.py --rows 5000 --rounds 1 --output out    # to try it
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from dish import DISH, machine, registry
from dish.experiments import bench

HERE = Path(__file__).parent
METHODS, CLASSES = ("dish", "dish_k", "sdh", "logistic_lsh"), (10, 200)
D, N_BITS = 512, 64
TEN_LINES = """
import time
start = time.perf_counter()
import numba, numpy, scipy, sklearn, torch
import dish
from dish import DISH, HammingIndex, load, metrics
imported = time.perf_counter()
exec(open("ten_lines.py").read())
done = time.perf_counter()
print("seconds", imported - start, done - imported)
"""
ENCODE = """
import os, sys, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import numpy as np
import dish
X = np.load("X.npy")
hasher = dish.load(sys.argv[1])
hasher.transform(X)
start = time.perf_counter()
hasher.transform(X)
print("seconds", time.perf_counter() - start)
"""


def synthetic(n: int, classes: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Overlapping Gaussian classes on the sphere, for timing only."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, n)
    X = rng.standard_normal((n, D), np.float32) + 0.4 * rng.standard_normal((classes, D), np.float32)[y]
    return X / np.linalg.norm(X, axis=1, keepdims=True), y


def fits(n: int, rounds: int) -> dict[str, Any]:
    """Seconds of every fit, by number of classes and method."""
    found: dict[str, Any] = {}
    for classes in CLASSES:
        X, y = synthetic(n, classes)
        seconds: dict[str, list[float]] = {name: [] for name in METHODS}
        for name in METHODS:
            registry.find(name)(n_bits=N_BITS).fit(X[:2000], y[:2000])
        for _ in range(rounds):
            for name, times in seconds.items():
                start = time.perf_counter()
                registry.find(name)(n_bits=N_BITS).fit(X, y)
                times.append(time.perf_counter() - start)
                print(f"{classes} classes, {name}: {times[-1]:.2f} s", flush=True)
        found[f"{classes} classes"] = {"best_s": {name: min(s) for name, s in seconds.items()}, "seconds": seconds}
    return found


def new_process(code: str, folder: str, *arguments: str, **variables: str) -> list[float]:
    """Run Python code in a new process, and return the seconds that it prints last."""
    command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
    environment = os.environ | variables
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split("seconds ")[-1].split()]


def readme_example() -> str:
    """The code of the README's first example."""
    found = re.search(r"## Ten lines\n+```python\n(.*?)```", (HERE.parent / "README.md").read_text(), re.S)
    if found is None:
        raise SystemExit("README.md has no Python block under '## Ten lines'")
    return found[1]


def ten_lines(rounds: int) -> dict[str, Any]:
    """Seconds of the README's first example in a new process: of its imports, of the lines, of the whole process."""
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    X, y = X[order].astype(np.float32), y[order]
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        for name, array in {"X": X[300:], "y": y[300:], "Xq": X[:300], "yq": y[:300]}.items():
            np.save(Path(folder, f"{name}.npy"), array)
        Path(folder, "ten_lines.py").write_text(readme_example())
        new_process(TEN_LINES, folder)
        for _ in range(rounds):
            imports, lines = new_process(TEN_LINES, folder)
            start = time.perf_counter()
            subprocess.run(
                [sys.executable, "-W", "ignore", "ten_lines.py"], cwd=folder, capture_output=True, check=True
            )
            whole = time.perf_counter() - start
            seconds.append({"imports": imports, "lines": lines, "whole process": whole})
            print("ten lines:", {name: round(value, 2) for name, value in seconds[-1].items()}, flush=True)
    return {"best_s": {name: min(each[name] for each in seconds) for name in seconds[0]}, "seconds": seconds}


def encoding(n: int, rounds: int) -> dict[str, Any]:
    """Rows per second on one core, with all bits for classes, and with the default geometry bits."""
    found: dict[str, Any] = {}
    one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    for classes in CLASSES:
        X, y = synthetic(n, classes)
        with tempfile.TemporaryDirectory() as folder:
            np.save(Path(folder, "X.npy"), X)
            hashers = {"geometry=0": DISH(N_BITS, geometry=0).fit(X, y), "default": DISH(N_BITS).fit(X, y)}
            of: dict[str, Any] = {}
            for name, hasher in hashers.items():
                hasher.save(Path(folder, "m.dish"))
                times = [new_process(ENCODE, folder, "m.dish", **one)[0] for _ in range(rounds)]
                g = 0 if hasher.geometry_ is None else hasher.geometry_.n_bits
                of[name] = {"geometry_bits": g, "rows_per_s": n / min(times), "seconds": times}
                print(
                    f"encoding, {classes} classes, {name}, {g} geometry bits: {n / min(times):,.0f} rows/s",
                    flush=True,
                )
        found[f"{classes} classes"] = of
    return found


def main() -> None:
    """Time, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=HERE / "results")
    given = parser.parse_args()
    content = {"what": f"{given.rows} × {D} synthetic rows, {N_BITS} bits; digits for the ten lines"}
    content |= {"fits": fits(given.rows, given.rounds), "ten_lines": ten_lines(given.rounds)}
    content |= {"encoding": encoding(given.rows, given.rounds), "environment": machine.environment()}
    bench.write_json(given.output / "fit_times.json", content)


if __name__ == "__main__":
    main()
