"""Codes of a few classes learned from a few rows each: mean MAP over random draws of classes and rows.

Each draw takes random classes of a file that benchmarks/real.py reads, and random training rows of each. The database
is all other rows of these classes, the queries are the file's own of these classes (a quarter of the other rows where
the file has none). All methods have their default parameters and see the training rows only. The draw is the seed.
Writes benchmarks/results/few_classes.json.

    python benchmarks/few_classes.py data/newsgroups_tfidf.npz
    python benchmarks/few_classes.py data/clinc150_use.npz --classes 5 --rows 8 --draws 10 --output clinc150.json
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np

import real
from dish import machine
from dish.experiments import bench
from real_protocols import Part, Split, read

RESULTS = Path(__file__).parent / "results" / "few_classes.json"
METHODS = ("cosine", "dish", "dish_0", "dish_k", "sdh", "fssh", "lfh", "cosdish", "fasth", "logistic_lsh")
METHODS = (*METHODS, "cca_itq", "whitened_itq", "pca_itq", "sign")
PROTOCOL = "disjoint"  # no database row was trained on


def draw(rows: Part, queries: Part | None, n_classes: int, n_rows: int, seed: int) -> Split:
    """Training rows of random classes, with the other rows of these classes as database and queries."""
    rng = np.random.default_rng(seed)
    names, sizes = np.unique(rows.y, return_counts=True)
    able = names[sizes >= n_rows + (2 if queries is None else 1)]
    able = able if queries is None else np.intersect1d(able, queries.y)
    if len(able) < n_classes:
        raise SystemExit(
            f"--classes {n_classes}: only {len(able)} classes have more than --rows {n_rows} rows and a query"
        )
    classes = rng.choice(able, n_classes, replace=False)
    of_class = [rng.permutation(np.flatnonzero(rows.y == c)) for c in classes]
    train, rest = (np.concatenate([m[part] for m in of_class]) for part in (slice(n_rows), slice(n_rows, None)))
    if queries is not None:
        return Split(rows.rows(train), rows.rows(rest), queries.rows(np.isin(queries.y, classes)))
    rest = rng.permutation(rest)
    n = math.ceil(len(rest) / 4)
    return Split(rows.rows(train), rows.rows(rest[n:]), rows.rows(rest[:n]))


def score(name: str, bits: int, seed: int, parts: Split, options: real.Options) -> dict[str, Any]:
    """MAP of one method, or why there is none."""
    try:
        if name == "cosine":
            found = real.score_floats(name, parts, PROTOCOL, None, None, options.device)[name]
        else:
            found = real.score_codes(real.fit(name, bits, seed, parts, options), parts, PROTOCOL, None)
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"}
    return {"map": found["map"]}


def mean(maps: list[float]) -> dict[str, float]:
    """Mean and standard error of the mean."""
    return {"map": float(np.mean(maps)), "standard_error": float(np.std(maps, ddof=1) / math.sqrt(len(maps)))}


def measure(path: Path, methods: list[str], given: argparse.Namespace) -> dict[str, Any]:
    """All draws of one file; a method that failed in a draw has no mean."""
    rows, queries = read(path)
    options = real.Options(methods, [given.bits], [PROTOCOL], given.draws, given.device, given.limit, set(), math.inf)
    runs = []
    for seed in range(given.draws):
        parts = draw(rows, queries, given.classes, given.rows, seed)
        sizes = {"database": len(parts.base.X), "queries": len(parts.queries.X)}
        for name in methods:
            found = score(name, given.bits, seed, parts, options)
            classes = np.unique(parts.train.y).tolist()
            runs.append({"draw": seed, "method": name, "seed": seed, "classes": classes, **sizes, **found})
            print(seed, name, found, flush=True)
    by_method = {name: [run.get("map") for run in runs if run["method"] == name] for name in methods}
    return {
        **{"what": __doc__.splitlines()[0], "data": path.stem, "bits": given.bits, "classes": given.classes},
        **{"rows_per_class": given.rows, "draws": given.draws, "environment": machine.environment()},
        **{"means": {name: mean(maps) for name, maps in by_method.items() if None not in maps}, "runs": runs},
    }


def main() -> None:
    """Measure one file and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--classes", type=int, default=5)
    parser.add_argument("--rows", type=int, default=8, help="training rows per class")
    parser.add_argument("--draws", type=int, default=10, help="two or more, for the standard error")
    parser.add_argument("--bits", type=int, default=64)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--device", default="cpu", help="for methods that can choose")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds that a method may fit and encode")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.draws < 2:
        parser.error(f"--draws must be at least 2; got {given.draws}")
    content = measure(given.file, given.methods.split(","), given)
    bench.write_json(given.output, content)
    for name, found in sorted(content["means"].items(), key=lambda item: -item[1]["map"]):
        print(f"{name:14} {found['map']:.4f} ± {found['standard_error']:.4f}")


if __name__ == "__main__":
    main()
