"""Search and encoding on Ray, on one machine: answers, throughput, killed actors, every row exactly once.

    python benchmarks/ray_cluster.py                       # all parts; writes benchmarks/results/ray_cluster.json
    python benchmarks/ray_cluster.py search kills          # some parts; the others stay in the file as they were
    python benchmarks/ray_cluster.py --rows 1000000 --encoded 1000000 --output /tmp/small.json

Needs Ray (`make test-engines` creates an environment that has it). Codes are uniform random, rows are synthetic: the
codes of the first have no repeats to exploit, and the second only have to be counted. Parts:

search   four shards against one index of all codes: equal answers, and queries per second of batches of 1,000
kills    ten actors are killed while two threads search: wrong, short and failed answers, and seconds until the first
         answer that was asked for after the kill
encode   synthetic rows of 64 features as .npy files, two workers, one of them killed: every row exactly once
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import signal
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
import numpy as np
import psutil

from dish import DISH, HammingIndex, machine
from dish.experiments.bench import write_json
from dish.ray import cluster, encode_files, open_shards

RESULTS = Path(__file__).parent / "results" / "ray_cluster.json"
PARTS = ("search", "kills", "encode")
SHARDS, BATCH, K, SEED, D, N_BITS = 4, 1000, 100, 0, 64, 64
KS = (10, 100)  # numbers of neighbours whose throughput is measured; every shard finds that many of its own
KILLS, FILES = 10, 20


def make_index(n: int, folder: Path) -> tuple[HammingIndex, Path]:
    """Return an index of uniform random codes, and its file."""
    rng = np.random.default_rng(SEED)
    index = HammingIndex(N_BITS)
    index.add(rng.integers(0, 256, (n, N_BITS // 8), dtype=np.uint8))
    index.save(folder / "index.dish")
    return index, folder / "index.dish"


def make_queries(batch: int, seed: int) -> np.ndarray:
    """Return uniform random queries."""
    return np.random.default_rng(seed).integers(0, 256, (batch, N_BITS // 8), dtype=np.uint8)


def same(found: Any, wanted: Any) -> bool:
    """Whether two results are equal, shape and order included."""
    return all(a.shape == b.shape and bool((a == b).all()) for a, b in zip(found, wanted, strict=True))


def measure_search(n: int, repeats: int) -> dict[str, Any]:
    """Compare four shards with one index in one process; the two are measured in turn."""
    with tempfile.TemporaryDirectory() as name:
        index, path = make_index(n, Path(name))
        batches = [make_queries(BATCH, seed) for seed in range(1, repeats + 1)]
        with cluster(), open_shards(path, SHARDS) as sharded:
            found = {str(k): measure_k(index, sharded, batches, k) for k in KS}
            Q = batches[0][:100]
            equal = [
                same(sharded.search(Q, K, ids=np.arange(0, n, 3)), index.search(Q, K, ids=np.arange(0, n, 3))),
                same(sharded.radius_search(Q, 12), index.radius_search(Q, 12)),
            ]
            one = [_seconds(lambda Q=Q: sharded.search(Q[:1], K)) for Q in batches]
    return {
        "rows": n, "bits": N_BITS, "shards": SHARDS, "queries per batch": BATCH, "batches": repeats,
        "threads of one process": machine.usable_cores(), "by k": found,
        "all answers equal": all(equal) and all(one["all answers equal"] for one in found.values()),
        "answers compared": len(equal) + repeats * len(KS),
        "seconds of a single query, four shards": min(one),
    }  # fmt: skip


def measure_k(index: HammingIndex, sharded: Any, batches: list[np.ndarray], k: int) -> dict[str, Any]:
    """Compare the throughput for k neighbours, and the answers."""
    for where in (index, sharded):  # compiles, groups the rows, and wakes all processes
        for _ in range(2):
            where.search(make_queries(BATCH, 99), k)
    seconds: dict[str, list[float]] = {"one process": [], "four shards": []}
    equal = []
    for Q in batches:
        results = []
        for title, where in (("one process", index), ("four shards", sharded)):
            start = time.perf_counter()
            results.append(where.search(Q, k))
            seconds[title].append(time.perf_counter() - start)
        equal.append(same(*results))
    rates = {title: BATCH / min(times) for title, times in seconds.items()}
    return {
        "queries per second": rates, "ratio": rates["four shards"] / rates["one process"],
        "all answers equal": all(equal), "seconds of each batch": seconds,
    }  # fmt: skip


def _seconds(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure_kills(n: int) -> dict[str, Any]:
    """Kill ten actors one after another while two threads search."""
    with tempfile.TemporaryDirectory() as name:
        index, path = make_index(n, Path(name))
        Q = make_queries(20, 1)
        wanted, stop, answers = index.search(Q, K), threading.Event(), []
        with cluster(), open_shards(path, SHARDS) as sharded:
            sharded.search(Q, K)

            def search() -> None:
                while not stop.is_set():
                    start = time.monotonic()
                    try:
                        outcome = "right" if same(sharded.search(Q, K), wanted) else "wrong or short"
                    except Exception as error:
                        outcome = f"failed: {type(error).__name__}"
                    answers.append((start, time.monotonic(), outcome))

            threads = [threading.Thread(target=search) for _ in range(2)]
            for thread in threads:
                thread.start()
            recovery = []
            for i in range(KILLS):
                time.sleep(1.0)
                actors = _workers("ray::Shard")
                victim = sorted(actors, key=lambda one: one.pid)[i % len(actors)]
                victim.send_signal(signal.SIGKILL)
                killed = time.monotonic()
                while not any(start > killed for start, _, _ in list(answers)):
                    time.sleep(0.005)
                recovery.append(min(end for start, end, _ in list(answers) if start > killed) - killed)
            stop.set()
            for thread in threads:
                thread.join()
    outcomes = [outcome for _, _, outcome in answers]
    counts = {one: outcomes.count(one) for one in sorted(set(outcomes))}
    usual = float(np.median([end - start for start, end, _ in answers]))
    return {
        "rows": n, "bits": N_BITS, "shards": SHARDS, "replicas": 1,
        "threads that search": 2, "queries per search": len(Q),
        "killed": KILLS, "answers": counts, "seconds of a search, median": usual,
        "seconds from the kill to an answer asked for after it": recovery, "slowest": max(recovery),
    }  # fmt: skip


def _workers(name: str) -> list[psutil.Process]:
    """Return the processes of our own Ray with this name."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if name in " ".join(process.cmdline()):
                found.append(process)
    return found


