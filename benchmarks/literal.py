"""DISH-K with the settings that follow the paper's print, one at a time and together, compared with the defaults.

CIFAR-10 GIST, all 59,000 database rows for training. A trial is one split of the rows and one seed, the same for all
variants, so that differences are paired. Two variants are the start alone, without an H-step; the authors' code has
λ = 320. Writes benchmarks/results/literal.json after every fit, and prints differences from the defaults with 95 %
confidence intervals over trials.

Runs that the file already has are skipped, so an interrupted call is resumed by the same call. A file with runs of
another commit is refused.

    python benchmarks/literal.py
    python benchmarks/literal.py --only default,literal --bits 64 --trials 1 --output quick.json
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from dish import machine, metrics
from dish.errors import InputError
from dish.experiments import bench, significance
from dish.experiments.bench import Run

RESULTS = Path(__file__).parent / "results" / "literal.json"
PRINTED = {"init": "spectral-literal", "take_back": False, "ridge": 0}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {  # what it is compared with, and the parameters that differ
    "default": ("default", {}),
    **{name: ("default", {name: value}) for name, value in PRINTED.items()},
    "lam": ("default", {"lam": 320}),
    "literal": ("default", PRINTED),
    "literal+lam": ("default", {**PRINTED, "lam": 320}),
    "start": ("start", {"n_iter": 0}),
    "literal start": ("start", {"n_iter": 0, "init": "spectral-literal"}),
}
SCORES = ("map", "precision_within_2", "map_learned_codes", "fit_s")
KEY = ("trial", "bits", "variant")
Found = dict[str, Any]


def measure(data: Any, variant: str, bits: int, trial: int, n_anchors: int) -> Found:
    """Fit one variant and score its codes, or say why it failed; the trial is the split and the seed."""
    params = {"n_anchors": n_anchors, **VARIANTS[variant][1]}
    split = data.split(trial)
    X, Xq = (bench.prepared(data, rows) for rows in (split.database, split.query))
    y, yq = data.y[split.database], data.y[split.query]
    hasher = bench.make_method(Run(data.name, "dish_k", bits, trial=trial, params=tuple(params.items())))
    start = time.perf_counter()
    try:
        hasher.fit(X, y)
    except InputError as error:
        return {"failed": str(error)}
    fit_s = time.perf_counter() - start
    q = hasher.transform(Xq)
    scores = metrics.evaluate(q, yq, hasher.transform(X), y)
    return {
        "map": scores.map,
        "precision_within_2": scores.precision_within_2,
        "map_learned_codes": metrics.mean_average_precision(q, yq, hasher.codes_, y),
        "objective": hasher.objective_.tolist(),
        "fit_s": fit_s,
        "stages_s": hasher.timings_,
    }


def differences(runs: list[Found]) -> list[Found]:
    """For each code length and variant: mean scores, and the paired differences from its base, with intervals."""
    by_key = {tuple(run[name] for name in KEY): run for run in runs if "failed" not in run}
    rows = []
    for bits in sorted({run["bits"] for run in runs}):
        for variant, (base, _) in VARIANTS.items():
            trials = sorted(t for t, r, v in by_key if (r, v) == (bits, variant))
            paired = [t for t in trials if (t, bits, base) in by_key]
            if not trials:
                continue
            row: Found = {"bits": bits, "variant": variant, "base": base, "trials": len(trials)}
            for score in SCORES:
                row[score] = float(np.mean([by_key[t, bits, variant][score] for t in trials]))
                if variant != base and paired:
                    gaps = [by_key[t, bits, variant][score] - by_key[t, bits, base][score] for t in paired]
                    row[f"{score}_difference"] = (
                        list(significance.interval(np.array(gaps))) if len(gaps) > 1 else gaps
                    )
            rows.append(row)
    return rows


def opened(path: Path, about: Found) -> Found:
    """The content of the results file, or that of a new one."""
    if not path.exists():
        return {**about, "runs": []}
    content: Found = json.loads(path.read_text())
    then, now = (each["environment"]["commit"] for each in (content, about))
    settings = {name: content[name] for name in ("data", "n_anchors")}
    if then != now or settings != {name: about[name] for name in settings}:
        raise SystemExit(
            f"{path} has runs of commit {then} with {settings}, and this is commit {now}: move it away, or give "
            "another --output"
        )
    return content


def table(rows: list[Found]) -> str:
    """The differences as text."""
    lines = [f"{'bits':>4} {'variant':17} {'trials':>6}  {'MAP':24} {'precision within 2':24} {'fit':>7}"]
    for row in rows:
        cells = []
        for score in SCORES[:2]:
            gap = [f"{value:+.4f}" for value in row.get(f"{score}_difference", [])]  # one trial has no interval
            cells.append(" ".join([f"{row[score]:.4f}", *gap[:1], *(["[{1}, {2}]".format(*gap)] if gap[1:] else [])]))
        name = f"{row['bits']:4} {row['variant']:17} {row['trials']:6}"
        lines.append(f"{name}  {cells[0]:34} {cells[1]:34} {row['fit_s']:6.1f}s")
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    """The options of this call, checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bits", default="16,32,64,96")
    parser.add_argument("--trials", type=int, default=5, help="two or more for confidence intervals")
    parser.add_argument("--only", default=",".join(VARIANTS), help="variants, separated by commas")
    parser.add_argument("--data", default="cifar10_gist", help="a data set by name, or your own features")
    parser.add_argument("--anchors", type=int, default=1000)
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    if unknown := set(given.only.split(",")) - set(VARIANTS):
        parser.error(f"--only: no variant {', '.join(sorted(unknown))}; there are {', '.join(VARIANTS)}")
    return given


def main() -> None:
    """Measure what is missing, write it, and print the table."""
    given = parse()
    data = bench.load_data(given.data)
    about = {"what": __doc__.splitlines()[0], "data": data.name, "n_anchors": given.anchors}
    content = opened(given.output, {**about, "environment": machine.environment()})
    done = {tuple(run[name] for name in KEY) for run in content["runs"]}
    wanted = [
        (trial, int(bits), variant)
        for trial in range(given.trials)
        for bits in given.bits.split(",")
        for variant in given.only.split(",")
    ]
    for trial, bits, variant in (key for key in wanted if key not in done):
        found = measure(data, variant, bits, trial, given.anchors)
        content["runs"].append({"trial": trial, "seed": trial, "bits": bits, "variant": variant, **found})
        content["differences"] = differences(content["runs"])
        bench.write_json(given.output, content)
        print(trial, bits, variant, {k: v for k, v in found.items() if k != "stages_s"}, flush=True)
    print(table(content.get("differences", [])))


if __name__ == "__main__":
    main()
