"""Reload under load: a saturated server switches to other collections, and no request may fail.

`dish serve products.alias` in its own processes, on this machine, with one process and with two workers. Three
collections of 1,000,000 codes each: those of scikit-learn's digits (real), repeated, with every bit flipped with
probability 0.1, each with a model of its own. The ids tell which collection an answer comes from, and the header
``x-dish-generation`` tells which generation. The client keeps 64 connections busy. Meanwhile there are five switches
(`dish alias set` and then POST /admin/reload and SIGHUP in turn) and one rollback. Every answer is checked: all of
its ids belong to the collection of its generation.

    python benchmarks/reload.py          # 60 s each; benchmarks/results/reload.json, and the table of docs/serve.md
    python benchmarks/reload.py --seconds 10 --rows 50000 --output /tmp/reload.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from sklearn.datasets import load_digits

from load import CONNECTIONS, Observations, Server, json_requests, saturate

N, BITS, SEED = 1_000_000, 64, 0
FIRST_ID = 10**9  # the ids of collection i start at i times this
NAMES = "abc"
SWITCHES = ("b", "c", "a", "b", "c", "rollback")  # to these collections, one after another
SERVED = ("a", "b", "c", "a", "b", "c", "b")  # by generation
NEAR = 4  # seconds after a reload was asked for
RESULTS = Path(__file__).parent / "results" / "reload.json"
GENERATION = re.compile(rb"(?i)\r\nx-dish-generation: (\d+)")


def prepare(folder: Path, n: int) -> None:
    """Write three models and indexes."""
    from dish import DISH, HammingIndex

    X, y = load_digits(return_X_y=True)
    for i, name in enumerate(NAMES):
        hasher = DISH(n_bits=BITS, n_anchors=500, random_state=i).fit(X[300:], y[300:])
        rng = np.random.default_rng([SEED, i])
        rows = rng.integers(300, len(X), n)
        flips = np.packbits(rng.random((n, BITS), np.float32) < 0.1, axis=1)
        index = HammingIndex(BITS, model=hasher.fingerprint_)
        index.add(hasher.transform(X)[rows] ^ flips, ids=i * FIRST_ID + np.arange(n))
        hasher.save(folder / f"{name}-m.dish")
        index.save(folder / f"{name}-ix.dish")


class GenerationsSeen(Observations):
    """Also notes when each generation answered, and counts answers that mix collections or name the wrong one."""

    def __init__(self) -> None:
        super().__init__()
        self.mixed = 0
        self.first: dict[int, float] = {}
        self.last: dict[int, float] = {}
        self.answers: dict[int, int] = {}
        self.ends: list[tuple[float, float]] = []  # when, and after how many seconds

    def note(self, response: bytes, start: float, end: float) -> None:
        """Check one response."""
        super().note(response, start, end)
        head, _, body = response.partition(b"\r\n\r\n")
        found = GENERATION.search(head)
        if head[9:12] != b"200" or found is None:
            return
        generation, ids = int(found[1]), json.loads(body)["ids"]
        if not ids or {NAMES[id // FIRST_ID] for id in ids} != {SERVED[generation - 1]}:
            self.mixed += 1
        self.first.setdefault(generation, end)
        self.last[generation] = end
        self.answers[generation] = self.answers.get(generation, 0) + 1
        self.ends.append((end, end - start))


async def switch_all(server: Server, alias: Path, seconds: float, seen: GenerationsSeen) -> list[dict[str, Any]]:
    """Switch six times in the course of the load; return what was done and when."""
    from dish.alias import Alias, CollectionFiles

    done: list[dict[str, Any]] = []
    begun = time.perf_counter()
    for i, name in enumerate(SWITCHES):
        due = begun + (i + 0.5) * seconds / (len(SWITCHES) + 0.5)
        while time.perf_counter() < due or i + 1 not in seen.first:  # the one before has answered
            await asyncio.sleep(0.05)
            if time.perf_counter() > begun + seconds:
                raise TimeoutError(f"generation {i + 1} did not answer in time: give more --seconds")
        start = time.perf_counter()
        if name == "rollback":
            await asyncio.to_thread(Alias(alias).roll_back)
        else:
            files = CollectionFiles(alias.parent / f"{name}-m.dish", alias.parent / f"{name}-ix.dish")
            await asyncio.to_thread(Alias(alias).set, files)
        asked = time.perf_counter()
        by = ("POST /admin/reload", "SIGHUP")[i % 2]
        status = None
        if by == "SIGHUP":
            server.process.send_signal(signal.SIGHUP)
        else:
            status = await _post_reload(server.port)
        done.append({"to": name, "by": by, "status": status, "set_s": round(asked - start, 2), "asked": asked})
    return done


async def _post_reload(port: int) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /admin/reload HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return int(answer[9:12])


async def load_and_switch(
    server: Server, alias: Path, seconds: float
) -> tuple[GenerationsSeen, list[dict[str, Any]]]:
    """Saturate the server and switch meanwhile."""
    seen = GenerationsSeen()
    load = saturate(server.port, json_requests(False), CONNECTIONS, seconds, seen)
    _, done = await asyncio.gather(load, switch_all(server, alias, seconds, seen))
    return seen, done


def measure(folder: Path, workers: int, seconds: float) -> dict[str, Any]:
    """Measure one server."""
    from dish.alias import Alias, CollectionFiles

    alias = folder / f"products{workers}.alias"
    Alias(alias).set(CollectionFiles(folder / "a-m.dish", folder / "a-ix.dish"))
    call = [sys.executable, "-m", "dish", "serve", alias, "--port", "0", "--concurrency", CONNECTIONS + 8]
    server = Server([*call, *(["--workers", workers] if workers > 1 else [])], folder / f"log{workers}")
    try:
        uvloop.run(saturate(server.port, json_requests(False), CONNECTIONS, min(3.0, seconds / 4)))  # warm up
        before = server.memory()
        seen, done = uvloop.run(load_and_switch(server, alias, seconds))
        memory = {"start": before, "end": server.memory()}
    finally:
        code = server.stop()
    return {
        "seconds": seconds,
        "connections": CONNECTIONS,
        "load_average": os.getloadavg(),
        **summary(seen, done, seconds),
        "server_memory_bytes": memory,
        "exit_code": code,
    }


def summary(seen: GenerationsSeen, done: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Return the counts, the latencies near a reload and otherwise, and how each switch went."""
    near = [any(0 <= end - one["asked"] < NEAR for one in done) for end, _ in seen.ends]
    latencies = np.array([s for _, s in seen.ends]) * 1000
    switches = []
    for generation, one in enumerate(done, 2):
        first = seen.first[generation]
        switches.append(
            {
                **{name: value for name, value in one.items() if name != "asked"},
                "seconds_until_first_answer": round(first - one["asked"], 2),
                "old_answers_after_it_ms": round(1000 * max(0.0, seen.last[generation - 1] - first), 1),
            }
        )
    return {
        "answers": dict(seen.statuses),
        "failed": sum(n for status, n in seen.statuses.items() if status != "200"),
        "wrong_or_mixed": seen.mixed,
        "answers_by_generation": seen.answers,
        "queries_per_second": round(len(seen.ends) / seconds, 1),
        "latency_ms": {
            f"{name}_p{q}": round(float(np.percentile(latencies[chosen], q)), 1)
            for name, chosen in ((f"within_{NEAR}s_of_a_reload", np.array(near)), ("otherwise", ~np.array(near)))
            for q in (50, 99, 100)
        },
        "switches": switches,
    }


