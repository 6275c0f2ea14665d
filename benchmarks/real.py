"""DISH and its rivals on real features, in the protocols of benchmarks/real_protocols.py (see docs/real.md).

Each argument is a .npz file with X (n, d) and y (n,) or Y (n, l), optionally with ``scale`` (rows are X·scale),
``split`` (2: query) and ``n_labels`` (Y is packed bits); or a .npy file that ``dish features`` wrote, with its
labels. Rows are l2-normalised unless they are 0/1. Queries are the rows that the file marks, the first 2,000 of Tiny
ImageNet's val, or 1,000 random rows. Writes benchmarks/results/real/NAME.json after every fit.

Every rival has the setting of its grid (benchmarks/grids.py) that is best on held-out training rows of the first
trial, for each training set; --untuned leaves all at the defaults of the library.

Runs that the file already contains are skipped (--again NAME repeats them), so an interrupted call, or one stopped by
--minutes, is resumed by the same call. A file with runs of another commit is refused, unless --keep says to add to
it. A method whose fit and encoding take longer than --limit seconds is stopped and not tried with longer codes; the
file records this.

    python benchmarks/real.py data/clinc150_use.npz data/mediamill.npz --trials 3
    python benchmarks/real.py data/tinyimagenet_lite0.npz --device cuda --limit 60 --minutes 9 --output out
    python benchmarks/real.py data/*.npz --methods dish,dish_k,sdh --bits 64 --protocols disjoint --again dish
    python benchmarks/real.py data/mediamill.npz --methods ksh,dgh --protocols "trained on,labelled,disjoint"
"""

from __future__ import annotations

import argparse
import base64
import json
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.preprocessing import normalize

from dish import codes, machine, metrics, registry
from dish.errors import UnsupportedError
from dish.experiments import bench
from dish.metrics.relevance import match_labels
from dish.metrics.scores import top_k_counts
from grids import GRIDS, Setting, tune
from real_protocols import CUT, PROTOCOLS, SAME_ROWS, Part, Split, is_sets, read, split, trainings, tuning_rows

RESULTS = Path(__file__).parent / "results" / "real"
NEIGHBOURS, AMONG = 10, 100  # "neighbours": the share of the 10 nearest floats among the first 100 by code
RESCORED = 1000  # rows that RaBitQ with rescoring sorts again by the floats
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "dish_0": ("dish", {"geometry": 0}),  # all bits are class bits
    "dish_k_2": ("dish_k", {"similar_weight": 2.0}),  # the paper's weight for few classes
    "cosdish_1000": ("cosdish", {"n_columns": 1000}),  # several columns per class
}
FLOATS = ("cosine", "ceiling", "rabitq")  # rankings by real numbers: rows, class probabilities, estimated distances
DEFAULT = (*FLOATS, "dish", "dish_k", "sdh", "fssh", "lfh", "cosdish", "fasth", "logistic_lsh")
DEFAULT = (*DEFAULT, "cca_itq", "whitened_itq", "pca_itq", "sign")
CEILING = ("dish", 64)  # the fit whose class probabilities are the ceiling
COMPARED = 64  # bits at which the average precision of every query is kept
KEY = ("protocol", "trial", "method", "bits")
NOT_SHOWN = ("average_precisions", "seed", "environment")  # while it runs
Found = dict[str, Any]  # the scores of one protocol


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
    keep: bool = False  # runs of other commits
    tuned: bool = True  # rivals have the best setting of their grid


class OverLimit(TimeoutError):
    """A method took longer than the limit."""


# --- codes ---


@dataclass
class Fitted:
    """A fitted method with its codes of the queries and of the database."""

    hasher: Any
    q: NDArray[np.uint8]
    b: NDArray[np.uint8]
    fit_s: float
    encode_s: float


