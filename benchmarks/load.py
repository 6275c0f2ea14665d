"""A minute of requests at saturation against a real server: throughput, latency, errors, memory.

The server is `dish serve` in a process of its own, on this machine, over 1,000,000 codes: those of scikit-learn's
digits (real) repeated, with every bit turned with probability 0.1, so that the codes are not all the same. This
process is the client (httpx, a thread a worker); the two share the cores. More workers ask than the server takes
at a time: those it turns away (503) wait a little and ask again. /health is asked meanwhile.

    python benchmarks/load.py             # writes benchmarks/results/load.json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from sklearn.datasets import load_digits

from dish import DISH, HammingIndex, machine
from dish.experiments import bench

N, BITS, K, SEED = 1_000_000, 64, 10, 0
WORKERS, CONCURRENCY, PAUSE_S = 48, 32, 0.25
LOCK = threading.Lock()
RESULTS = Path(__file__).parent / "results" / "load.json"


def prepare(folder: Path) -> np.ndarray:
    """Write the model and the index; return the rows to ask with."""
    X, y = load_digits(return_X_y=True)
    hasher = DISH(n_bits=BITS, n_anchors=500, random_state=SEED).fit(X[300:], y[300:])
    rng = np.random.default_rng(SEED)
    rows = rng.integers(300, len(X), N)
    flips = np.packbits(rng.random((N, BITS), np.float32) < 0.1, axis=1)
    index = HammingIndex(BITS)
    index.add(hasher.transform(X)[rows] ^ flips, labels=[str(label) for label in y[rows]])
    hasher.save(folder / "m.dish")
    index.save(folder / "ix.dish")
    return X[:300]


class Load:
    """What the workers saw."""

    def __init__(self, url: str, queries: np.ndarray, seconds: float) -> None:
        extents = [{"radius": 2} if i % 5 == 0 else {"k": K} for i in range(len(queries))]
        asked = [{"vector": x.tolist(), **extent} for x, extent in zip(queries, extents, strict=True)]
        self.bodies = [json.dumps(body).encode() for body in asked]  # made before the clock starts
        self.url, self.end = url, time.perf_counter() + seconds
        self.statuses: Counter[str] = Counter()
        self.seconds: list[float] = []
        self.health: list[float] = []

    def work(self, number: int) -> None:
        """Ask again and again: vectors, mostly by k, some by radius."""
        i, headers = number, {"content-type": "application/json"}
        with httpx.Client(timeout=30) as client:
            while time.perf_counter() < self.end:
                i += WORKERS
                start = time.perf_counter()
                try:
                    answer = client.post(
                        self.url + "/search", content=self.bodies[i % len(self.bodies)], headers=headers
                    )
                    status = str(answer.status_code)
                except httpx.HTTPError as error:
                    status = type(error).__name__
                with LOCK:
                    self.statuses[status] += 1
                    if status == "200":
                        self.seconds.append(time.perf_counter() - start)
                if status in ("429", "503"):
                    time.sleep(PAUSE_S)


def watch_health(url: str, seconds: float) -> list[float]:
    """How long /health took, four times a second; in a process of its own, so that the workers do not slow it."""
    end, found = time.perf_counter() + seconds, []
    with httpx.Client(timeout=30) as client:
        while time.perf_counter() < end:
            start = time.perf_counter()
            client.get(url + "/health").raise_for_status()
            found.append(time.perf_counter() - start)
            time.sleep(0.25)
    return found


def saturate(url: str, queries: np.ndarray, seconds: float) -> Load:
    """All workers for some seconds."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as watcher:
        watched = watcher.submit(watch_health, url, seconds)
        load = Load(url, queries, seconds)
        with ThreadPoolExecutor(WORKERS) as workers:
            list(workers.map(load.work, range(WORKERS)))
        load.health = watched.result()
    return load


def resident(url: str) -> int:
    """The server's resident bytes, by its own account."""
    return int(float(re.search(r"^process_resident_memory_bytes (\S+)", httpx.get(url + "/metrics").text, re.M)[1]))


def quantiles(seconds: list[float]) -> dict[str, float]:
    """In milliseconds."""
    return {f"p{q}": round(1000 * float(np.percentile(seconds, q)), 2) for q in (50, 90, 99, 100)}


def measure(url: str, queries: np.ndarray, seconds: float) -> dict[str, Any]:
    """Warm up, then load; what was seen."""
    saturate(url, queries, min(10.0, seconds / 2))  # warm up
    before = resident(url)
    load = saturate(url, queries, seconds)
    return {
        "seconds": seconds,
        "workers": WORKERS,
        "server_concurrency": CONCURRENCY,
        "answers": dict(load.statuses),
        "answers_per_second": round(len(load.seconds) / seconds, 1),
        "latency_ms": quantiles(load.seconds),
        "health_ms": quantiles(load.health),
        "server_resident_bytes": {"start": before, "end": resident(url)},
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        queries = prepare(folder)
        call = [sys.executable, "-m", "dish", "serve", "--model", folder / "m.dish", "--index", folder / "ix.dish"]
        call += ["--port", "0", "--concurrency", str(CONCURRENCY)]
        with open(folder / "log", "wb") as log:
            server = subprocess.Popen([*map(str, call)], stdout=subprocess.PIPE, stderr=log, text=True)
            try:
                url = re.search(r"http://[^/]+", server.stdout.readline())[0]
                found = measure(url, queries, given.seconds)
            finally:
                server.send_signal(signal.SIGTERM)
                found_end = server.wait(30)
    what = f"{N:,} codes of {BITS} bits (digits, bits turned with probability 0.1); 4 in 5 by k={K}, else radius 2"
    content = {"what": what, **found, "exit_code": found_end, "environment": machine.environment()}
    bench.write_json(given.output, content)
    print({name: value for name, value in content.items() if name != "environment"})


if __name__ == "__main__":
    main()
