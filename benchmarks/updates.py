"""New classes, backfill and batches: how good codes stay while data and classes change.

The arguments are Tiny ImageNet (100,000 training rows, 200 classes) and CLINC150, or one of the two, as .npz with
int8 X, a scale, and y; the file name begins with the name of the data set. Rows are drawn at random for training,
queries and database. Writes benchmarks/results/updates.json, where the results of the other data set stay.

- compatible: an older model learned the old classes from half of the training rows; a newer one learns all rows and
  classes with compatible_with, and a third one without it. "same rows": the older model had all rows of its classes.
- backfill: a database of codes of the older model; shares of it are encoded again, the least certain rows first, or
  in random order.
- batches: partial_fit in ten batches, in random order and sorted by class, and one fit of all rows. DISHK gets the
  anchors and gamma of the fit.

    python benchmarks/updates.py tinyimagenet_lite0.npz clinc150_use.npz [--quick]
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from sklearn.preprocessing import normalize

import pages
from dish import DISH, DISHK, machine, metrics
from dish.experiments import bench
from dish.io.backfill import least_certain

BITS, SEEDS, BATCHES = 64, 3, 10
SHARES = (0.0, 0.1, 0.25, 0.5, 1.0)
SIZES = {"tinyimagenet": (30_000, 2_000, 20_000), "clinc150": (12_000, 2_000, 8_000)}  # training, queries, database
QUICK = (1_200, 300, 800)
NEW = {"tinyimagenet": 20, "clinc150": 30}  # classes that the older model does not know
N_TRAIN = {"tinyimagenet": 100_000}  # of Tiny ImageNet, the others are the validation set
RESULTS = Path(__file__).parent / "results" / "updates.json"
TITLES = {"tinyimagenet": "Tiny ImageNet", "clinc150": "CLINC150"}
print_line = Console(width=160).print


@dataclass(frozen=True)
class Split:
    """Row indices for one seed, and which rows are of new classes."""

    X: Any
    y: Any
    train: Any
    queries: Any
    base: Any
    is_new: Any

    @classmethod
    def draw(cls, name: str, X: Any, y: Any, seed: int, quick: bool) -> Split:
        """Draw rows and new classes at random."""
        rng = np.random.default_rng(seed)
        sizes = QUICK if quick else SIZES[name]
        order = rng.permutation(N_TRAIN.get(name, len(X)))[: sum(sizes)]
        train, queries, base = np.split(order, np.cumsum(sizes)[:2])
        return cls(X, y, train, queries, base, np.isin(y, rng.choice(np.unique(y), NEW[name], replace=False)))

    def old(self, rows: Any) -> Any:
        """The rows of old classes among some rows."""
        return rows[~self.is_new[rows]]

    def map(self, query_model: Any, queries: Any, codes: Any, base: Any) -> float:
        """MAP of queries against a database of codes."""
        q = query_model.transform(self.X[queries])
        return float(metrics.mean_average_precision(q, self.y[queries], codes, self.y[base]))


def compatible(split: Split, seed: int, same_rows: bool) -> tuple[dict[str, Any], Any, Any]:
    """Scores of an older, a newer and an unconstrained model; the first two models."""
    X, y, train = split.X, split.y, split.train
    known = split.old(train if same_rows else train[: len(train) // 2])
    old = DISH(BITS, random_state=seed).fit(X[known], y[known])
    start = time.perf_counter()
    new = DISH(BITS, random_state=seed + 100).fit(X[train], y[train], compatible_with=old)
    seconds = time.perf_counter() - start
    free = DISH(BITS, random_state=seed + 100).fit(X[train], y[train])
    q, base = split.old(split.queries), split.old(split.base)
    before, labelled = old.transform(X[base]), old.transform(X[base], labels=y[base])
    changed = (labelled != new.transform(X[base], labels=y[base])).any(axis=1).mean()
    found = {
        "old queries, old database": split.map(old, q, before, base),
        "new queries, old database": split.map(new, q, before, base),
        "old queries, old label codes": split.map(old, q, labelled, base),
        "new queries, old label codes": split.map(new, q, labelled, base),
        "new queries, new database": split.map(new, split.queries, new.transform(X[split.base]), split.base),
        "unconstrained fit": split.map(free, split.queries, free.transform(X[split.base]), split.base),
        "share of changed label codes": float(changed),
        "fit_s": seconds,
    }
    return {"same_rows": same_rows, "seed": seed, **found}, old, new


def backfilled(split: Split, old: Any, new: Any, seed: int) -> dict[str, Any]:
    """MAP of the newer model's queries while the database of all classes is encoded again, in two orders."""
    before, after = (h.transform(split.X[split.base]) for h in (old, new))
    every = np.arange(len(before))
    orders = {
        "least certain first": least_certain(new, before, every),
        "random": np.random.default_rng(seed).permutation(every),
    }
    found: dict[str, Any] = {"seed": seed, "shares": SHARES}
    for name, order in orders.items():
        scores = []
        for share in SHARES:
            codes, done = before.copy(), order[: round(share * len(order))]
            codes[done] = after[done]
            scores.append(split.map(new, split.queries, codes, split.base))
        found[name] = scores
    return found


