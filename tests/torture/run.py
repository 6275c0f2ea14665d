"""All of the torture, one script after the other, within a given time; their results as one JSON.

    python tests/torture/run.py --minutes 15 --output benchmarks/results/torture.json

A script takes `--seconds` and `--output FILE.json` and ends with 0 if nothing broke. One that is not done a minute
and a half after its time (kernels are compiled first), or when all time is up, is stopped and counts as broken.
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
    "fuzz_files": 0.35,
    "index_stress": 0.1,
    "service_attacks": 0.45,
}  # of the time; the rest is for starting up


def torture(folder: Path, shares: dict[str, float], seconds: float, grace: float = 90.0) -> dict[str, Any]:
    """What every script found, and whether it ended well."""
    results: dict[str, Any] = {}
    end = time.monotonic() + seconds
    for name, share in shares.items():
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as temporary:
            output = Path(temporary, "result.json")
            command = [sys.executable, folder / f"{name}.py", "--seconds", str(share * seconds), "--output", output]
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


def main() -> None:
    """Run, write, and end with 1 if anything broke."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    results = torture(Path(__file__).parent, SHARES, 60 * given.minutes)
    write_json(given.output, {**results, "environment": environment()})
    sys.exit(0 if all(result["ok"] for result in results.values()) else 1)


if __name__ == "__main__":
    main()
