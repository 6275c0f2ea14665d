"""Drift: which rows of withheld classes are flagged, how often normal rows alarm, and what recentring restores.

A model learns from some rows of three quarters of the classes. New rows are rows that it did not learn from, of these
classes and of the withheld ones; a file's own queries are among them. Three parts:

- Unknown classes: ROC of several values per row, and of the rule that `dish drift` uses, which combines the entropy
  and the ambiguity of the label. The rule was chosen by the part "chosen on", in which the classes of the training
  rows alone are split again: a second model withholds a quarter of those. Rows far from all training rows, which
  should be flagged as well, are why the rule has two parts.
- Scores: how often samples of normal rows of several sizes score above 0 or at least 0.1, and how often shifted ones
  do. The same for a profile of training rows, which shows why the profile in a model is of held-out rows.
- Recentring: MAP and neighbours before a shift of the database and its queries, after it, and after `recentre`.

Writes benchmarks/results/drift.json and docs/figures/drift-roc.svg.

    python benchmarks/drift.py data/clinc150_use.npz data/tinyimagenet_lite0.npz
    python benchmarks/drift.py                    # measures nothing: draws the results again
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score, roc_curve

from dish import DISH, machine, metrics
from dish.evaluation.drift import Drift, profile_of
from dish.experiments import bench, style
from dish.metrics.profile import KNOWN, Profile, RowTraits
from real_protocols import Part, read

RESULTS = Path(__file__).parent / "results" / "drift.json"
PICTURE = Path(__file__).parents[1] / "docs" / "figures" / "drift-roc.svg"
WITHHELD = 0.25  # of the classes
SIZES = (100, 300, 1000, 3000, 10_000)
ALERT = 0.1
RULE = "rule of dish drift"
LOOKS = (("sign", 0), ("sdh", 0), ("dish_k", 1), ("dish", 0))  # of the curves: a method's style, and its variant
MOST_NEW = 16_000  # new rows
MOST = 2000  # queries, and rows whose neighbours are found
FALSE_POSITIVES = np.linspace(0, 1, 101)


def split(rows: Part, queries: Part | None, per_class: int, rng: np.random.Generator) -> tuple[Part, Part, Part]:
    """Training rows, new rows of the same classes, and new rows of withheld classes."""
    classes = rng.permutation(np.unique(rows.y))
    withheld = classes[: int(WITHHELD * len(classes))]
    known = classes[len(withheld) :]
    train = np.concatenate([rng.permutation(np.flatnonzero(rows.y == c))[:per_class] for c in known])
    rest = np.setdiff1d(np.arange(len(rows.y)), train)
    new = rows.rows(rest)
    if queries is not None:
        new = Part(np.concatenate([new.X, queries.X]), np.concatenate([new.y, queries.y]))
    new = new.rows(rng.permutation(len(new.y))[:MOST_NEW])
    is_unknown = np.isin(new.y, withheld)
    return rows.rows(train), new.rows(~is_unknown), new.rows(is_unknown)


def traits_of(hasher: DISH, X: NDArray[Any]) -> RowTraits:
    """What a profile counts of rows."""
    return RowTraits.joined(list(hasher.row_traits(X)))


# --- unknown classes ---


def values_of(traits: RowTraits, normal: RowTraits) -> dict[str, NDArray[np.float64]]:
    """Values that may tell unknown rows: each alone, and by the rule, the more unusual one of two."""
    found = {name: np.asarray(values, np.float64) for name, values in traits.values.items()}
    ranks = [
        np.searchsorted(np.sort(normal.values[name]), traits.values[name]) / len(normal.codes)
        for name in ("entropy", "ambiguity")
    ]
    beyond = 1e-9 * found["ambiguity"]  # orders rows that are more unusual than all normal ones
    return {**found, RULE: np.max(ranks, axis=0) + beyond}


def separation(hasher: DISH, known: Part, unknown: Part, curves: bool = False) -> dict[str, Any]:
    """AUC, and the share of unknown rows that is flagged along with 5 % of the known ones, by value.

    Every other known row sets the scale of the rule, the rest is judged.
    """
    of_known, of_unknown = traits_of(hasher, known.X), traits_of(hasher, unknown.X)
    scale = part_of(of_known, slice(0, None, 2))
    judged = values_of(part_of(of_known, slice(1, None, 2)), scale)
    found: dict[str, Any] = {}
    for name, values in values_of(of_unknown, scale).items():
        both = np.concatenate([judged[name], values])
        is_unknown = np.repeat([False, True], [len(judged[name]), len(values)])
        x, y, _ = roc_curve(is_unknown, both)
        flagged = np.interp(FALSE_POSITIVES, x, y)
        found[name] = {"auc": float(roc_auc_score(is_unknown, both)), "flagged_at_5%": float(np.interp(0.05, x, y))}
        if curves:
            found[name]["curve"] = flagged.round(4).tolist()
    for name, X in far_rows(known.X).items():
        for value, far in values_of(traits_of(hasher, X), scale).items():
            limit = np.quantile(judged[value], KNOWN)
            found[value].setdefault("far_rows_flagged", {})[name] = float((far > limit).mean())
    profile = hasher.profile_
    assert profile is not None
    shares = [profile.unknown_share(profile.count(each)) for each in (of_known, of_unknown)]
    return {"by": found, "limits in the model": {"known": shares[0], "withheld": shares[1]}}


def far_rows(X: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Rows that are like no training row, for which p may look certain all the same."""
    rng, some = np.random.default_rng(0), X[:MOST]
    noise = some.std(0) * rng.standard_normal(some.shape)
    return {
        "three times as long": 3 * some,
        "with noise of one deviation": (some + noise).astype(X.dtype),
        "every feature shuffled": rng.permuted(some, axis=0),
    }


