"""Definition → run → one JSON; tables and figures are made from the JSONs (``tables``, ``figures``, ``report``).

A finished run is not run again, a failing one is recorded, tried again next time, and does not stop the rest. Every
file is written whole: interrupting and starting again loses nothing.
"""

from __future__ import annotations

import hashlib
import json
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish import datasets, machine, metrics, registry
from dish.deep.deep_hasher import DeepHasher
from dish.errors import InputError
from dish.experiments.definition import FLOATS, Results, Run
from dish.experiments.significance import KEY
from dish.io.atomic import write_atomically
from dish.io.blocks import blocks_of
from dish.io.columns import Columns
from dish.io.pages import release
from dish.io.rows import RowSource
from dish.io.shards import is_map
from dish.kernel.dish import DISH

OURS = ("dish", "dish_k", "ceiling")  # they read rows that do not fit in memory
MOST_FLOATS = 200_000  # rows of a set that real numbers rank unasked: each query sorts all of them
KEPT_QUERIES = 5000  # of which a run file keeps every average precision, for paired tests
PRECISION_AT = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
RENAMED = {"cifar10": "cifar10_gist", "cifar10_images": "cifar10"}  # the paper's CIFAR-10 is its GIST
PATHS = ("features", "nuswide", "tinyimagenet")  # they need one
NAMES = [name for name in {**RENAMED, **datasets.DATASETS} if name not in PATHS]


def method_names(images: bool = False) -> list[str]:
    """What can be benchmarked: the registry and the rankings by real numbers; or the networks, on images."""
    names = [name for name in registry.NAMES if issubclass(registry.find(name), DeepHasher) == images]
    return names if images else [*names, *FLOATS]


@dataclass
class Plan:
    """What ``run_all`` would do: the runs that are missing, how many are reused, and the time to expect."""

    missing: list[Run]
    n_reused: int
    seconds: float  # of the missing runs that a finished run tells about
    n_unknown: int  # missing runs that none tells about

    def __str__(self) -> str:
        known = len(self.missing) - self.n_unknown
        lines = [f"{len(self.missing)} runs to do, {self.n_reused} finished runs reused"]
        if known:
            lines.append(f"about {_duration(self.seconds)} for {known} of them, judged by finished runs like them")
        if self.n_unknown:
            lines.append(f"no finished run tells how long the other {self.n_unknown} take")
        return "\n".join(lines)


def plan(runs: Iterable[Run], folder: Path, *, force: bool = False, opened: dict[str, Any] | None = None) -> Plan:
    """Which runs are missing, and how long they may take by the finished runs most like them."""
    opened = {} if opened is None else opened
    keyed = [replace(run, data=data_key(run.data, opened)) for run in runs]
    missing = [run for run in keyed if force or not _is_finished(run.path(folder))]
    seconds = [_expected_seconds(run, folder) for run in missing]
    known = [s for s in seconds if s is not None]
    return Plan(missing, len(keyed) - len(missing), sum(known), len(seconds) - len(known))