def table(content: dict[str, Any]) -> str:
    """Return the results as a Markdown table."""
    lines = [
        "| processes | answers | failed | from the wrong collection, or mixed | until the new one answers "
        "| answers of the old one after that | 99th percentile of latency near a reload, otherwise "
        "| memory before, after |",
        "|---|---|---|---|---|---|---|---|",
    ]
    runs = {name.partition("_")[2]: run for name, run in content.items() if name.startswith("workers_")}
    for workers, run in runs.items():
        until, after = (
            [one[name] for one in run["switches"]]
            for name in ("seconds_until_first_answer", "old_answers_after_it_ms")
        )
        late = [f"{run['latency_ms'][f'{name}_p99']:.0f}" for name in (f"within_{NEAR}s_of_a_reload", "otherwise")]
        memory = [f"{run['server_memory_bytes'][name] / 1e6:,.0f} MB" for name in ("start", "end")]
        lines.append(
            f"| {workers} | {sum(run['answers'].values()):,} | {run['failed']} | {run['wrong_or_mixed']} | "
            f"{min(until):.1f} to {max(until):.1f} s | at most {max(after):.0f} ms | {', '.join(late)} ms | "
            f"{', '.join(memory)} |"
        )
    environment, loads = content["environment"], [run["load_average"][0] for run in runs.values()]
    seconds = next(iter(runs.values()))["seconds"]
    lines += [
        "",
        f"{content['what']}; {CONNECTIONS} connections for {seconds:g} s, five switches and a "
        f"rollback. {environment['cpu']}, {environment['cores']} cores, shared by client and server; load average "
        f"{min(loads):.1f} to {max(loads):.1f}; Python {environment['python']}, commit {environment['commit']}.",
    ]
    return "\n".join(lines)


def write_table(content: dict[str, Any]) -> None:
    """Write the table into the page, between the marks."""
    import pages

    pages.write("reload", table(content))


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of load on each server")
    parser.add_argument("--rows", type=int, default=N, help="codes of each collection")
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    from dish import machine
    from dish.experiments.bench import write_json

    what = f"3 collections of {given.rows:,} codes of {BITS} bits (digits, bits flipped with probability 0.1)"
    content: dict[str, Any] = {"what": what, "seed": SEED, "switches": SWITCHES}
    with tempfile.TemporaryDirectory() as folder:
        print("making three collections …", flush=True)
        prepare(Path(folder), given.rows)
        for workers in given.workers:
            print(f"{given.seconds:g} s of load, {workers} processes …", flush=True)
            content[f"workers_{workers}"] = measure(Path(folder), workers, given.seconds)
    content["environment"] = machine.environment("web", "index")
    write_json(given.output, content)
    if given.output == RESULTS:
        write_table(content)
    print(table(content))


if __name__ == "__main__":
    main()