def part_of(traits: RowTraits, which: Any) -> RowTraits:
    """The traits of some rows."""
    return RowTraits(traits.codes[which], {name: values[which] for name, values in traits.values.items()})


# --- scores ---


def scores(profile: Profile, traits: RowTraits, n: int, draws: int, rng: np.random.Generator) -> dict[str, Any]:
    """Scores of random samples of n rows."""
    found = [
        Drift.of(profile, profile.count(part_of(traits, rng.choice(len(traits.codes), n, replace=False)))).score
        for _ in range(draws)
    ]
    above = {
        "above_0": float(np.mean(np.array(found) > 0)),
        f"at_least_{ALERT}": float(np.mean(np.array(found) >= ALERT)),
    }
    return {"n": n, "mean": float(np.mean(found)), "largest": float(np.max(found)), **above}


def shifted(known: Part, unknown: Part, rng: np.random.Generator) -> Iterator[tuple[str, NDArray[Any]]]:
    """Rows that drifted in several ways; ``deviation`` is that of each feature."""
    X = known.X
    deviation = X.std(0)
    direction = rng.standard_normal(X.shape[1]) * deviation
    for size in (0.25, 0.5, 1.0):
        yield f"noise of {size} deviations", X + (size * deviation * rng.standard_normal(X.shape)).astype(X.dtype)
        yield f"means shifted by {size} deviations", (X + size * direction).astype(X.dtype)
    yield "features scaled by 0.5 to 2", (X * 2.0 ** rng.uniform(-1, 1, X.shape[1])).astype(X.dtype)
    yield "another domain: every feature shuffled", rng.permuted(X, axis=0)
    for share in (0.1, 0.25, 0.5):
        n = int(share / (1 - share) * len(X))
        new = unknown.X[rng.choice(len(unknown.X), n, replace=n > len(unknown.X))]
        yield f"{share:.0%} of withheld classes", np.concatenate([X, new])


def score_part(
    hasher: DISH, train: Part, known: Part, unknown: Part, draws: int, rng: np.random.Generator
) -> dict[str, Any]:
    """False alarms by both profiles, and alarms under every shift."""
    normal = traits_of(hasher, known.X)
    sample = train.X[rng.permutation(len(train.X))[:2000]]
    profiles = {"held-out rows": hasher.profile_, "training rows": profile_of(hasher, sample)}
    sizes = [n for n in SIZES if n <= len(known.X)]
    normal_rows = {name: [scores(p, normal, n, draws, rng) for n in sizes] for name, p in profiles.items()}
    profile, found = hasher.profile_, {}
    assert profile is not None
    for name, X in shifted(known, unknown, rng):
        traits = traits_of(hasher, X)
        found[name] = [scores(profile, traits, n, draws, rng) for n in sizes if n <= 1000]
    return {"reference_rows": {n: p.n_rows() for n, p in profiles.items()}, "normal": normal_rows, "shifted": found}


# --- recentring ---