def run_all(
    runs: Iterable[Run],
    folder: Path,
    *,
    force: bool = False,
    opened: dict[str, Any] | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Results:
    """Run what is missing; the results of all runs. ``opened`` is a cache of opened datasets by key."""
    opened = {} if opened is None else opened
    todo = list(runs)
    keyed = {run: replace(run, data=data_key(run.data, opened)) for run in todo}
    missing = [run for run in todo if force or not _is_finished(keyed[run].path(folder))]
    if len(missing) < len(todo):
        report(f"{len(todo) - len(missing)} finished runs reused (--force to run again)")
    warm: set[str] = set()
    for i, run in enumerate(missing):
        data = _open(keyed[run].data, opened, report)
        if run.method not in warm:
            _warm_up(run, data)
            warm.add(run.method)
        start = time.perf_counter()
        path = keyed[run].path(folder)
        write_json(path, _attempt(keyed[run], data))
        report(f"[{i + 1}/{len(missing)}] {path.parent.name}/{path.stem}: {time.perf_counter() - start:.1f} s")
    return {run: json.loads(keyed[run].path(folder).read_text()) for run in todo}


def finished(runs: Iterable[Run], folder: Path, opened: dict[str, Any] | None = None) -> Results:
    """The results there are, without running anything."""
    opened = {} if opened is None else opened
    paths = {run: replace(run, data=data_key(run.data, opened)).path(folder) for run in runs}
    return {run: json.loads(path.read_text()) for run, path in paths.items() if path.exists()}


def _is_finished(path: Path) -> bool:
    return path.exists() and "failed" not in json.loads(path.read_text())


def _expected_seconds(run: Run, folder: Path) -> float | None:
    """The time of the finished run of this method on this data that is most like it; None if there is none."""
    closest, found = None, None
    for path in sorted((folder / run.data).glob("*.json")):
        result = json.loads(path.read_text())
        of = result["definition"]
        if "failed" in result or of["method"] != run.method:
            continue
        unlike = of["params"] != dict(run.params), of["n_train"] != run.n_train, abs(of["bits"] - run.bits)
        if closest is None or unlike < closest:
            closest, found = unlike, sum(result.get(name, 0.0) for name in ("fit_s", "encode_s", "score_s"))
    return found


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _warm_up(run: Run, data: Any) -> None:
    """A method's first fit compiles its kernels: do that on a few rows, so that no run's time includes it."""
    if run.method not in FLOATS and data.X.ndim == 2:  # networks compile nothing
        some = data.split(run.trial, None).train[:: max(1, len(data) // 500)]
        with suppress(Exception), warnings.catch_warnings():  # what is wrong with it, the run itself will say
            warnings.simplefilter("ignore")
            make_method(run).fit(prepared(data, some), data.y[some])


def float_lines(
    runs: list[Run], folder: Path, *, opened: dict[str, Any], report: Callable[[str], None] = lambda line: None
) -> Results:
    """Results of the rankings by real numbers that belong beside some runs.

    Those that are finished; the others are run where the data are open already, are features, and are not so many
    that sorting them would take longer than the codes did.
    """
    floats, data = float_runs(runs), opened.get(runs[0].data)
    if data is not None and data.X.ndim == 2 and len(data) <= MOST_FLOATS:
        return run_all(floats, folder, opened=opened, report=report)
    return finished(floats, folder, opened)


def float_runs(runs: list[Run]) -> list[Run]:
    """One ranking of each kind in every trial, on the most rows; none where any was asked for by name."""
    if any(run.method in FLOATS for run in runs):
        return []
    sizes = [run.n_train for run in runs]
    most = None if None in sizes else max(size for size in sizes if size is not None)
    trials = dict.fromkeys(run.trial for run in runs)
    return [replace(runs[0], method=name, n_train=most, trial=t, params=()) for name in FLOATS for t in trials]


# --- data -------------------------------------------------------------------------------------------------


def data_key(
    name: str,
    opened: dict[str, Any],
    labels: Path | None = None,
    split: Path | None = None,
    columns: Columns | None = None,
) -> str:
    """What results of this data are filed under: a registry name, or the stem and the content of one's own features.

    Features are opened (and kept in ``opened``): two files of one name with other rows or labels have other keys.
    ``labels`` is a file of labels of features that come without, ``split`` one of what rows are for.
    """
    own = labels is not None or split is not None or (columns is not None and columns.named)
    if name in opened or name in NAMES:
        if own:
            raise InputError(f"labels, a split and columns go with a path of one's own features, not with {name}")
        return name
    data = datasets.load_features(name, labels, split=split, columns=columns) if own else load_data(name)
    key = f"{Path(name).stem}-{_checksum(data)}"
    opened[key] = data
    return key


def _checksum(data: Any) -> str:
    """Of types, shapes and values of X and y."""
    digest = hashlib.blake2b(f"{data.X.dtype} {data.X.shape}".encode(), digest_size=6)
    for block in blocks_of(data.X):
        digest.update(np.ascontiguousarray(block).data)
    if data.y is not None:
        y = np.asarray(data.y)
        y = y.astype(str) if y.dtype.kind == "O" else y
        digest.update(f"{y.dtype} {y.shape}".encode() + y.tobytes())
    if data.roles is not None:
        digest.update(data.roles.tobytes())
    return digest.hexdigest()


def _open(key: str, opened: dict[str, Any], report: Callable[[str], None]) -> Any:
    if key not in opened:
        report(f"loading {key}")
        opened[key] = load_data(key)
    return opened[key]


def load_data(name: str) -> Any:
    """A dataset by registry name ("cifar10" means its GIST, "cifar10_images" the images), or features by path."""
    if name == "synthetic_imagenet":  # 21 GB: made once, then memory-mapped
        return datasets.synthetic_imagenet(path=datasets.cache_folder() / "synthetic_imagenet.npy")
    if name in NAMES:
        return datasets.DATASETS[RENAMED.get(name, name)]()
    if Path(name).exists():
        return datasets.load_features(name)
    raise InputError(f"data must be a path or one of {', '.join(NAMES)}; got {name!r}")


# --- one run ----------------------------------------------------------------------------------------------


def _attempt(run: Run, data: Any) -> dict[str, Any]:
    definition = {**run.definition(), "synthetic": bool(data.synthetic)}
    try:
        measured = execute(run, data)
    except Exception as error:
        measured = {"failed": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc(limit=-3)}
    return {"definition": definition, **measured, "environment": machine.environment()}


def execute(run: Run, data: Any) -> dict[str, Any]:
    """Train, encode and score one definition."""
    split = data.split(run.trial, run.n_train)
    query = split.query if run.n_queries is None else split.query[:: max(1, len(split.query) // run.n_queries)]
    labels, database = data.y, split.database
    if run.n_database is not None:
        database = np.sort(np.random.default_rng(run.trial).choice(database, run.n_database, replace=False))
    Xq, yq, yb = prepared(data, query), labels[query], labels[database]
    if run.method == "l2":
        start = time.perf_counter()
        value = metrics.l2_mean_average_precision(Xq, yq, prepared(data, database), yb, k=run.cut)
        return {"map": value, "score_s": time.perf_counter() - start}

    hasher = make_method(run)
    X = training_rows(run, data, split.train)
    if run.method == "ceiling":
        return _ceiling(hasher.fit(X, labels[split.train]), Xq, yq, data, database, run.cut)
    peak = machine.PeakMemory()
    start = time.perf_counter()
    hasher.fit(X, labels[split.train])
    fit_s = time.perf_counter() - start
    memory = peak.bytes()

    start = time.perf_counter()
    F = hasher.decision_function(Xq)
    q, base = np.packbits(F >= 0, axis=1), _by_blocks(hasher.transform, data, database)
    encode_s = time.perf_counter() - start
    start = time.perf_counter()
    counts = metrics.histograms(q, yq, base, yb, run.bits)
    score = metrics.report(counts, run.cut, PRECISION_AT)
    result = {**score.to_dict(), "fit_s": fit_s, "encode_s": encode_s, "score_s": time.perf_counter() - start}
    for name in ("precision_at", "recall_at"):
        result[name] = {str(k): value for k, value in result[name].items()}
    if len(q) <= KEPT_QUERIES:
        result[KEY] = metrics.expected_average_precision(counts, run.cut).round(5).tolist()
    if run.method in OURS and run.trial == 0 and len(q) * len(base) < 1e8:  # it sorts: longer than all the rest
        result["map_asymmetric"] = metrics.asymmetric_mean_average_precision(F, yq, base, yb, k=run.cut)
    if hasattr(hasher, "codes_") and run.n_train is None:  # the paper's footnote: learned codes as the database
        yt = labels[split.train]
        result["map_learned_codes"] = metrics.mean_average_precision(q, yq, hasher.codes_, yt, k=run.cut)
    return {**result, "fit_peak_bytes": memory, "stages_s": getattr(hasher, "timings_", {})}


def _ceiling(hasher: DISH, Xq: Any, yq: Any, data: Any, database: NDArray[Any], cut: int | None) -> dict[str, Any]:
    """MAP of p(x)·p(x′), the chance that two rows share a class as DISH sees it: what its codes can at best keep."""
    start = time.perf_counter()
    P = _by_blocks(hasher.label_probabilities, data, database)
    value = metrics.product_mean_average_precision(hasher.label_probabilities(Xq), yq, P, data.y[database], k=cut)
    return {"map": value, "score_s": time.perf_counter() - start, "fit_s": sum(hasher.timings_.values())}


def _by_blocks(
    function: Callable[[Any], NDArray[Any]], data: Any, rows: NDArray[Any], block: int = 50_000
) -> NDArray[Any]:
    """What a function of rows gives for some rows of a dataset, a block at a time."""
    parts = (rows[i : i + block] for i in range(0, len(rows), block))
    return np.concatenate([function(prepared(data, part)) for part in parts])


def make_method(run: Run) -> Any:
    """The hasher of a definition; the trial is its seed."""
    params = registry.PRESETS.get(run.method, {}) | dict(run.params)
    kind = DISH if run.method == "ceiling" else registry.find(run.method)
    return kind(n_bits=run.bits, random_state=run.trial, **params)


def training_rows(run: Run, data: Any, rows: NDArray[Any]) -> Any:
    """Rows to learn from; those that would fill half of the memory are read by the method, if it can."""
    if run.method in OURS and data.X.ndim == 2 and 4 * len(rows) * data.X.shape[1] > machine.free_memory() // 2:
        return RowSource(_Selected(data, rows))
    return prepared(data, rows)


class _Selected:
    """Some rows of a dataset, prepared when they are asked for."""

    dtype = np.dtype(np.float32)

    def __init__(self, data: Any, rows: NDArray[Any]) -> None:
        self.data, self.rows = data, rows
        self.shape = (len(rows), data.X.shape[1])

    def __getitem__(self, which: Any) -> NDArray[Any]:
        block = prepared(self.data, self.rows[which])
        if is_map(self.data.X):
            release(self.data.X)
        return block


def prepared(data: Any, rows: NDArray[Any]) -> NDArray[Any]:
    """Some rows of a dataset as methods get them: images as they are, features of length one."""
    X = data.rows(rows)
    return X if X.ndim == 4 else unit_rows(X)


def unit_rows(X: NDArray[Any]) -> NDArray[np.float32]:
    """Rows of length one (the paper normalises all features); a row of zeros stays."""
    X = np.asarray(X, np.float32)
    norm = np.linalg.norm(X, axis=1, keepdims=True)
    return np.asarray(X / np.where(norm > 0, norm, 1), np.float32)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a results file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
