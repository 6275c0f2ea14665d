"""What each part of DISH contributes on real features, compared on the same queries: results/ablation.json.

Data and splits are those of benchmarks/real.py. Every part is replaced while all others stay as they are; changed
projections and databases share the fit of ``DISH``. benchmarks/real_tables.py shows the results in docs/real.md.
Trials that the file already contains are skipped, so a call that was stopped is resumed by the same call.

    python benchmarks/ablation.py data/clinc150_use.npz data/mediamill.npz --trials 3
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

import real
from dish import DISH, DISHK, codes, machine, metrics
from dish.baselines.logistic_lsh import LogisticLSH
from dish.cbcd.codewords import class_codewords, distinct
from dish.experiments.bench import write_json
from dish.experiments.significance import LEVEL
from dish.experiments.tables import markdown_grid
from dish.lazy import torch
from dish.metrics.scores import within_radius
from dish.posterior.dish import fit_to_labels
from dish.posterior.projection import centred, signed_projection
from dish.similarity import n_labels
from real_protocols import Split, read, split

RESULTS = Path(__file__).parent / "results" / "ablation.json"
BITS, SOME = 64, 1 << 14  # code length; training rows that the mean of p is estimated from
TRAININGS = {"labelled": "all rows", "disjoint": "half"}  # protocol → training rows
SCORES = {"map": "MAP", "precision_within_2": "precision within radius 2"}
FULL = "DISH"
VARIANTS = {  # what the table calls them
    FULL: "`DISH`",
    "no geometry": "no geometry bits (`geometry=0`)",
    "no label codes": "no label codes: the database by `transform(X)`",
    "random codewords": "random codewords",
    "plain projection": "projection not refined",
    "codewords": "codewords of ±1 as the projection",
    "random projection": "random projection of the same probabilities",
    "logistic_lsh": "classifier without choices, random projection (logistic LSH)",
    "dish_k": "least squares instead of the classifier (DISH-K)",
}
Codes = tuple[NDArray[np.uint8], NDArray[np.uint8]]  # of queries and database
Scores = dict[str, NDArray[np.float64]]  # of every query


# --- variants ---


class RandomCodewords(DISH):
    """DISH with random codewords of the labels in place of learned ones."""

    def _learn(self, data: Any, kept: Any, budget: int) -> Any:
        bits = data.rng.random_sample((n_labels(data.S), self.n_bits)) < 0.5
        C = distinct(np.packbits(bits, axis=1), self.n_bits, data.rng)
        return *fit_to_labels(data, C, self.n_bits, self.geometry, budget), np.empty(0)


def with_projection(hasher: DISH, V: NDArray[Any], offset: NDArray[Any]) -> DISH:
    """A copy of a fitted hasher with another projection of the probabilities onto class bits."""
    changed, function = copy.copy(hasher), hasher.hash_function_
    changed.hash_function_ = replace(function, V=V.astype(function.V.dtype), offset=offset.astype(function.V.dtype))
    return changed


def projections(hasher: DISH, X: NDArray[Any], seed: int) -> dict[str, DISH]:
    """The hasher with each of the other projections. X: training rows."""
    function, rng = hasher.hash_function_, np.random.RandomState(seed)
    l, r = function.V.shape  # noqa: E741
    signs = codes.unpack(class_codewords(l, r, rng)[0], r).astype(np.float64)
    random = rng.standard_normal((l, r))
    mean = (hasher.predict_proba(X[:SOME]) ** function.power).mean(0)
    offset_of = (lambda V: centred(torch.from_numpy(V))[1].numpy()) if hasher._one_label else (lambda V: np.zeros(r))
    plain = signed_projection(signs, rng).numpy()
    return {
        "plain projection": with_projection(hasher, plain, offset_of(plain)),
        "codewords": with_projection(hasher, signs, offset_of(signs)),
        "random projection": with_projection(hasher, random, -mean @ random),
    }


def variants(parts: Split, protocol: str, seed: int, device: str) -> Iterator[tuple[str, Codes]]:
    """Codes of queries and database of every variant."""
    params: dict[str, Any] = {"random_state": seed, "device": device}
    train, labelled = parts.train, protocol == "labelled"

    def of(hasher: Any) -> Codes:
        q, b = hasher.transform(parts.queries.X), hasher.transform(parts.base.X)
        if not labelled:
            return q, b
        known = real.labelled_codes(real.Fitted(hasher, q, b, 0.0, 0.0), parts).values()
        return max(((q, b) for b in known), key=lambda found: score(found, parts)["map"].mean())

    def fitted(kind: Callable[..., Any], **more: Any) -> Any:
        return kind(BITS, **params, **more).fit(train.X, train.y)

    full = fitted(DISH)
    yield FULL, of(full)
    if labelled:
        yield "no label codes", (full.transform(parts.queries.X), full.transform(parts.base.X))
    for name, changed in projections(full, train.X, seed).items():
        yield name, of(changed)
    yield "no geometry", of(fitted(DISH, geometry=0))
    yield "random codewords", of(fitted(RandomCodewords))
    yield "logistic_lsh", of(fitted(LogisticLSH))
    yield "dish_k", of(fitted(DISHK, similar_weight="auto"))


# --- scores ---


def score(found: Codes, parts: Split) -> Scores:
    """The average precision and the precision within radius 2 of every query."""
    h = metrics.histograms(found[0], parts.queries.y, found[1], parts.base.y, BITS)
    cut = real.cut_of(parts.base.y)
    return {"map": metrics.expected_average_precision(h, cut), "precision_within_2": within_radius(h, 2)[0]}


@dataclass(frozen=True)
class Sums:
    """The number of queries, and the sums of their differences from DISH and of the squares of these."""

    n: int = 0
    total: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, d: NDArray[np.float64]) -> Sums:
        """The sums of differences d."""
        return cls(len(d), float(d.sum()), float((d * d).sum()))

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.n + other.n, self.total + other.total, self.squares + other.squares)

    def interval(self) -> tuple[float, float, float]:
        """The mean and its 95 % confidence interval by Student's t."""
        mean = self.total / self.n
        variance = max(0.0, self.squares - self.n * mean**2) / max(1, self.n - 1)
        half = float(stats.t.ppf(0.5 + LEVEL / 2, max(1, self.n - 1))) * (variance / self.n) ** 0.5
        return mean, mean - half, mean + half


