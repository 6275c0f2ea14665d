"""The learning rate of every deep rival, chosen on held-out training images of CIFAR-10: results/deep_rates.json.

Of the 5,000 training images of the first trial, 500 are queries; the others are learned from and are the database.
Queries and database of the tables take no part. 48 bits, one trial. Several runs share one GPU. Every finished run is
added to the file, and runs that it has are skipped, so a call that was stopped is resumed by the same call.

    python benchmarks/deep_rates.py --jobs 12
    python benchmarks/deep_rates.py --methods adsh,orthohash --minutes 9 --output out

Needs the CIFAR-10 images in the cache folder (``dish.datasets.load_cifar10``).
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish import machine, metrics, registry
from dish.datasets import load_cifar10
from dish.experiments.bench import write_json

RESULTS = Path(__file__).parent / "results"
METHODS = ("adsh", "orthohash", "greedyhash", "csq", "dpn", "hashnet", "dtsh", "cnnh", "dhn", "cnnbh", "sfhc", "ftde")
RATES = (0.02, 0.05, 0.1, 0.2)
BITS, N_TRAIN, HELD_OUT, EPOCHS = 48, 5000, 500, 240

Parts = tuple[NDArray[np.uint8], NDArray[Any], NDArray[np.uint8], NDArray[Any]]  # X, y, queries and their classes


@dataclass(frozen=True)
class Run:
    """One fit."""

    method: str
    lr: float
    epochs: int = EPOCHS
    bits: int = BITS

    @property
    def key(self) -> str:
        """The key of the run in the file of results."""
        return f"{self.method}/{self.lr:g}"


def images() -> Parts:
    """Training images without the held-out ones, and these."""
    data = load_cifar10()
    rows = data.split(0, N_TRAIN).train
    held = np.zeros(len(rows), bool)
    held[np.random.default_rng(0).permutation(len(rows))[:HELD_OUT]] = True
    seen, asked = rows[~held], rows[held]
    return data.X[seen], data.y[seen], data.X[asked], data.y[asked]


def work(run: Run, parts: Parts | None = None, **params: Any) -> dict[str, Any]:
    """Fit, encode, score."""
    import torch

    torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = True
    X, y, Xq, yq = images() if parts is None else parts
    hasher = registry.find(run.method)(run.bits, lr=run.lr, epochs=run.epochs, **params)
    start = time.perf_counter()
    hasher.fit(X, y)
    seconds, codes = time.perf_counter() - start, (hasher.transform(Xq), hasher.transform(X))
    within = metrics.precision_within_radius(codes[0], yq, codes[1], y, 2)
    found = {"map": float(metrics.mean_average_precision(codes[0], yq, codes[1], y)), "precision_within_2": within}
    return {**asdict(run), **found, "fit_s": seconds, "commit": machine.commit()}


def chosen(runs: dict[str, dict[str, Any]]) -> dict[str, float]:
    """The rate with the highest MAP of every method that has all rates."""
    found = {}
    for method in dict.fromkeys(run["method"] for run in runs.values()):
        of = [run for run in runs.values() if run["method"] == method and "map" in run]
        if {run["lr"] for run in of} >= set(RATES):
            found[method] = float(max(of, key=lambda run: run["map"])["lr"])
    return found


def missing(results: dict[str, Any], methods: list[str], epochs: int) -> list[Run]:
    """Runs that the file does not have, or that failed."""
    asked = [Run(method, lr, epochs) for method in methods for lr in RATES]
    return [run for run in asked if "map" not in results["runs"].get(run.key, {})]


def put(results: dict[str, Any], path: Path, run: Run, future: Future[dict[str, Any]]) -> None:
    """Add a finished run to the file."""
    try:
        results["runs"][run.key] = future.result()
    except Exception as error:  # the other runs go on, and the file says what went wrong
        results["runs"][run.key] = {**asdict(run), "failed": f"{type(error).__name__}: {error}"}
    results["chosen"] = chosen(results["runs"])
    write_json(path, results)
    done = results["runs"][run.key]
    print(run.key, {name: done[name] for name in ("map", "fit_s", "failed") if name in done}, flush=True)


def main() -> None:
    """Run what is not in the file yet; begin no run after ``--minutes``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    path, deadline = given.output / "deep_rates.json", time.monotonic() + 60 * given.minutes
    results = json.loads(path.read_text()) if path.exists() else {"what": __doc__.splitlines()[0], "runs": {}}
    results["environment"] = machine.environment()
    todo = missing(results, given.methods.split(","), given.epochs)
    running: dict[Future[dict[str, Any]], Run] = {}
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        while todo or running:
            while todo and len(running) < given.jobs and time.monotonic() < deadline:
                run = todo.pop(0)
                running[pool.submit(work, run)] = run
            if not running:
                print("the time is up: the same call resumes here", flush=True)
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                put(results, path, running.pop(future), future)


if __name__ == "__main__":
    main()