def make(name: str, bits: int, trial: int, device: str, setting: Setting | None = None) -> Any:
    """An unfitted method with default parameters, but for those of ``setting``; the trial is its seed."""
    known, params = VARIANTS.get(name, (name, {}))
    kind, params = registry.find(known), params | (setting or {})
    if "device" in kind().get_params():
        params = params | {"device": device}
    return kind(n_bits=bits, random_state=trial, **params)


def fit(name: str, bits: int, trial: int, parts: Split, options: Options, setting: Setting | None = None) -> Fitted:
    """Fit one method and encode queries and database."""
    hasher = make(name, bits, trial, options.device, setting)
    with at_most(options.limit):
        start = time.perf_counter()
        hasher.fit(parts.train.X, parts.train.y)
        fit_s = time.perf_counter() - start
        start = time.perf_counter()
        q, b = hasher.transform(parts.queries.X), hasher.transform(parts.base.X)
        return Fitted(hasher, q, b, fit_s, time.perf_counter() - start)


def score_codes(fitted: Fitted, parts: Split, protocol: str, nearest: NDArray[Any] | None) -> Found:
    """The scores of one protocol."""
    times = {"bytes": fitted.b.shape[1], "fit_s": fitted.fit_s, "encode_s": fitted.encode_s}
    if protocol != "labelled":
        return {**_scores(fitted.q, fitted.b, fitted.hasher.n_bits, parts, protocol, nearest), **times}
    found = [
        {**_scores(fitted.q, b, fitted.hasher.n_bits, parts, protocol, None), "database": by}
        for by, b in labelled_codes(fitted, parts).items()
    ]
    return {**max(found, key=lambda scores: scores["map"]), **times}


def labelled_codes(fitted: Fitted, parts: Split) -> dict[str, NDArray[np.uint8]]:
    """Codes of database rows with known labels: those of the labels, or for methods without them both that exist."""
    try:
        return {"labels": fitted.hasher.transform(parts.base.X, labels=parts.base.y)}
    except UnsupportedError:
        learned = {"codes_": fitted.hasher.codes_} if hasattr(fitted.hasher, "codes_") else {}
        return {"transform": fitted.b, **learned}


def _scores(
    q: NDArray[np.uint8], b: NDArray[np.uint8], bits: int, parts: Split, protocol: str, nearest: NDArray[Any] | None
) -> Found:
    b, q = parts.select(protocol, b, q)
    yb, yq = parts.select(protocol, parts.base.y, parts.queries.y)
    h = metrics.histograms(q, yq, b, yb, bits)
    if nearest is not None:
        return {"found": neighbours_found(q, b, nearest, h.all_)}
    report = metrics.report(h, cut_of(yb))
    by_query = metrics.expected_average_precision(h, cut_of(yb))
    kept = {"average_precisions": packed(by_query)} if bits == COMPARED else {}
    return {**means(by_query, parts, protocol), "precision_within_2": report.precision_within_2, **kept}


def packed(values: NDArray[Any]) -> str:
    """Numbers from 0 to 1 as text: 16 bits each, in base64."""
    return base64.b64encode(np.round(65535 * values).astype("<u2").tobytes()).decode()


def means(by_query: NDArray[Any], parts: Split, protocol: str) -> Found:
    """MAP; in the open set, also of the queries of seen and of unseen classes."""
    found = {"map": float(by_query.mean())}
    if protocol == "open set":
        new = parts.only["unseen classes"][1]
        found |= {"map_seen": float(by_query[~new].mean()), "map_unseen": float(by_query[new].mean())}
    return found


def neighbours_found(
    q: NDArray[np.uint8], b: NDArray[np.uint8], nearest: NDArray[Any], counts: NDArray[np.int64]
) -> float:
    """The share of ``nearest`` among the first codes, expected over all orders of rows at equal distance."""
    chance = top_k_counts(counts, AMONG) / np.maximum(counts, 1)
    D = np.stack([codes.hamming(q[i : i + 1], b[rows])[0] for i, rows in enumerate(nearest)])
    return float(np.take_along_axis(chance, D, 1).mean())


