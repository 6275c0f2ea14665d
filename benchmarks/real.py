"""DISH and its rivals on real features, in four protocols (``PROTOCOLS``, see docs/real.md).

Each argument is a .npz file with X (n, d) and y (n,) or Y (n, l), optionally with ``scale`` (rows are X·scale),
``split`` (2: query) and ``n_labels`` (Y is packed bits); or a .npy file that ``dish features`` wrote, with its
labels. Rows are l2-normalised unless they are 0/1. Queries are the rows that the file marks, the first 2,000 of Tiny
ImageNet's val, or 1,000 random rows. Writes benchmarks/results/real/NAME.json after every run.

Runs that the file already contains are skipped (--again NAME repeats them), so an interrupted call, or one stopped by
--minutes, is resumed by the same call. A method whose fit and encoding take longer than --limit seconds is stopped
and not tried with longer codes; the file records this.

    python benchmarks/real.py data/clinc150_use.npz data/mediamill.npz --trials 3
    python benchmarks/real.py data/tinyimagenet_lite0.npz --device cuda --limit 60 --minutes 9 --output out
    python benchmarks/real.py data/*.npz --methods dish,dish_k,sdh --bits 64 --protocols disjoint --again dish
"""

from __future__ import annotations

import argparse
import json
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.preprocessing import normalize

from dish import DISH, machine, metrics, registry
from dish.experiments import bench
from dish.io.readers import read_features

RESULTS = Path(__file__).parent / "results" / "real"
CUT = 5000  # MAP@5000 for multi-label rows
PROTOCOLS = ("trained on", "disjoint", "few rows", "unseen classes")
FEW = 3000  # training rows of "few rows", from those of "disjoint"
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "dish_k_2": ("dish_k", {"similar_weight": 2.0}),  # the paper's weight for few classes
    "cosdish_1000": ("cosdish", {"n_columns": 1000}),  # several columns per class
}
FLOATS = ("cosine", "ceiling")  # rankings by the rows themselves, and by DISH's class probabilities
TRAIN, QUERY, LEFT_OUT = 0, 1, 2
KEY = ("protocol", "trial", "method", "bits")


@dataclass
class Part:
    """Rows with their labels."""

    X: NDArray[Any]
    y: NDArray[Any]

    def rows(self, which: NDArray[Any]) -> Part:
        """The rows in ``which``."""
        return Part(self.X[which], self.y[which])


@dataclass
class Split:
    """Training rows, database and queries of one trial; for unseen classes, also the rows of seen classes."""

    train: Part
    base: Part
    queries: Part
    seen_base: Part | None = None
    seen_queries: Part | None = None


@dataclass
class Options:
    """The options of one call."""

    methods: list[str]
    bits: list[int]
    protocols: list[str]
    trials: int
    device: str
    limit: float  # seconds for fit and encoding of a method
    again: set[str]
    deadline: float  # in time.monotonic seconds


class OverLimit(Exception):
    """A method took longer than the limit."""


# --- data ---


def read(path: Path) -> tuple[Part, Part | None]:
    """All rows for training and database, and the file's own queries."""
    every, query = read_npz(path) if path.suffix == ".npz" else read_npy(path)
    if not is_sets(every.X):
        every.X /= np.maximum(np.linalg.norm(every.X, axis=1, keepdims=True), 1e-9)
    usable = every.y.any(1) if every.y.ndim == 2 else np.ones(len(every.y), bool)
    if query is None:
        return every.rows(usable), None
    train, asked = np.flatnonzero(usable & (query == TRAIN)), np.flatnonzero(usable & (query == QUERY))
    return every.rows(train), every.rows(asked)


def read_npz(path: Path) -> tuple[Part, NDArray[Any] | None]:
    """Rows and their roles, if the file or its name tells them."""
    file = np.load(path)
    X = file["X"].astype(np.float32) * (file["scale"].astype(np.float32) if "scale" in file else np.float32(1))
    y = file["y"] if "y" in file else file["Y"]
    if "n_labels" in file:
        y = np.unpackbits(y, axis=1)[:, : int(file["n_labels"])]
    every = Part(X, y if y.ndim == 1 else y.astype(np.uint8))
    if "split" in file:
        return every, np.where(file["split"] == 2, QUERY, TRAIN)
    if path.stem.startswith("tinyimagenet"):  # the first 100,000 rows are its training images
        return every, of_val(np.arange(len(y)) >= 100_000)
    return every, None