def recentring_part(hasher: DISH, train: Part, known: Part, rng: np.random.Generator) -> dict[str, Any]:
    """MAP and neighbours of queries against a database of new rows, under shifts that leave labels alone."""
    order = rng.permutation(len(known.X))
    n = min(MOST, len(order) // 4)
    queries, base = known.rows(order[:n]), known.rows(order[n:])
    deviation = base.X.std(0)
    direction, factors = rng.standard_normal(base.X.shape[1]), 2.0 ** rng.uniform(-1, 1, base.X.shape[1])
    maps = {
        "no shift": lambda X: X,
        "means shifted by 0.5 deviations": lambda X: X + 0.5 * direction * deviation,
        "means shifted by 2 deviations": lambda X: X + 2 * direction * deviation,
        "features scaled by 0.5 to 2": lambda X: X * factors,
        "both: 2 deviations, 0.5 to 2": lambda X: X * factors + 2 * direction * deviation,
    }
    found = {}
    for name, move in maps.items():
        moved = [Part(move(part.X).astype(np.float32), part.y) for part in (queries, base)]
        again = copy.deepcopy(hasher).recentre(moved[1].X)
        found[name] = {
            "as it was": quality(hasher, *moved, (queries, base)),
            "recentred": quality(again, *moved, (queries, base)),
        }
    half = base.rows(np.isin(base.y, rng.permutation(np.unique(base.y))[::2]))
    again = copy.deepcopy(hasher).recentre(half.X)
    found["no shift, recentred on half of the classes"] = {
        "as it was": quality(hasher, queries, base, (queries, base)),
        "recentred": quality(again, queries, base, (queries, base)),
    }
    return found


def quality(hasher: DISH, queries: Part, base: Part, before: tuple[Part, Part]) -> dict[str, float]:
    """MAP against codes of rows and against codes of labels; 10 neighbours before the shift among the first 100."""
    q, rows, labelled = hasher.transform(queries.X), hasher.transform(base.X), hasher.transform(base.X, labels=base.y)
    some = slice(500)
    kept = metrics.neighbour_recall(before[0].X[some], q[some], before[1].X, rows, k=10, oversampling=(10,))
    by_profile = hasher.profile_
    assert by_profile is not None
    return {
        "map": metrics.mean_average_precision(q, queries.y, rows, base.y),
        "map_label_codes": metrics.mean_average_precision(q, queries.y, labelled, base.y),
        "neighbours_kept": float(kept[10]),
        "drift": Drift.of(by_profile, by_profile.count(traits_of(hasher, base.X))).score,
    }


# --- all of it ---


def trial(path: Path, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """All three parts for one file and one choice of classes."""
    rng = np.random.default_rng(seed)
    train, known, unknown = split(*read(path), given.per_class, rng)

    def fit(part: Part) -> DISH:
        return DISH(given.bits, random_state=seed, device=given.device).fit(part.X, part.y)

    inner = split(train, None, int(0.8 * given.per_class), rng)
    chosen = separation(fit(inner[0]), *inner[1:])
    hasher = fit(train)
    sizes = {"train": len(train.X), "known": len(known.X), "withheld": len(unknown.X)}
    found = {"data": path.stem, "seed": seed, "rows": sizes, "chosen on": chosen}
    found["judged on"] = separation(hasher, known, unknown, curves=True)
    found["scores"] = score_part(hasher, train, known, unknown, given.draws, rng)
    found["recentring"] = recentring_part(hasher, train, known, rng)
    return found


def picture(trials: list[dict[str, Any]], path: Path) -> None:
    """ROC curves, averaged over the trials of each file."""
    names = list(dict.fromkeys(each["data"] for each in trials))
    figure, axes = style.panels(
        len(names), "rows of withheld classes against new rows of known classes", 3.4, columns=1
    )
    for axis, data in zip(axes, names, strict=True):
        part = [each["judged on"] for each in trials if each["data"] == data]
        for (look, variant), name in zip(LOOKS, part[0]["by"], strict=True):
            curve = np.mean([each["by"][name]["curve"] for each in part], axis=0)
            auc = np.mean([each["by"][name]["auc"] for each in part])
            drawn = {**style.style(look, variant), "marker": ""}
            axis.plot(FALSE_POSITIVES, curve, label=f"{name}: AUC {auc:.3f}", **drawn)
        shares = [[each["limits in the model"][kind] for each in part] for kind in ("known", "withheld")]
        at = np.mean(shares, axis=1)
        axis.plot(*at, "o", color=style.INK)
        axis.annotate("limits in the model", at, (6, -4), textcoords="offset points", color=style.INK)
        axis.set(
            xlabel=f"share of known rows that are flagged ({data})",
            ylabel="share of withheld rows",
            ylim=(0, 1.02),
        )
        axis.axvline(1 - KNOWN, color=style.INK, linewidth=1, linestyle=":")
        curves = axis.lines[: len(LOOKS)]
        style.name_lines(axis, curves, [float(np.interp(0.2, *np.asarray(line.get_data()))) for line in curves])
    style.write(figure, path)


def main() -> None:
    """Measure all files and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--bits", type=int, default=64)
    parser.add_argument("--per-class", type=int, default=80, help="training rows per class")
    parser.add_argument("--draws", type=int, default=200, help="samples of each size")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    given = parser.parse_args()
    trials = [] if given.files else json.loads(given.output.read_text())["trials"]
    for path in given.files:
        for seed in range(given.seeds):
            trials.append(trial(path, seed, given))
            print(path.stem, seed, trials[-1]["judged on"]["limits in the model"], flush=True)
            settings = {name: getattr(given, name) for name in ("bits", "per_class", "draws", "device")}
            about = {"what": __doc__.splitlines()[0], **settings, "environment": machine.environment()}
            bench.write_json(given.output, {**about, "trials": trials})
    picture(trials, given.picture)


if __name__ == "__main__":
    main()
