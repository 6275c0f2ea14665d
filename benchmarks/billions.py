"""The tables of docs/billions.md: bytes, machines and seconds for billions of rows, computed from measured rates.

    python benchmarks/billions.py

Nothing is measured here. The rates come from benchmarks/results/ray_cluster.json. One machine with two cores was
measured. That rates add up over cores and machines is an assumption, stated on the page.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pages

RESULTS = Path(__file__).parent / "results" / "ray_cluster.json"
ROWS = (10**9, 10**10, 10**11)
CODE, ID = 8, 8  # bytes per row: a code of 64 bits, and an integer id
CORES, MEMORY = 16, 64e9  # of an assumed machine; half of its memory holds codes and ids
WORKERS = 2  # that encoded in the benchmark


@dataclass(frozen=True)
class Rates:
    """What was measured, per core."""

    batched: float  # codes compared per second, in batches of 1,000 queries
    single: float  # codes compared per second, one query at a time
    encoded: float  # rows encoded per second by a worker
    commit: str

    @classmethod
    def of(cls, content: dict) -> Rates:
        """Read the rates from the results of ray_cluster.py."""
        search, encode = content["search"], content["encode"]
        cores = search["environment"]["cores"]
        return cls(
            search["rows"] * search["by k"]["100"]["queries per second"]["four shards"] / cores,
            search["rows"] / search["seconds of a single query, four shards"] / cores,
            encode["rows per second"] / WORKERS,
            search["environment"]["commit"],
        )


def table(content: dict) -> str:
    """Return both tables, as Markdown."""
    rates = Rates.of(content)
    measured = [
        ("codes compared per second, batches of 1,000 queries", rates.batched),
        ("codes compared per second, one query at a time", rates.single),
        ("rows encoded per second (**synthetic**, 64 features)", rates.encoded),
    ]
    lines = ["| measured, per core | |", "|---|---:|", *(f"| {name} | {in_words(rate)} |" for name, rate in measured)]
    lines += ["", f"*Measured ([results](../benchmarks/results/ray_cluster.json)), commit {rates.commit}.*", ""]
    lines += ["Computed from these rates:", ""]
    lines += [
        "| rows | codes and ids | machines | cores | one query, s | queries per second, batches | encoding, hours |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for n in ROWS:
        machines = max(1, round_up(n * (CODE + ID) / (MEMORY / 2)))
        cores = machines * CORES
        cells = (
            in_words(n), f"{n * (CODE + ID) / 1e9:,.0f} GB", f"{machines:,}", f"{cores:,}",
            digits(n / rates.single / cores), digits(rates.batched * cores / n),
            digits(n / rates.encoded / cores / 3600),
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def round_up(x: float) -> int:
    """Return the least whole number that is not below x."""
    return -int(-x // 1)


def digits(x: float) -> str:
    """Return a number with two digits."""
    return f"{float(f'{x:.2g}'):,g}"


def in_words(x: float) -> str:
    """Return a large number in words."""
    for size, name in ((10**9, "billion"), (10**6, "million")):
        if x >= size:
            return f"{digits(x / size)} {name}"
    return f"{float(f'{x:.2g}'):,.0f}"


def main() -> None:
    """Write the tables to the page."""
    pages.write("billions", table(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