def read_npy(path: Path) -> tuple[Part, NDArray[Any] | None]:
    """Rows and roles of a features file with a labels file. Ids that begin with val/ are Tiny ImageNet's."""
    X, y = read_features(path)
    if y is None:
        raise ValueError(f"{path} has no labels: {path.stem}_labels.npy must be next to it")
    names, every = path.with_suffix(".ids.npy"), Part(np.array(X, np.float32), np.asarray(y))
    val = np.char.startswith(np.load(names), "val/images/") if names.exists() else np.zeros(len(X), bool)
    return every, of_val(val) if val.any() else None


def of_val(val: NDArray[np.bool_]) -> NDArray[Any]:
    """The first 2,000 rows of ``val`` are queries, its other rows are ignored, all other rows are for training."""
    return np.where(val, np.where(np.cumsum(val) <= 2000, QUERY, LEFT_OUT), TRAIN)


def is_sets(X: NDArray[Any]) -> bool:
    """Whether all features are 0 or 1."""
    return bool(np.isin(X[:100], (0, 1)).all())


def split(rows: Part, queries: Part | None, protocol: str, trial: int) -> Split | None:
    """The rows of one trial; None if the protocol needs one class per row and rows are multi-label."""
    rng = np.random.default_rng(trial)
    order = rng.permutation(len(rows.X))
    if queries is None:
        queries, order = rows.rows(order[:1000]), order[1000:]
    if protocol == "trained on":
        return Split(rows.rows(order), rows.rows(order), queries)
    if protocol in ("disjoint", "few rows"):
        half = len(order) // 2
        n = half if protocol == "disjoint" else min(half, FEW)
        return Split(rows.rows(order[:n]), rows.rows(order[half:]), queries)
    if rows.y.ndim == 2:
        return None
    classes = rng.permutation(np.unique(rows.y))
    unseen = classes[int(0.75 * len(classes)) :]
    new, asked_new = np.isin(rows.y[order], unseen), np.isin(queries.y, unseen)
    old = rows.rows(order[~new])
    return Split(old, rows.rows(order[new]), queries.rows(asked_new), old, queries.rows(~asked_new))


# --- one run ---


def cut_of(parts: Split) -> int | None:
    """K of MAP@K; None for MAP."""
    return min(CUT, len(parts.base.X)) if parts.base.y.ndim == 2 else None


def make(name: str, bits: int, trial: int, device: str) -> Any:
    """An unfitted method with its default parameters; the trial is its seed."""
    known, params = VARIANTS.get(name, (name, {}))
    kind = registry.find(known)
    if "device" in kind().get_params():
        params = params | {"device": device}
    return kind(n_bits=bits, random_state=trial, **params)


def score_floats(name: str, trial: int, parts: Split, device: str) -> dict[str, Any]:
    """Score a float ranking."""
    cut = cut_of(parts)
    q, b = parts.queries, parts.base
    sorts_on = str(machine.resolve_device(device))
    if name == "cosine":
        unit, unit_base = normalize(q.X), normalize(b.X)
        return {"map": metrics.product_mean_average_precision(unit, q.y, unit_base, b.y, cut, sorts_on)}
    start = time.perf_counter()
    hasher = DISH(random_state=trial, device=device).fit(parts.train.X, parts.train.y)
    seconds = time.perf_counter() - start
    p, p_base = hasher.predict_proba(q.X), hasher.predict_proba(b.X)
    return {"map": metrics.product_mean_average_precision(p, q.y, p_base, b.y, cut, sorts_on), "fit_s": seconds}