def measure_encode(n: int) -> dict[str, Any]:
    """Encode synthetic rows with two workers, and kill one of them when a tenth of the blocks is done."""
    import pyarrow as pa

    rng = np.random.default_rng(SEED)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "rows").mkdir()
        some = rng.standard_normal((5000, D), dtype=np.float32)
        hasher = DISH(n_bits=N_BITS, random_state=SEED).fit(some, (some[:, :3] > 0) @ [1, 2, 4])
        hasher.save(folder / "model.dish")
        bounds = np.linspace(0, n, FILES + 1).astype(int)
        for i, size in enumerate(np.diff(bounds)):
            np.save(folder / "rows" / f"{i:02}.npy", rng.standard_normal((size, D), dtype=np.float32))
        killed: list[float] = []
        with cluster(cpus=machine.usable_cores()):
            block = max(1, n // (5 * FILES))
            thread = threading.Thread(target=_kill_a_worker, args=(folder / "codes", FILES // 2, killed))
            thread.start()
            start = time.perf_counter()
            rows = encode_files(folder / "model.dish", folder / "rows", folder / "codes", workers=2, block_rows=block)
            seconds = time.perf_counter() - start
            thread.join()
        wrong, total = 0, 0
        parts = sorted((folder / "codes").glob("part-*.arrow"))
        tables = [pa.ipc.open_file(pa.memory_map(str(path))).read_all() for path in parts]
        found = np.concatenate([_bytes_of(table) for table in tables])
        for i, low in enumerate(bounds[:-1]):  # file by file, in order: a lost or repeated row would shift the rest
            X = np.load(folder / "rows" / f"{i:02}.npy", mmap_mode="r")
            for start_row in range(0, len(X), 1 << 18):
                wanted = hasher.transform(np.asarray(X[start_row : start_row + (1 << 18)]))
                here = found[low + start_row : low + start_row + len(wanted)]
                wrong += int((here != wanted).any(axis=1).sum()) if here.shape == wanted.shape else len(wanted)
                total += len(wanted)
    return {
        "synthetic rows": n, "features": D, "bits": N_BITS, "workers": 2, "workers killed": len(killed),
        "files of codes": len(parts), "rows reported": rows, "rows found": len(found), "rows compared": total,
        "rows that differ from one process": wrong, "every row exactly once": wrong == 0 and len(found) == total == n,
        "seconds": seconds, "rows per second": n / seconds,
    }  # fmt: skip


def _kill_a_worker(folder: Path, when: int, killed: list[float]) -> None:
    end = time.monotonic() + 600
    while not killed and time.monotonic() < end:
        if folder.exists() and len(list(folder.glob("part-*"))) >= when:
            for process in _workers("MapWorker")[:1]:
                process.send_signal(signal.SIGKILL)
                killed.append(time.monotonic())
        time.sleep(0.02)


def _bytes_of(table: Any) -> np.ndarray:
    column = table["code"].combine_chunks()
    width = column.type.byte_width
    return np.frombuffer(column.buffers()[1], np.uint8)[: len(column) * width].reshape(-1, width)


def main() -> None:
    """Run the parts and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", default=PARTS)
    parser.add_argument("--rows", type=int, default=10_000_000, help="codes that are searched")
    parser.add_argument("--encoded", type=int, default=10_000_000, help="synthetic rows that are encoded")
    parser.add_argument("--repeats", type=int, default=5, help="batches of 1,000 queries")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    works = {
        "search": lambda: measure_search(given.rows, given.repeats),
        "kills": lambda: measure_kills(given.rows),
        "encode": lambda: measure_encode(given.encoded),
    }
    content = json.loads(given.output.read_text()) if given.output.exists() else {}
    for part in given.parts:
        load = os.getloadavg()[0]
        content[part] = works[part]() | {"load before": load, "load after": os.getloadavg()[0], "seed": SEED}
        versions = {"ray": importlib.metadata.version("ray"), "numba": numba.__version__}
        content[part] |= {"versions": versions, "environment": machine.environment("ray", "index")}
        print(
            json.dumps({part: {k: v for k, v in content[part].items() if k != "environment"}}, indent=1), flush=True
        )
        write_json(given.output, content)


if __name__ == "__main__":
    main()
