"""Stress test of HammingIndex with eight threads: four write, four search, and every result is checked.

A writer applies the same changes to the index and to a dictionary, the shadow. A searcher takes one snapshot per
search and checks that distances, labels and codes of its hits are consistent, and that every hit is a version that
its id once had. Ids have several patterns: ascending, shuffled, ascending at both ends, negative and huge, strings.

    python tests/torture/index_stress.py --seconds 60 --output stress.json
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dish import HammingIndex

ROWS, WRITERS, SEARCHERS, PER_WRITE = 4000, 4, 4, 60


def ids_of_every_pattern(rng: np.random.Generator) -> dict[str, list[Any]]:
    """Return 3 × ROWS ids of each pattern; the index starts with the first ROWS."""
    n = 3 * ROWS
    between = np.arange(n)
    rng.shuffle(between[1 : ROWS - 1])  # 0, shuffled, ROWS − 1, then ascending
    return {
        "running": list(range(n)),
        "shuffled": rng.permutation(n).tolist(),
        "running at both ends, shuffled between": between.tolist(),
        "negative and huge": (rng.permutation(n).astype(np.int64) * (2**49) - 2**62).tolist(),
        "strings": [f"id {i} é" for i in rng.permutation(n)],
    }


class Stress:
    """An index, its shadow, and the problems found."""

    def __init__(self, ids: list[Any], seed: int, seconds: float) -> None:
        self.ids, self.seed, self.stop = ids, seed, time.monotonic() + seconds
        self.index = HammingIndex(64)
        self.shadow: dict[Any, bytes] = {}
        self.ever: dict[Any, set[bytes]] = defaultdict(set)
        self.lock = threading.Lock()  # for index and shadow together; searchers do not take it
        self.writes = self.searches = self.hits = 0
        self.problems: Counter[str] = Counter()
        self.write(np.random.default_rng(seed), ids[:ROWS], self.index.add)

    def write(self, rng: np.random.Generator, ids: list[Any], how: Callable[..., None]) -> None:
        """Write new codes of some ids to both; the label of a row is the first byte of its code."""
        B = codes(rng, len(ids))
        for one, code in zip(ids, B, strict=True):
            self.ever[one].add(code.tobytes())
            self.shadow.pop(one, None)
            self.shadow[one] = code.tobytes()
        how(B, ids, labels=B[:, 0])
        self.writes += len(ids)

    def write_on(self, number: int) -> None:
        """Write until the time is over."""
        rng = np.random.default_rng([self.seed, number])
        while time.monotonic() < self.stop:
            chosen = rng.choice(len(self.ids), int(rng.integers(1, PER_WRITE)), replace=False)
            some = [self.ids[i] for i in chosen]
            with self.lock:
                what = rng.integers(3)
                if what == 0:
                    self.write(rng, [one for one in some if one not in self.shadow], self.index.add)
                elif what == 1:
                    self.write(rng, some, self.index.upsert)
                else:
                    there = [self.shadow.pop(one) for one in some if one in self.shadow]
                    self.expect("rows removed", self.index.remove(some) == len(there))
                    self.writes += len(there)
                self.expect("length", len(self.index) == len(self.shadow))

    def search_on(self, number: int) -> None:
        """Search until the time is over."""
        rng = np.random.default_rng([self.seed, 100, number])
        while time.monotonic() < self.stop:
            Q, now = codes(rng, 2), self.index.snapshot()
            if number % 3 == 0:
                D, found = now.search(Q, 8)
                results = [(Q[i], D[i], found[i]) for i in range(2)]
            elif number % 3 == 1:
                lims, D, found = now.radius_search(Q, 3)
                results = [(Q[i], D[lims[i] : lims[i + 1]], found[lims[i] : lims[i + 1]]) for i in range(2)]
            else:
                some = [self.ids[i] for i in rng.integers(0, len(self.ids), 50)]
                D, found = self.index.search(Q, 8, ids=some)
                self.expect("filter", {*found.ravel().tolist()} <= {*some})
                results = [(Q[i], D[i], found[i]) for i in range(2)]
            for q, distances, ids in results:
                self.check(q, distances, ids, now if number % 3 < 2 else None)
            self.searches += 1

    def check(self, q: np.ndarray, D: np.ndarray, ids: np.ndarray, now: Any) -> None:
        """Check one result: consistent in itself, and made of versions that its ids once had."""
        self.expect("distinct ids", len({*ids.tolist()}) == len(ids))
        self.expect("ascending distances", bool((np.diff(D) >= 0).all()))
        for one, d in zip(ids.tolist(), D.tolist(), strict=True):
            versions = list(self.ever.get(one, ()))
            self.expect("a distance that the id once had", any(distance(q, code) == d for code in versions))
        if now is not None and len(ids):
            B = now.get(ids)
            self.expect("distances fit codes", (np.bitwise_count(B ^ q).sum(1) == D).all())
            self.expect("labels fit codes", (now.labels_of(ids) == B[:, 0]).all())
        self.hits += len(ids)

    def expect(self, what: str, right: Any) -> None:
        """Count an expectation that does not hold."""
        if not right:
            self.problems[what] += 1

    def guarded(self, work: Callable[[int], None], number: int) -> None:
        """Count exceptions as problems."""
        try:
            work(number)
        except Exception as error:
            self.problems[f"{work.__name__}: {type(error).__name__}: {error}"[:200]] += 1

    def compare(self) -> None:
        """Check that the index, a saved and loaded copy, and the shadow hold and find the same rows."""
        with tempfile.TemporaryDirectory() as folder:
            self.index.save(Path(folder) / "ix.dish")
            for ix in (self.index, HammingIndex.load(Path(folder) / "ix.dish")):
                ids = list(self.shadow)
                B = np.array([list(code) for code in self.shadow.values()], np.uint8).reshape(-1, 8)
                self.expect("ids at the end", ix.ids.tolist() == ids)
                self.expect("codes at the end", np.array_equal(ix.get(ids), B))
                self.expect("labels at the end", ix.labels_of(ids).tolist() == B[:, 0].tolist())
                Q = codes(np.random.default_rng(self.seed), 20)
                W = np.bitwise_count(Q[:, None] ^ B[None]).sum(2)
                order = np.argsort(W, axis=1, kind="stable")[:, :10]
                D, found = ix.search(Q, 10)
                self.expect("distances at the end", np.array_equal(D, np.take_along_axis(W, order, 1)))
                self.expect("results at the end", found.tolist() == [[ids[r] for r in line] for line in order])

    def run(self) -> dict[str, Any]:
        """Run the threads, then compare; return a summary."""
        works = [(self.write_on, i) for i in range(WRITERS)] + [(self.search_on, i) for i in range(SEARCHERS)]
        threads = [threading.Thread(target=self.guarded, args=work) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.compare()
        return {
            "rows_written": self.writes,
            "searches": self.searches,
            "hits_checked": self.hits,
            "rows_at_the_end": len(self.index),
            "problems": dict(self.problems),
        }


def codes(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return 64-bit codes of which 24 bits vary: some codes repeat, so rows are grouped."""
    B = np.zeros((n, 8), np.uint8)
    B[:, :3] = rng.integers(0, 256, (n, 3))
    return B


def distance(q: np.ndarray, code: bytes) -> int:
    """Return the Hamming distance."""
    return (int.from_bytes(q.tobytes(), "big") ^ int.from_bytes(code, "big")).bit_count()


def main() -> int:
    """Run every pattern for its share of the time; return 1 if there was a problem."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="for all patterns together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="JSON file for the results")
    asked = parser.parse_args()
    sys.setswitchinterval(1e-4)  # switch threads fifty times as often as by default
    patterns = ids_of_every_pattern(np.random.default_rng(asked.seed))
    results = {name: Stress(ids, asked.seed, asked.seconds / len(patterns)).run() for name, ids in patterns.items()}
    total = {
        "what": "HammingIndex under 8 threads (4 write, 4 search) against a shadow",
        "seconds": asked.seconds,
        "rows_written": sum(r["rows_written"] for r in results.values()),
        "searches": sum(r["searches"] for r in results.values()),
        "problems": sum(sum(r["problems"].values()) for r in results.values()),
        "by_pattern_of_ids": results,
    }
    text = json.dumps(total, indent=1)
    print(text)
    if asked.output:
        asked.output.write_text(text + "\n")
    return 1 if total["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