def score(name: str, bits: int, trial: int, parts: Split, device: str, limit: float) -> dict[str, Any]:
    """Fit one method and score its codes."""
    hasher = make(name, bits, trial, device)
    with at_most(limit):
        start = time.perf_counter()
        hasher.fit(parts.train.X, parts.train.y)
        fit_s = time.perf_counter() - start
        start = time.perf_counter()
        q, b = hasher.transform(parts.queries.X), hasher.transform(parts.base.X)
        encode_s = time.perf_counter() - start
    cut = cut_of(parts)
    found = metrics.evaluate(q, parts.queries.y, b, parts.base.y, n_bits=bits, k=cut)
    scores = {"map": found.map, "precision_within_2": found.precision_within_2}
    if cut:
        scores["map_possible"] = found.map_possible
    if parts.seen_base is not None and parts.seen_queries is not None:
        seen_q, seen_b = hasher.transform(parts.seen_queries.X), hasher.transform(parts.seen_base.X)
        all_codes, all_labels = np.concatenate([b, seen_b]), np.concatenate([parts.base.y, parts.seen_base.y])
        mean = metrics.mean_average_precision
        scores["map_unseen_to_all"] = mean(q, parts.queries.y, all_codes, all_labels)
        scores["map_seen_to_seen"] = mean(seen_q, parts.seen_queries.y, seen_b, parts.seen_base.y)
        scores["map_seen_to_all"] = mean(seen_q, parts.seen_queries.y, all_codes, all_labels)
    return {**scores, "fit_s": fit_s, "encode_s": encode_s}


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise OverLimit after ``seconds``, as soon as Python code runs again."""

    def stop(*_: Any) -> None:
        raise OverLimit

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def warm_up(name: str, parts: Split, device: str) -> None:
    """Compile the kernels by a fit of a few rows, so that no run's time includes it."""
    some = np.arange(0, len(parts.train.X), max(1, len(parts.train.X) // 500))
    with suppress(Exception), warnings.catch_warnings(), at_most(120):  # the run itself will report errors
        warnings.simplefilter("ignore")
        few = parts.train.rows(some)
        make(name, 16, 0, device).fit(few.X, few.y).transform(few.X)


# --- a file of runs ---


class Results:
    """The runs of one data set, in a file that is written after every run and extended by later calls."""

    def __init__(self, path: Path, data: str, rows: Part, resumed: Path | None = None) -> None:
        self.path = path
        n, d = rows.X.shape
        labels = len(np.unique(rows.y)) if rows.y.ndim == 1 else rows.y.shape[1]
        self.content: dict[str, Any] = {
            **{"what": __doc__.splitlines()[0], "data": data, "rows": n, "features": d, "labels": labels},
            **{"several_labels": rows.y.ndim == 2, "cut": CUT if rows.y.ndim == 2 else None},
            **{"environments": [], "runs": []},
        }
        for old in (path, resumed):
            if old is not None and old.exists() and not self.content["runs"]:
                self._take(json.loads(old.read_text()), old)
        self.content["environments"].append(machine.environment())

    def _take(self, content: dict[str, Any], path: Path) -> None:
        if "environments" not in content or content["rows"] != self.content["rows"]:
            print(f"{path} is of another form or of other rows: not resumed", flush=True)
            return
        self.content["environments"], self.content["runs"] = content["environments"], content["runs"]

    def get(self, **key: Any) -> dict[str, Any] | None:
        """The run of a protocol, trial, method and code length."""
        return next((run for run in self.content["runs"] if all(run[k] == key[k] for k in KEY)), None)

    def is_done(self, limit: float, **key: Any) -> bool:
        """Whether a run is finished, or was stopped at the same or a higher limit."""
        run = self.get(**key)
        return run is not None and ("map" in run or run.get("limit_s", 0) >= limit)

    def put(self, found: dict[str, Any], **key: Any) -> None:
        """Store a run, replace an older one with the same key, and write the file."""
        runs = [run for run in self.content["runs"] if any(run[k] != key[k] for k in KEY)]
        found = {**key, **found, "seed": key["trial"], "environment": len(self.content["environments"]) - 1}
        self.content["runs"] = [*runs, found]
        bench.write_json(self.path, self.content)
        shown = (f"{v:.4g}" if isinstance(v, float) else str(v) for v in list(found.values())[:-2])
        print(self.content["data"], *shown, flush=True)


def slower_than(results: Results, limit: float, protocol: str, method: str, bits: int) -> str | None:
    """Why a method is skipped: shorter codes, or the same in another trial, took too long. None if it is not."""
    for run in results.content["runs"]:
        same = (run["protocol"], run["method"]) == (protocol, method)
        if same and run.get("limit_s", 0) >= limit and run["bits"] <= bits:
            return f"over {run['limit_s']:g} s with {run['bits']} bits in trial {run['trial']}"
    return None


def measure(path: Path, options: Options, output: Path, resumed: Path) -> None:
    """Do all runs on one data set until the time is up."""
    rows, queries = read(path)
    results = Results(output / f"{path.stem}.json", path.stem, rows, resumed / f"{path.stem}.json")
    methods = [name for name in options.methods if name != "minhash" or is_sets(rows.X)]
    warm: set[str] = set()
    for trial in range(options.trials):
        for protocol in options.protocols:
            parts = split(rows, queries, protocol, trial)
            for name in methods if parts is not None else ():
                for bits in [None] if name in FLOATS else options.bits:
                    key = {"protocol": protocol, "trial": trial, "method": name, "bits": bits}
                    if results.is_done(options.limit, **key) and name not in options.again:
                        continue
                    if time.monotonic() > options.deadline:
                        print("the time is up: the same call resumes here", flush=True)
                        return
                    if name not in warm | set(FLOATS):
                        warm_up(name, parts, options.device)
                        warm.add(name)
                    results.put(attempt(results, parts, options, **key), **key)


def attempt(results: Results, parts: Split, options: Options, **key: Any) -> dict[str, Any]:
    """The result of one run, or why it has none."""
    protocol, trial, name, bits = (key[k] for k in KEY)
    if name not in {*FLOATS, *options.again}:
        why = slower_than(results, options.limit, protocol, name, bits)
        if why is not None:
            return {"not_run": why, "limit_s": options.limit}
    try:
        if name in FLOATS:
            return score_floats(name, trial, parts, options.device)
        return score(name, bits, trial, parts, options.device, options.limit)
    except OverLimit:
        return {"not_run": f"over {options.limit:g} s", "limit_s": options.limit}
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"}


def all_methods() -> list[str]:
    """All methods: float rankings, ours, and every rival for rows of features."""
    names = [name for name in registry.NAMES if name in bench.method_names()]
    for name, (base, _) in VARIANTS.items():
        names.insert(names.index(base) + 1, name)  # after its own
    return [*FLOATS, *names]


def parse() -> tuple[argparse.Namespace, Options]:
    """Parse the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--methods", default="all", help="names with commas between them, or all")
    parser.add_argument("--bits", default="32,64,128", help="code lengths with commas between them")
    parser.add_argument("--protocols", default=",".join(PROTOCOLS), help=f"some of {', '.join(PROTOCOLS)}")
    parser.add_argument("--trials", type=int, default=3, help="random splits (trained on: seeds)")
    parser.add_argument("--device", default="auto", help="for methods that can choose")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds that a method may fit and encode")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="no run is begun after so long")
    parser.add_argument("--again", default="", help="methods to run again, or all")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--resume", type=Path, default=RESULTS, help="folder of earlier results, if others are there")
    given = parser.parse_args()
    methods = all_methods() if given.methods == "all" else given.methods.split(",")
    unknown = [name for name in methods if name not in all_methods()]
    unknown += [name for name in given.protocols.split(",") if name not in PROTOCOLS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; methods: {', '.join(all_methods())}")
    again = set(methods if given.again == "all" else given.again.split(","))
    lengths, deadline = [int(r) for r in given.bits.split(",")], time.monotonic() + 60 * given.minutes
    protocols = given.protocols.split(",")
    return given, Options(methods, lengths, protocols, given.trials, given.device, given.limit, again, deadline)


def main() -> None:
    """Measure every file and write its results."""
    given, options = parse()
    for path in given.files:
        measure(path, options, given.output, given.resume)


if __name__ == "__main__":
    main()
