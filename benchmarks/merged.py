"""Joins runs of benchmarks/real.py or benchmarks/ablation.py that were made side by side, one folder per part.

Files of the same name become one file in the folder --output. All runs must be of one commit, and no run may be in
two parts.

    python benchmarks/merged.py out/labelled out/disjoint --output benchmarks/results/real
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from dish.experiments.bench import write_json

KEY = ("data", "protocol", "trial", "method", "bits")


def merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """One file of several: their environments, tuning and runs, whose environments get new numbers."""
    found: dict[str, Any] = {**parts[0], "environments": [], "runs": []}
    for part in parts:
        first = len(found["environments"])
        found["environments"] += part["environments"]
        for training, methods in part.get("tuning", {}).items():
            known = found["tuning"].setdefault(training, {})
            for name, tuned in methods.items():
                moved = {**tuned, "environment": tuned["environment"] + first}
                if known.setdefault(name, moved)["chosen"] != tuned["chosen"]:
                    raise SystemExit(f"{name}, {training}: two parts chose different settings")
        found["runs"] += [{**run, "environment": run["environment"] + first} for run in part["runs"]]
    keys = [tuple(run.get(name) for name in KEY) for run in found["runs"]]
    if len(set(keys)) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise SystemExit(f"two parts have the run {twice}")
    commits = {each["commit"] for each in found["environments"]}
    if len(commits) > 1:
        raise SystemExit(f"runs of several commits: {', '.join(sorted(commits))}")
    return found


def main() -> None:
    """Join the files of all folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    for name in sorted({path.name for folder in given.folders for path in folder.glob("*.json")}):
        parts = [json.loads((folder / name).read_text()) for folder in given.folders if (folder / name).exists()]
        content = merged(parts)
        write_json(given.output / name, content)
        print(f"{given.output / name}: {len(parts)} parts, {len(content['runs'])} runs")


if __name__ == "__main__":
    main()
