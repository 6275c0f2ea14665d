"""All of the torture, one script after the other, within a given time; their results as one JSON.

    python tests/torture/run.py --minutes 15 --output benchmarks/results/torture.json

A script takes `--seconds`, `--seed` and `--output FILE.json` and ends with 0 if nothing broke. One that is not done a
minute and a half after its time (kernels are compiled first), or when all time is up, is stopped, and is broken.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dish.experiments.bench import write_json
from dish.machine import environment

SHARES = {
    "fuzz_files": 0.12,
    "index_stress": 0.04,
    "replay_model": 0.08,
    "worst_requests": 0.34,
    "service_attacks": 0.32,
}  # of the time; the rest is for starting up
START_UP = 400.0  # seconds that even the shortest run may take: a dozen servers start
COMPLETE = 10.0  # minutes from which on everything must be run


def torture(
    folder: Path, shares: dict[str, float], seconds: float, grace: float = 90.0, seed: int = 0
) -> dict[str, Any]:
    """What every script found, and whether it ended well."""
    results: dict[str, Any] = {}
    end = time.monotonic() + max(seconds, START_UP)
    for name, share in shares.items():
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as temporary:
            output = Path(temporary, "result.json")
            limits = ["--seconds", str(share * seconds), "--seed", str(seed)]
            command = [sys.executable, folder / f"{name}.py", *limits, "--output", output]
            left = max(1.0, min(share * seconds + grace, end - time.monotonic()))
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
            try:
                code: int | str = process.wait(left)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # with the servers it started
                process.wait()
                code = f"stopped after {left:.0f} s"
            found = json.loads(output.read_text()) if output.exists() else None
        results[name] = {"ok": code == 0 and found is not None, "exit": code, "seconds": time.perf_counter() - start}
        results[name]["found"] = found
        print(f"{name}: {'ok' if results[name]['ok'] else 'BROKEN'}, {results[name]['seconds']:.0f} s", flush=True)
    return results


def summary(results: dict[str, Any]) -> dict[str, Any]:
    """The totals: kills, acknowledged changes, lost ones, longest answer of /health, most memory of a server."""
    found = [result["found"] or {} for result in results.values()]

    def values(name: str) -> list[Any]:
        return [one.get(name) or 0 for one in found]

    counts = ("kills", "acknowledged", "lost", "sequences", "simulated_kills", "changes", "differences", "not_run")
    total = {name: sum(values(name)) for name in counts}
    return total | {name: max(values(name)) for name in ("longest_health_s", "peak_memory_mb")}


def main() -> None:
    """Run, write, and end with 1 if anything broke, or if a long run left something out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    results = torture(Path(__file__).parent, SHARES, 60 * given.minutes, seed=given.seed)
    totals = summary(results)
    print(json.dumps(totals))
    about = {
        "summary": totals,
        "minutes": given.minutes,
        "seed": given.seed,
        "environment": environment("web", "index", "io"),
    }
    write_json(given.output, {**about, **results})
    complete = given.minutes < COMPLETE or not totals["not_run"]
    sys.exit(0 if complete and all(result["ok"] for result in results.values()) else 1)


if __name__ == "__main__":
    main()