def cut_of(y: NDArray[Any]) -> int | None:
    """K of MAP@K; None for MAP."""
    return min(CUT, len(y)) if y.ndim == 2 else None


# --- rankings by real numbers ---

Orders = Iterator[NDArray[Any]]  # for a block of queries, the rows from the first to the last


def by_product(Q: NDArray[Any], B: NDArray[Any], device: str) -> Orders:
    """Rank rows by their inner products with the queries; rows with equal products keep their order."""
    import torch

    on = machine.resolve_device(device)
    queries, rows = torch.from_numpy(Q).to(on), torch.from_numpy(B).to(on)
    for block in queries.split(64):
        yield torch.argsort(block @ rows.T, dim=1, descending=True, stable=True).cpu().numpy()


def rabitq(B: NDArray[Any]) -> Any:
    """faiss's RaBitQ index of the rows B: 1 bit per feature after centring and a random rotation."""
    import faiss

    d = B.shape[1]
    index = faiss.IndexRaBitQ(d, faiss.METRIC_L2)
    index.qb = 8  # bits per feature of a query: as good as floats here, and ten times as fast
    rotated = faiss.IndexPreTransform(faiss.RandomRotationMatrix(d, d), index)
    rotated.train(B)
    rotated.add(B)
    return rotated


class Tally:
    """The scores of rankings, one block of queries after the other."""

    def __init__(self, parts: Split, protocol: str, nearest: NDArray[Any] | None) -> None:
        self.parts, self.protocol, self.nearest = parts, protocol, nearest
        yb, yq = parts.select(protocol, parts.base.y, parts.queries.y)
        self.y, self.k = match_labels(yq, yb, len(yq), len(yb)), cut_of(yb) or len(yb)
        self.by_query: list[float] = []

    def add(self, order: NDArray[Any]) -> None:
        """Score a block of rankings."""
        for rows in order:
            i = len(self.by_query)
            if self.nearest is not None:
                self.by_query.append(float(np.isin(self.nearest[i], rows[:AMONG]).mean()))
                continue
            ranks = np.flatnonzero(self.y.relevant(i)[rows[: self.k]]) + 1.0
            self.by_query.append(float((np.arange(1, len(ranks) + 1) / ranks).mean()) if len(ranks) else 0.0)

    def scores(self) -> Found:
        """The means over all queries."""
        if self.nearest is not None:
            return {"found": float(np.mean(self.by_query))}
        return means(np.array(self.by_query), self.parts, self.protocol)


def score_rabitq(parts: Split, protocol: str, nearest: NDArray[Any] | None) -> dict[str, Found]:
    """The scores of RaBitQ, and of the same ranking with its first rows sorted again by the floats."""
    B, Q = parts.select(protocol, normalize(parts.base.X), normalize(parts.queries.X))
    start = time.perf_counter()
    index = rabitq(B)
    seconds = time.perf_counter() - start
    plain, again = Tally(parts, protocol, nearest), Tally(parts, protocol, nearest)
    for i in range(0, len(Q), 64):
        order = index.search(Q[i : i + 64], len(B))[1]
        plain.add(order)
        for q, rows in zip(Q[i : i + 64], order, strict=True):
            first = rows[:RESCORED]
            rows[:RESCORED] = first[np.argsort(-(B[first] @ q), kind="stable")]
        again.add(order)
    size = int(index.sa_code_size())
    return {
        "rabitq": {**plain.scores(), "bytes": size, "fit_s": seconds},
        "rabitq_rescored": {**again.scores(), "bytes": size + 4 * B.shape[1], "fit_s": seconds},
    }