def batches(split: Split, seed: int) -> list[dict[str, Any]]:
    """One fit, and partial_fit in batches in random order and sorted by class, for both estimators."""
    X, y, rows, found = split.X, split.y, split.train, []
    orders = {"random": rows, "sorted by class": rows[np.argsort(y[rows], kind="stable")]}
    for kind in (DISH, DISHK):
        start = time.perf_counter()
        one = kind(BITS, random_state=seed).fit(X[rows], y[rows])
        models, times = {"one fit": one}, {"one fit": time.perf_counter() - start}
        fixed = {} if kind is DISH else {"anchors": one.anchors_, "gamma": one.gamma_, "scale": one.scale_}
        for name, order in orders.items():
            start, hasher = time.perf_counter(), kind(BITS, random_state=seed, **fixed)
            for batch in np.array_split(order, BATCHES):
                hasher.partial_fit(X[batch], y[batch])
            models[name], times[name] = hasher, time.perf_counter() - start
        for name, model in models.items():
            score = split.map(model, split.queries, model.transform(X[split.base]), split.base)
            found.append({"method": kind.__name__, "order": name, "seed": seed, "map": score, "s": times[name]})
    return found


def table(content: dict[str, Any]) -> str:
    """The tables of docs/updates-results.md: means over seeds."""
    lines = []
    for name, found in content["data"].items():
        made = found["environment"]
        where = f"{made.get('gpu', made['cpu'])}, commit {made['commit']}"
        (n, q, base), seeds = found["sizes"], {run["seed"] for run in found["backfill"]}
        lines += [
            f"**{TITLES[name]}**: {content['bits']} bits, {n:,} training rows, {q:,} queries, {base:,} database "
            f"rows, {found['new_classes']} new classes; MAP, mean of {len(seeds)} seeds ({where})",
            "",
            *compatible_table(found["compatible"]),
            "",
            *curve_table(found["backfill"]),
            "",
            *batch_table(found["batches"]),
            "",
        ]
    return "\n".join(lines[:-1])


def compatible_table(runs: list[dict[str, Any]]) -> list[str]:
    """New classes: MAP of each pair of queries and database."""
    lines = [
        "| the older model had | old queries, old database | new queries, old database | new queries, new database "
        "| a fit without `compatible_with` | label codes changed |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    keys = (
        "old queries, old database",
        "new queries, old database",
        "new queries, new database",
        "unconstrained fit",
    )
    for same in (False, True):
        some = [run for run in runs if run["same_rows"] is same]
        cells = [f"{np.mean([run[key] for run in some]):.3f}" for key in keys]
        cells.append(f"{np.mean([run['share of changed label codes'] for run in some]):.0%}")
        had = "all rows of its classes" if same else "half of the rows"
        lines.append(f"| {had} | {' | '.join(cells)} |")
    return lines


def curve_table(runs: list[dict[str, Any]]) -> list[str]:
    """Backfill: MAP by the share of rows that were encoded again."""
    head = " | ".join(f"{share:.0%}" for share in SHARES)
    lines = [f"| rows encoded again | {head} |", "|---|" + "---:|" * len(SHARES)]
    for order in ("least certain first", "random"):
        curve = np.mean([run[order] for run in runs], axis=0)
        lines.append(f"| {order} | {' | '.join(f'{value:.3f}' for value in curve)} |")
    return lines


def batch_table(runs: list[dict[str, Any]]) -> list[str]:
    """partial_fit in ten batches compared with one fit."""
    lines = ["| `partial_fit` in ten batches | one fit | random order | sorted by class |", "|---|---:|---:|---:|"]
    for method in dict.fromkeys(run["method"] for run in runs):
        scores = [
            np.mean([run["map"] for run in runs if (run["method"], run["order"]) == (method, order)])
            for order in ("one fit", "random", "sorted by class")
        ]
        lines.append(f"| {method} | {' | '.join(f'{score:.3f}' for score in scores)} |")
    return lines


def write_table(content: dict[str, Any]) -> None:
    """Replace the tables of the page."""
    pages.write("updates", table(content))


def main(arguments: list[str]) -> None:
    """Measure, print, write."""
    quick, paths = "--quick" in arguments, [a for a in arguments if not a.startswith("--")]
    seeds = range(1 if quick else SEEDS)
    data: dict[str, Any] = json.loads(RESULTS.read_text())["data"] if RESULTS.exists() else {}
    for path in paths:
        name = Path(path).stem.split("_")[0]
        with np.load(path) as file:
            X, y = normalize((file["X"] * file["scale"]).astype(np.float32)), file["y"]
        content: dict[str, Any] = {"sizes": QUICK if quick else SIZES[name], "new_classes": NEW[name]}
        content |= {"compatible": [], "backfill": [], "batches": []}
        for seed in seeds:
            split = Split.draw(name, X, y, seed, quick)
            for same_rows in (True, False):
                run, old, new = compatible(split, seed, same_rows)
                content["compatible"].append(run)
            content["backfill"].append(backfilled(split, old, new, seed))
            content["batches"] += batches(split, seed)
            print_line(f"{name}: seed {seed} done")
        data[name] = content | {"environment": machine.environment()}
    result = {"what": __doc__.splitlines()[0], "bits": BITS, "quick": quick, "data": data}
    print_line(table(result), markup=False)
    if quick:
        print_line("--quick: nothing is written")
        return
    bench.write_json(RESULTS, result)
    write_table(result)


if __name__ == "__main__":
    main(sys.argv[1:])
