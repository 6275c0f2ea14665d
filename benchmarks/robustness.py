"""Codes from bad data: outliers, features of different scales, offsets, heavy tails, wrong labels.

    python benchmarks/robustness.py                        # writes results/robustness.json
    python benchmarks/robustness.py --features clinc.npz   # with real features X, y of one's own
    python benchmarks/robustness_page.py                   # writes docs/robustness.md from the file

Training rows are damaged; queries and database rows are clean, and neither was trained on. Where the features
themselves change (scales, offsets, heavy tails), they change for all rows. "warned" lists what ``fit`` said.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from dish import DISH, DISHK, machine, metrics
from dish.baselines import REGISTRY
from dish.experiments.bench import write_json

RESULTS = Path(__file__).parent / "results" / "robustness.json"
BITS, SEEDS = 32, (0, 1, 2)
METHODS: dict[str, Callable[[int], Any]] = {
    "DISH": lambda seed: DISH(BITS, random_state=seed),
    "DISHK": lambda seed: DISHK(BITS, random_state=seed),
    "logistic LSH": lambda seed: REGISTRY["logistic_lsh"](BITS, random_state=seed),
    "SDH": lambda seed: REGISTRY["sdh"](BITS, random_state=seed),
}
Rows = np.ndarray
Damage = Callable[[Rows, Rows, Rows, np.random.Generator], tuple[Rows, Rows, Rows]]  # train, others, y → the same


# --- Data ---


def synthetic(seed: int) -> tuple[Rows, Rows]:
    """Ten overlapping Gaussian classes of 20 features."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 10, 4400)
    return (rng.standard_normal((10, 20))[y] + rng.standard_normal((4400, 20))).astype(np.float32), y


def digits(seed: int) -> tuple[Rows, Rows]:
    """scikit-learn's digits: 1,797 real images of 64 pixels."""
    X, y = load_digits(return_X_y=True)
    return X.astype(np.float32), y


def features(path: Path) -> Callable[[int], tuple[Rows, Rows]]:
    """At most 6,000 rows X, y of an .npz file (X · scale if the file has a scale)."""

    def rows(seed: int) -> tuple[Rows, Rows]:
        with np.load(path) as file:
            X, y = file["X"] * file.get("scale", np.float32(1)), file["y"]
        picked = np.random.default_rng(seed).permutation(len(X))[:6000]
        return X[picked].astype(np.float32), y[picked]

    return rows


# --- Damage ---


def unchanged(train: Rows, others: Rows, y: Rows, rng: np.random.Generator) -> tuple[Rows, Rows, Rows]:
    """Clean data."""
    return train, others, y


def outliers(share: float, kind: str) -> Damage:
    """Scale a share of the training rows by 10 or 10⁴, or replace them by noise of 10³ standard deviations."""

    def damage(train: Rows, others: Rows, y: Rows, rng: np.random.Generator) -> tuple[Rows, Rows, Rows]:
        picked = rng.choice(len(train), round(share * len(train)), replace=False)
        train = train.copy()
        if kind == "noise":
            train[picked] = 1e3 * train.std() * rng.standard_normal((len(picked), train.shape[1]))
        else:
            train[picked] *= float(kind)
        return train, others, y

    return damage


def scales(low: float, high: float) -> Damage:
    """Multiply features by factors that are log-uniform in [low, high]."""

    def damage(train: Rows, others: Rows, y: Rows, rng: np.random.Generator) -> tuple[Rows, Rows, Rows]:
        factors = np.exp(rng.uniform(np.log(low), np.log(high), train.shape[1])).astype(np.float32)
        return train * factors, others * factors, y

    return damage


def loud_feature(train: Rows, others: Rows, y: Rows, rng: np.random.Generator) -> tuple[Rows, Rows, Rows]:
    """Add one feature of noise whose deviation is 1,000 times that of the others."""
    noise = [1e3 * train.std() * rng.standard_normal((len(X), 1)) for X in (train, others)]
    return (
        *(np.hstack([X, extra]).astype(np.float32) for X, extra in zip((train, others), noise, strict=True)),
        y,
    )  # type: ignore[return-value]


def offset(train: Rows, others: Rows, y: Rows, rng: np.random.Generator) -> tuple[Rows, Rows, Rows]:
    """Add 1,000 standard deviations to every feature."""
    return train + 1e3 * train.std(), others + 1e3 * train.std(), y


def heavy_tails(train: Rows, others: Rows, y: Rows, rng: np.random.Generator) -> tuple[Rows, Rows, Rows]:
    """Multiply every training row by its own factor 1 + |t| with t of a Cauchy distribution."""
    factors = 1 + np.abs(rng.standard_cauchy((len(train), 1)))
    return (train * factors).astype(np.float32), others, y


def wrong_labels(train: Rows, others: Rows, y: Rows, rng: np.random.Generator) -> tuple[Rows, Rows, Rows]:
    """Give 30 % of the training rows a random label."""
    picked = rng.random(len(y)) < 0.3
    return train, others, np.where(picked, rng.choice(np.unique(y), len(y)), y)


DAMAGES: dict[str, Damage] = {
    "clean": unchanged,
    **{
        f"{share:.1%} outliers, {what}": outliers(share, kind)
        for kind, what in (("1e4", "× 10⁴"), ("10", "× 10"), ("noise", "noise × 10³"))
        for share in (0.005, 0.01, 0.02, 0.1, 0.3)
    },
    "one loud feature": loud_feature,
    "scales 10⁻² … 10²": scales(1e-2, 1e2),
    "scales 10⁻⁶ … 10⁶": scales(1e-6, 1e6),
    "offset 10³": offset,
    "heavy tails": heavy_tails,
    "30 % wrong labels": wrong_labels,
}


# --- Runs ---


def run(data: Callable[[int], tuple[Rows, Rows]], damage: Damage, method: str, seed: int) -> dict[str, Any]:
    """MAP of clean queries in a clean database, and what ``fit`` warned of."""
    X, y = data(seed)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(X))
    q, db, seen = np.split(order, [len(X) // 10, 3 * len(X) // 10])
    train, others, y_train = damage(X[seen], X[np.r_[q, db]], y[seen], rng)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hasher = METHODS[method](seed).fit(train, y_train)
    codes = hasher.transform(others)
    found = metrics.mean_average_precision(codes[: len(q)], y[q], codes[len(q) :], y[db])
    return {"seed": seed, "map": round(found, 4), "warned": [str(each.message)[:200] for each in caught]}


def measure(sources: dict[str, Callable[[int], tuple[Rows, Rows]]], only: str) -> list[dict[str, Any]]:
    """All runs, printed as they finish."""
    found = []
    for name, data in sources.items():
        for damage, apply in DAMAGES.items():
            if only not in damage and damage != "clean":
                continue
            for method in METHODS:
                for seed in SEEDS:
                    found.append({"data": name, "damage": damage, "method": method} | run(data, apply, method, seed))
                maps = [each["map"] for each in found[-len(SEEDS) :]]
                print(f"{name:18} {damage:28} {method:13} {maps} {found[-1]['warned']}", flush=True)
    return found


def main() -> None:
    """Run, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=Path, help=".npz file with X and y, for example CLINC150")
    parser.add_argument("--only", default="", help="only damages whose name holds this text; prints, writes nothing")
    options = parser.parse_args()
    sources = {"synthetic classes": synthetic, "digits": digits}
    if options.features:
        sources[options.features.stem] = features(options.features)
    runs = measure(sources, options.only)
    if not options.only:
        write_json(RESULTS, {"bits": BITS, "runs": runs, "environment": machine.environment()})


if __name__ == "__main__":
    main()