def score_floats(
    name: str, parts: Split, protocol: str, nearest: NDArray[Any] | None, fitted: Fitted | None, device: str
) -> dict[str, Found]:
    """The scores of a ranking by real numbers; ``fitted``: DISH, for the ceiling."""
    if name == "rabitq":
        return score_rabitq(parts, protocol, nearest)
    if fitted is None:
        B, Q = normalize(parts.base.X), normalize(parts.queries.X)
    else:
        B, Q = probabilities(fitted.hasher, parts, protocol == "labelled")
    tally = Tally(parts, protocol, nearest)
    B, Q = parts.select(protocol, B, Q)
    for order in by_product(Q, B, device):
        tally.add(order)
    return {name: {**tally.scores(), "bytes": 4 * B.shape[1], **({"fit_s": fitted.fit_s} if fitted else {})}}


def probabilities(hasher: Any, parts: Split, labelled: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    """Rows and queries whose products order by the chance to share a label: with known labels, by 1 − ∏(1 − p)."""
    p = np.asarray(hasher.predict_proba(parts.queries.X), np.float32)
    if not labelled:
        return np.asarray(hasher.predict_proba(parts.base.X), np.float32), p
    y = parts.base.y
    Y = y if y.ndim == 2 else y[:, None] == hasher.classes_
    return Y.astype(np.float32), -np.log1p(-np.minimum(p, np.float32(1 - 1e-6)))


def nearest_floats(parts: Split, device: str) -> NDArray[Any]:
    """The rows with the highest cosine to each query; rows with equal cosines keep their order."""
    orders = by_product(normalize(parts.queries.X), normalize(parts.base.X), device)
    return np.concatenate([order[:, :NEIGHBOURS] for order in orders])


# --- limits ---


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

    def __init__(self, path: Path, data: str, rows: Part, resumed: Path | None = None, keep: bool = False) -> None:
        self.path = path
        n, d = rows.X.shape
        labels = len(np.unique(rows.y)) if rows.y.ndim == 1 else rows.y.shape[1]
        self.content: dict[str, Any] = {
            **{"what": __doc__.splitlines()[0], "data": data, "rows": n, "features": d, "labels": labels},
            **{"several_labels": rows.y.ndim == 2, "cut": CUT if rows.y.ndim == 2 else None},
            **{"environments": [], "tuning": {}, "runs": []},
        }
        for old in (path, resumed):
            if old is not None and old.exists() and not self.content["runs"]:
                self._take(json.loads(old.read_text()), old, keep)
        self.content["environments"].append(machine.environment())

    def _take(self, content: dict[str, Any], path: Path, keep: bool) -> None:
        if content["rows"] != self.content["rows"]:
            raise SystemExit(
                f"{path} has runs of {content['rows']:,} rows, the data {self.content['rows']:,}: delete it"
            )
        used = {content["environments"][run["environment"]]["commit"] for run in content["runs"]}
        others = sorted(used - {machine.commit()})
        if others and not keep:
            raise SystemExit(
                f"{path} has runs of commit {', '.join(others)}, this is {machine.commit()}: "
                "delete the file, or add to it with --keep"
            )
        for name in ("environments", "tuning", "runs"):
            self.content[name] = content.get(name, self.content[name])

    def get(self, **key: Any) -> dict[str, Any] | None:
        """The run of a protocol, trial, method and code length."""
        return next((run for run in self.content["runs"] if all(run[k] == key[k] for k in KEY)), None)

    def is_done(self, limit: float, **key: Any) -> bool:
        """Whether a run is finished, or was stopped at the same or a higher limit."""
        run = self.get(**key)
        return run is not None and ("map" in run or "found" in run or run.get("limit_s", 0) >= limit)

    def put(self, found: Found, **key: Any) -> None:
        """Store a run, replace an older one with the same key, and write the file."""
        runs = [run for run in self.content["runs"] if any(run[k] != key[k] for k in KEY)]
        found = {**key, **found, "seed": key["trial"], "environment": len(self.content["environments"]) - 1}
        self.content["runs"] = [*runs, found]
        bench.write_json(self.path, self.content)
        values = [value for name, value in found.items() if name not in NOT_SHOWN]
        shown = (f"{v:.4g}" if isinstance(v, float) else str(v) for v in values)
        print(self.content["data"], *shown, flush=True)


def setting_of(
    name: str, training: str, results: Results, data: tuple[Part, Part | None], options: Options
) -> Setting:
    """The setting of a method for a training set: chosen once, and kept in the file. Empty for the defaults."""
    if not options.tuned or name not in GRIDS:
        return {}
    known = results.content["tuning"].setdefault(training, {})
    if name not in known:
        rows = tuning_rows(*data, training, max(3, options.trials))
        done = tune(name, rows, partial(make, name, COMPARED, 0, options.device), lambda: at_most(options.limit))
        known[name] = {**done.record(), "environment": len(results.content["environments"]) - 1}
        bench.write_json(results.path, results.content)
        print(results.content["data"], "tuned:", training, name, done.chosen, f"{done.seconds:.1f} s", flush=True)
    return dict(known[name]["chosen"])


def slower_than(results: Results, limit: float, protocol: str, method: str, bits: int) -> str | None:
    """Why a method is skipped: shorter codes, or the same in another trial, took too long. None if it is not."""
    for run in results.content["runs"]:
        same = (run["protocol"], run["method"]) == (protocol, method)
        if same and run.get("limit_s", 0) >= limit and run["bits"] <= bits:
            return f"over {run['limit_s']:g} s with {run['bits']} bits in trial {run['trial']}"
    return None


# --- all runs of a data set ---


@dataclass
class Job:
    """One method in one trial: a single fit serves all its protocols."""

    trial: int
    training: str
    name: str
    bits: int | None
    protocols: list[str]
    setting: Setting = field(default_factory=dict)


def jobs(results: Results, methods: list[str], options: Options) -> list[Job]:
    """What is to be done, in order."""
    found = []
    for trial in range(options.trials):
        for training, shared in trainings(results.content["several_labels"]).items():
            for name in methods:
                for bits in [None] if name in FLOATS else options.bits:
                    key = {"trial": trial, "method": name, "bits": bits}
                    missing = [
                        protocol
                        for protocol in shared
                        if protocol in options.protocols
                        and (name in options.again or not results.is_done(options.limit, protocol=protocol, **key))
                    ]
                    if missing:
                        found.append(Job(trial, training, name, bits, missing))
    return found


def n_fits(todo: list[Job]) -> int:
    """The number of fits; the ceiling shares that of DISH."""
    fits = {(job.trial, job.training, job.name, job.bits) for job in todo if job.name not in FLOATS}
    return len(fits | {(job.trial, job.training, *CEILING) for job in todo if job.name == "ceiling"})


def measure(path: Path, options: Options, output: Path, resumed: Path) -> None:
    """Do all runs on one data set until the time is up."""
    rows, queries = read(path)
    results = Results(output / f"{path.stem}.json", path.stem, rows, resumed / f"{path.stem}.json", options.keep)
    methods = [name for name in options.methods if name != "minhash" or is_sets(rows.X)]
    todo = jobs(results, methods, options)
    print(f"{path.stem}: {n_fits(todo)} fits for {sum(len(job.protocols) for job in todo)} runs", flush=True)
    runner, warm, memo = None, set(FLOATS), {}
    for job in todo:
        if time.monotonic() > options.deadline:
            print("the time is up: the same call resumes here", flush=True)
            return
        if runner is None or (runner.trial, runner.training) != (job.trial, job.training):
            runner = Runner(job.trial, job.training, split(rows, queries, job.training, job.trial), options, memo)
        if job.name not in warm:
            warm_up(job.name, runner.parts, options.device)
            warm.add(job.name)
        job.setting = setting_of(job.name, job.training, results, (rows, queries), options)
        for protocol, by_method in runner.attempt(results, job).items():
            for method, found in by_method.items():
                results.put(found, protocol=protocol, trial=job.trial, method=method, bits=job.bits)


class Runner:
    """The fits on one training set."""

    def __init__(self, trial: int, training: str, parts: Split, options: Options, memo: dict[Any, Any]) -> None:
        self.trial, self.training, self.parts, self.options, self.memo = trial, training, parts, options, memo
        self._nearest: NDArray[Any] | None = None
        self._ceiling: Fitted | None = None

    def nearest(self, protocol: str) -> NDArray[Any] | None:
        """The float neighbours of all queries, if the protocol asks for them."""
        if protocol == "neighbours" and self._nearest is None:
            self._nearest = nearest_floats(self.parts, self.options.device)
        return self._nearest if protocol == "neighbours" else None

    def fitted(self, name: str, bits: int, setting: Setting | None = None) -> Fitted:
        """A fitted method. The one whose probabilities are the ceiling is kept."""
        if (name, bits) == CEILING and self._ceiling is not None:
            return self._ceiling
        found = fit(name, bits, self.trial, self.parts, self.options, setting)
        if (name, bits) == CEILING:
            self._ceiling = found
        return found

    def score(self, job: Job) -> dict[str, dict[str, Found]]:
        """The scores by protocol and method, from one fit."""
        if job.bits is not None:
            fitted = self.fitted(job.name, job.bits, job.setting)
            params = {"params": job.setting} if job.setting else {}
            return {
                p: {job.name: {**score_codes(fitted, self.parts, p, self.nearest(p)), **params}}
                for p in job.protocols
            }
        return {p: self.score_floats(job.name, p) for p in job.protocols}

    def score_floats(self, name: str, protocol: str) -> dict[str, Found]:
        """The scores of a ranking by real numbers; without a fit, once for all protocols with the same rows."""
        of = self.fitted(*CEILING) if name == "ceiling" else None
        key = self.trial, name, protocol if of else SAME_ROWS.get(protocol, protocol)
        if key not in self.memo:
            nearest, device = self.nearest(protocol), self.options.device
            self.memo[key] = score_floats(name, self.parts, protocol, nearest, of, device)
        return self.memo[key]

    def attempt(self, results: Results, job: Job) -> dict[str, dict[str, Found]]:
        """The same, or why there are no scores."""
        limit, why = self.options.limit, None
        if job.bits is not None and job.name not in self.options.again:
            why = slower_than(results, limit, job.protocols[0], job.name, job.bits)
        try:
            if why is None:
                return self.score(job)
            none: Found = {"not_run": why, "limit_s": limit}
        except OverLimit:
            none = {"not_run": f"over {limit:g} s", "limit_s": limit}
        except Exception as error:
            none = {"failed": f"{type(error).__name__}: {error}"}
        return {protocol: {job.name: none} for protocol in job.protocols}


def all_methods() -> list[str]:
    """All methods that can be asked for: float rankings, ours, and every rival for rows of features."""
    return [*FLOATS, *(name for name in registry.NAMES if name in bench.method_names()), *VARIANTS]


def parse() -> tuple[argparse.Namespace, Options]:
    """Parse the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--methods", default=",".join(DEFAULT), help="names with commas between them, or all")
    parser.add_argument("--bits", default="32,64,128", help="code lengths with commas between them")
    parser.add_argument("--protocols", default=",".join(PROTOCOLS), help=f"some of {', '.join(PROTOCOLS)}")
    parser.add_argument("--trials", type=int, default=3, help="random splits (trained on: seeds)")
    parser.add_argument("--device", default="auto", help="for methods that can choose")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds that a method may fit and encode")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="no run is begun after so long")
    parser.add_argument("--again", default="", help="methods to run again, or all")
    parser.add_argument("--untuned", action="store_true", help="all methods with the defaults of the library")
    parser.add_argument("--keep", action="store_true", help="add to runs of other commits")
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
    fixed = (given.device, given.limit, again, deadline, given.keep, not given.untuned)
    return given, Options(methods, lengths, protocols, given.trials, *fixed)


def main() -> None:
    """Measure every file and write its results."""
    given, options = parse()
    for path in given.files:
        measure(path, options, given.output, given.resume)


if __name__ == "__main__":
    main()
