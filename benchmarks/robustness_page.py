"""docs/robustness.md, from results/robustness.json, which benchmarks/robustness.py makes.

python benchmarks/robustness_page.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import pages
from dish.experiments.tables import markdown_grid
from dish.io.atomic import write_atomically

RESULTS = Path(__file__).parent / "results" / "robustness.json"
LOST = 0.02  # MAP
INTRO = """# Bad data

<!-- outdated -->

{findings}

Outdated, will be repeated: `DISH` could use up to half of its bits for geometry then, now at most a quarter. It also
learns label sets and few classes differently now.

Only the training rows are damaged. Queries and database are clean rows that were not used for training. Changed
scales, offsets and added features apply to all rows. Each cell is the mean MAP of three trials at {bits} bits. **w**
marks cells where `fit` warned in every trial. Synthetic rows say so in their name.
"""
DAMAGES = """## Kinds of damage

| training rows | damage |
|---|---|
| outliers, × 10⁴ or × 10 | a share of the rows is multiplied by this factor |
| outliers, noise × 10³ | a share of the rows is replaced by noise of 1,000 standard deviations |
| one loud feature | one more feature: noise with 1,000 times the deviation of the others |
| scales | every feature is multiplied by its own factor in this range |
| offset 10³ | 1,000 standard deviations are added to every feature |
| heavy tails | every row is multiplied by 1 + \\|t\\|, with t from a Cauchy distribution |
| 30 % wrong labels | this share of the rows gets a random label |
"""
Runs = list[dict[str, Any]]


def methods_of(runs: Runs) -> list[str]:
    """The methods, in the order of the runs."""
    return list(dict.fromkeys(each["method"] for each in runs))


def findings(runs: Runs) -> str:
    """Which method loses much MAP least often; for every method how often, and how often without a warning."""
    clean = {(r["data"], r["method"], r["seed"]): r["map"] for r in runs if r["damage"] == "clean"}
    rows = []
    for method in methods_of(runs):
        damaged = [r for r in runs if r["method"] == method and r["damage"] != "clean"]
        lost = [r for r in damaged if clean[r["data"], method, r["seed"]] - r["map"] > LOST]
        rows.append([method, len(damaged), len(lost), sum(not r["warned"] for r in lost)])
    method, damaged, lost, silent = min(rows, key=lambda row: row[2])
    heads = ["method", "damaged fits", f"lost more than {LOST:g} MAP", "of these without a warning"]
    return (
        f"{method} loses more than {LOST:g} MAP least often: in {lost} of {damaged} fits with damaged training rows. "
        f"In {silent} of these, `fit` gave no warning.\n\n"
        + markdown_grid(heads, [list(map(str, row)) for row in rows]).rstrip()
    )


def table(runs: Runs) -> str:
    """One line per damage, one column per method, for one data set."""
    methods, rows = methods_of(runs), []
    for damage in dict.fromkeys(each["damage"] for each in runs):
        cells = []
        for method in methods:
            own = [each for each in runs if (each["damage"], each["method"]) == (damage, method)]
            mark = " **w**" if all(each["warned"] for each in own) else ""
            cells.append(f"{np.mean([each['map'] for each in own]):.3f}{mark}")
        rows.append([damage, *cells])
    return markdown_grid(["training rows", *methods], rows)


def page(content: dict[str, Any]) -> str:
    """The whole page."""
    runs, environment = content["runs"], content["environment"]
    parts = [INTRO.format(findings=findings(runs), bits=content["bits"])]
    for data in dict.fromkeys(each["data"] for each in runs):
        name = data.capitalize() if " " in data else data
        parts.append(f"## {name}\n\n{table([each for each in runs if each['data'] == data])}")
    parts.append(DAMAGES)
    parts.append(
        "*Measured by `benchmarks/robustness.py` ([results](../benchmarks/results/robustness.json)), "
        f"{environment['cpu']}, commit {environment['commit'][:7]}.*\n"
    )
    return "\n".join(parts)


def written() -> list[tuple[Path, str, list[Path]]]:
    """The page, its text, and the results that it is made from."""
    return [(pages.ROBUSTNESS, page(json.loads(RESULTS.read_text())), [RESULTS])]


def main() -> None:
    """Write the page."""
    for path, text, _ in written():
        write_atomically(path, text.encode())


if __name__ == "__main__":
    main()