def trial(parts: Split, protocol: str, seed: int, device: str) -> dict[str, Any]:
    """The means of all variants in one trial, and the sums of their differences from DISH."""
    found: dict[str, Any] = {}
    full: Scores = {}
    for name, both in variants(parts, protocol, seed, device):
        values = score(both, parts)
        full = full or values
        means = {key: float(value.mean()) for key, value in values.items()}
        found[name] = {**means, "minus_full": {key: vars(Sums.of(values[key] - full[key])) for key in values}}
    return found


def measure(path: Path, given: argparse.Namespace, content: dict[str, Any], deadline: float) -> None:
    """Do the missing trials of a file."""
    rows, queries = read(path)
    for seed in range(given.trials):
        for protocol, training in TRAININGS.items():
            key = {"data": path.stem, "protocol": protocol, "trial": seed}
            done = any(all(run[name] == value for name, value in key.items()) for run in content["runs"])
            if done or time.monotonic() > deadline:
                continue
            start = time.perf_counter()
            found = trial(split(rows, queries, training, seed), protocol, seed, given.device)
            seconds, environment = time.perf_counter() - start, len(content["environments"]) - 1
            content["runs"].append({**key, "variants": found, "seconds": seconds, "environment": environment})
            write_json(given.output, content)
            print(*key.values(), {name: round(each["map"], 3) for name, each in found.items()}, f"{seconds:.0f} s")


# --- the section of docs/real.md ---


def section(name_of: Callable[..., str], results: Path = RESULTS) -> str:
    """The tables, with columns for the data sets; empty without results."""
    if not results.exists():
        return ""
    runs = json.loads(results.read_text())["runs"]
    parts = [
        "## What each part contributes\n\nFirst line: `DISH`, mean over trials. Other lines: the variant minus "
        f"`DISH`, {BITS} bits, with 95 % confidence intervals of paired differences over all queries of all trials. "
        "Negative numbers are what the part contributes. A changed projection keeps the probabilities and the "
        "geometry bits of `DISH`. `benchmarks/ablation.py` makes these runs."
    ]
    for protocol in TRAININGS:
        of = [run for run in runs if run["protocol"] == protocol]
        for key, called in SCORES.items():
            if of:
                parts.append(f"**{protocol}, {called}**\n\n{table(of, key, name_of).rstrip()}")
    return "\n\n".join(parts) + "\n"


def table(runs: list[dict[str, Any]], key: str, name_of: Callable[..., str]) -> str:
    """One line per variant, one column per data set."""
    sets = sorted({run["data"] for run in runs})
    rows = []
    for name, called in VARIANTS.items():
        cells = [cell([run["variants"] for run in runs if run["data"] == data], name, key) for data in sets]
        if set(cells) != {"–"}:
            rows.append([called, *cells])
    return markdown_grid(["variant", *(name_of(data, short=True) for data in sets)], rows)


def cell(trials: list[dict[str, Any]], name: str, key: str) -> str:
    """The mean of DISH, or a variant's difference from it."""
    found = [each[name] for each in trials if name in each]
    if not found:
        return "–"
    if name == FULL:
        return f"{np.mean([each[key] for each in found]):.3f}"
    mean, low, high = sum((Sums(**each["minus_full"][key]) for each in found), Sums()).interval()
    return f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"


def main() -> None:
    """Measure every file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="no trial is begun after so long")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    content = json.loads(given.output.read_text()) if given.output.exists() else {"runs": [], "environments": []}
    content = {"what": __doc__.splitlines()[0], **content}
    content["environments"].append(machine.environment())
    deadline = time.monotonic() + 60 * given.minutes
    for path in given.files:
        measure(path, given, content, deadline)


if __name__ == "__main__":
    main()
