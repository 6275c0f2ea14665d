"""Runs of methods on data sets, one JSON file per run.

A ``Run`` defines what is trained on what, and its file is named after it. Finished runs are skipped; a failed run is
recorded and tried again next time. ``tables``, ``figures`` and ``report`` show the results of these files.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.preprocessing import normalize

from dish import datasets, machine, metrics, registry
from dish.deep.deep_hasher import DeepHasher
from dish.errors import InputError
from dish.io.atomic import write_atomically
from dish.io.readers import ColumnNames
from dish.io.rows import RowSource, blocks_of
from dish.posterior.dish import DISH
from dish.provenance import require_clean

Results = dict["Run", dict[str, Any]]
Progress = Callable[[str], None]  # gets progress, one line at a time

FLOATS = {  # rankings by real numbers; they have no code length
    "l2": "cosine of the floats",  # on rows of unit length, cosine and l2 distance give the same order
    "ceiling": "float ceiling (product of posteriors)",
}
OURS = ("dish", "dish_k", "ceiling")  # methods that read rows from a file, block by block
MAX_FLOATS = 200_000  # larger data sets are ranked by real numbers only on request: every query sorts all rows
BLOCK_VALUES, BLOCK_ROWS = 1 << 26, 50_000  # limits of a block of database rows
MAX_KEPT_QUERIES = 5000  # up to this many queries, a run keeps the average precision of each, for paired tests
AVERAGE_PRECISIONS = "average_precisions"  # their key in a run file
PRECISION_AT = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
NEED_PATH = ("features", "nuswide", "tinyimagenet")  # data sets that cannot be loaded by name alone
NAMES = [name for name in datasets.DATASETS if name not in NEED_PATH]
FOLDERS = {"cifar10_gist": "cifar10", "cifar10": "cifar10_images"}  # folders of the committed run files


def _ignore(line: str) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class Run:
    """The definition of one run.

    ``data`` is the name of a data set, the path of a features file, or a key of ``OpenDatasets``. ``params`` are
    parameters of the method that differ from its defaults. ``cut`` computes MAP@cut. ``n_queries`` and
    ``n_database`` use only some of the rows. ``centred`` subtracts the mean of all training rows from every row.
    """

    data: str
    method: str
    bits: int
    n_train: int | None = None  # None: the whole database
    trial: int = 0
    params: tuple[tuple[str, Any], ...] = ()
    cut: int | None = None
    n_queries: int | None = None
    n_database: int | None = None
    centred: bool = False

    def path(self, folder: Path) -> Path:
        """The file of its result."""
        method = re.sub(r"[^\w.]", "-", self.method)  # the user's own class is named module:Class
        parts = [method, f"{self.bits}bits", f"train{self.n_train or 'all'}", f"trial{self.trial}"]
        parts += [f"{name}={_exact(value)}" for name, value in self.params]
        parts += [f"cut{self.cut}"] if self.cut else []
        parts += [f"queries{self.n_queries}"] if self.n_queries else []
        parts += [f"database{self.n_database}"] if self.n_database else []
        parts += ["centred"] if self.centred else []
        return folder / FOLDERS.get(self.data, self.data) / ("_".join(parts) + ".json")

    def definition(self) -> dict[str, Any]:
        """The run as JSON values."""
        return {**vars(self), "params": dict(self.params)}


def _exact(value: Any) -> str:
    """A parameter value as text. Different floats get different texts: 10.0 is 10, 1.0000001 keeps all digits."""
    if not isinstance(value, float):
        return str(value)
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def method_names(images: bool = False) -> list[str]:
    """Names of all methods for images, or of all methods and float rankings for feature vectors."""
    names = [name for name in registry.NAMES if issubclass(registry.find(name), DeepHasher) == images]
    return names if images else [*names, *FLOATS]


# --- many runs --------------------------------------------------------------------------------------------


@dataclass
class Plan:
    """What ``run_all`` would do: the missing runs, the number of finished ones, and the expected time."""

    missing: list[Run]
    n_reused: int
    seconds: float  # expected time of the missing runs that are similar to a finished one
    n_unknown: int  # missing runs without a similar finished one
    n_gpu: int = 0  # missing runs that this machine leaves out, because they need a GPU

    def __str__(self) -> str:
        known = len(self.missing) - self.n_unknown
        lines = [f"{len(self.missing)} runs to do, {self.n_reused} finished runs reused"]
        if self.n_gpu:
            lines.append(f"{self.n_gpu} of them need a GPU, which this machine does not have: they are left out here")
        if known:
            lines.append(f"about {_duration(self.seconds)} for {known} of them, estimated from similar finished runs")
        if self.n_unknown:
            lines.append(f"no estimate for the other {self.n_unknown}: no similar run is finished")
        return "\n".join(lines)


def plan(runs: Iterable[Run], folder: Path, *, force: bool = False, data: OpenDatasets | None = None) -> Plan:
    """Find the missing runs, and estimate their time from the most similar finished runs."""
    data = data or OpenDatasets()
    keyed = list(dict.fromkeys(data.with_key(run) for run in runs))  # tables share runs
    missing = [run for run in keyed if force or not _is_finished(run.path(folder))]
    seconds = [_expected_seconds(run, folder) for run in missing]
    known = [s for s in seconds if s is not None]
    return Plan(missing, len(keyed) - len(missing), sum(known), len(seconds) - len(known))


def run_all(
    runs: Iterable[Run],
    folder: Path,
    *,
    force: bool = False,
    data: OpenDatasets | None = None,
    report: Progress = _ignore,
) -> Results:
    """Do the missing runs (``force``: all runs), and return the results of all."""
    data = data or OpenDatasets()
    keyed = {run: data.with_key(run) for run in runs}
    missing = [run for run in keyed.values() if force or not _is_finished(run.path(folder))]
    if len(missing) < len(keyed):
        report(f"{len(keyed) - len(missing)} finished runs reused (--force to run again)")
    if missing:
        require_clean(folder)
    warm: set[str] = set()
    for i, run in enumerate(missing):
        opened = data.load(run.data, report)
        if run.method not in warm:
            _warm_up(run, opened)
            warm.add(run.method)
        start = time.perf_counter()
        path = run.path(folder)
        write_json(path, _attempt(run, opened))
        report(f"[{i + 1}/{len(missing)}] {path.parent.name}/{path.stem}: {time.perf_counter() - start:.1f} s")
    return {run: json.loads(same.path(folder).read_text()) for run, same in keyed.items()}


def finished(runs: Iterable[Run], folder: Path, data: OpenDatasets | None = None) -> Results:
    """The results that exist. Nothing is run."""
    data = data or OpenDatasets()
    paths = {run: data.with_key(run).path(folder) for run in runs}
    return {run: json.loads(path.read_text()) for run, path in paths.items() if path.exists()}


def _is_finished(path: Path) -> bool:
    return path.exists() and "failed" not in json.loads(path.read_text())


def _expected_seconds(run: Run, folder: Path) -> float | None:
    """The time of the most similar finished run of this method on this data; None without one."""
    closest, found = None, None
    for path in sorted(run.path(folder).parent.glob("*.json")):
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
    """Fit a few rows first: a method's first fit compiles its kernels, and no run's time should include that."""
    if run.method not in FLOATS and data.X.ndim == 2:  # networks compile nothing
        some = data.split(run.trial, None).train[:: max(1, len(data) // 500)]
        with suppress(Exception), warnings.catch_warnings():  # the run itself will report what is wrong
            warnings.simplefilter("ignore")
            make_method(run).fit(prepared(data, some), data.y[some])


def float_lines(runs: list[Run], folder: Path, *, data: OpenDatasets, report: Progress = _ignore) -> Results:
    """Results of the float rankings that belong in the same table as ``runs``.

    Finished ones are read. Missing ones are run only on feature vectors that are already loaded, and only up to
    ``MAX_FLOATS`` rows, because sorting takes longer than hashing.
    """
    floats, opened = float_runs(runs), data.loaded(runs[0].data)
    if opened is not None and opened.X.ndim == 2 and len(opened) <= MAX_FLOATS:
        run_all(plan(floats, folder, data=data).missing, folder, data=data, report=report)
    return finished(floats, folder, data)


def float_runs(runs: list[Run]) -> list[Run]:
    """One run of each float ranking per trial, at the largest training size; none if ``runs`` already has any."""
    if any(run.method in FLOATS for run in runs):
        return []
    sizes = [run.n_train for run in runs]
    largest = None if None in sizes else max(size for size in sizes if size is not None)
    trials = dict.fromkeys(run.trial for run in runs)
    return [replace(runs[0], method=name, n_train=largest, trial=t, params=()) for name in FLOATS for t in trials]


# --- data -------------------------------------------------------------------------------------------------


class OpenDatasets:
    """Data sets by key, each loaded once.

    The key of a registered data set is its name. The key of the user's own features is the stem of the file and a
    checksum of its content, so that results of two files with the same name are kept apart.
    """

    def __init__(self, loaded: Mapping[str, Any] | None = None) -> None:
        self._loaded = dict(loaded or {})
        self._keys: dict[str, str] = {}  # path → key

    def key(
        self,
        name: str,
        labels: Path | None = None,
        split: Path | None = None,
        columns: ColumnNames | None = None,
        queries: int = 100,
    ) -> str:
        """The key of a data set. The user's own features are loaded for it.

        ``labels`` is a file of labels, ``split`` a file that assigns a role to every row; without it there are
        ``queries`` queries per class.
        """
        own = labels is not None or split is not None or columns not in (None, ColumnNames())
        if name in self._loaded or name in NAMES:
            if own:
                raise InputError(
                    f"labels, a split and options about tables are for a path of your own features, not for {name}"
                )
            return name
        if own or name not in self._keys:
            data = (
                datasets.load_features(name, labels, queries, split=split, columns=columns)
                if own
                else load_data(name, queries)
            )
            key = f"{Path(name).stem}-{_checksum(data)}" + (
                f"-{queries}queries" if queries != 100 and data.roles is None else ""
            )
            self._keys[name], self._loaded[key] = key, data
        return self._keys[name]

    def with_key(self, run: Run) -> Run:
        """The same run with the key as its data."""
        return replace(run, data=self.key(run.data))

    def loaded(self, key: str) -> Any:
        """The data set, or None if it is not loaded yet."""
        return self._loaded.get(key)

    def load(self, key: str, report: Progress = _ignore) -> Any:
        """The data set, loaded if necessary."""
        if key not in self._loaded:
            report(f"loading {key}")
            self._loaded[key] = load_data(key)
        return self._loaded[key]


def _checksum(data: Any) -> str:
    """Checksum of the types, shapes and values of X, y and the roles."""
    digest = hashlib.blake2b(f"{data.X.dtype} {data.X.shape}".encode(), digest_size=6)
    sparse = [part for M in (data.X, data.y) if sp.issparse(M) for part in (M.data, M.indices, M.indptr)]
    for block in sparse if sp.issparse(data.X) else blocks_of(data.X):
        digest.update(np.ascontiguousarray(block).data)
    if data.y is not None and not sp.issparse(data.y):
        y = np.asarray(data.y)
        y = y.astype(str) if y.dtype.kind == "O" else y
        digest.update(f"{y.dtype} {y.shape}".encode() + y.tobytes())
    if data.roles is not None:
        digest.update(data.roles.tobytes())
    return digest.hexdigest()


def load_data(name: str, queries: int = 100) -> Any:
    """A data set by its name in ``datasets.DATASETS``, the official folder of NUS-WIDE, or own features by path."""
    if name == "synthetic_imagenet":  # 21 GB: written once, then memory-mapped
        return datasets.synthetic_imagenet(path=datasets.cache_folder() / "synthetic_imagenet.npy")
    if name in NAMES:
        return datasets.DATASETS[name]()
    if datasets.is_nuswide(Path(name)):
        return datasets.load_nuswide(name)
    if Path(name).exists():
        return datasets.load_features(name, queries=queries)
    raise InputError(f"data must be a path or one of {', '.join(NAMES)}; got {name!r}")


# --- one run ----------------------------------------------------------------------------------------------


def _attempt(run: Run, data: Any) -> dict[str, Any]:
    """The content of a run file: what was measured, or why the run failed."""
    definition = {**run.definition(), "synthetic": bool(data.synthetic)}
    try:
        measured = execute(run, data)
    except Exception as error:
        measured = {"failed": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc(limit=-3)}
    return {"definition": definition, **measured, "environment": machine.environment()}


def execute(run: Run, data: Any) -> dict[str, Any]:
    """Train, encode and score one run."""
    data = data.centred(run.trial) if run.centred else data
    split = data.split(run.trial, run.n_train)
    query = split.query if run.n_queries is None else split.query[:: max(1, len(split.query) // run.n_queries)]
    database = split.database
    if run.n_database is not None:
        database = np.sort(np.random.default_rng(run.trial).choice(database, run.n_database, replace=False))
    cut = run.cut and min(run.cut, len(database))
    if run.method == "l2":
        return _product_map(lambda X: X, data, query, database, cut)

    hasher = make_method(run)
    X, y = training_rows(run, data, split.train), data.y[split.train]
    if run.method == "ceiling":
        hasher.fit(X, y)
        fit_s = sum(hasher.timings_.values())
        return {**_product_map(hasher.predict_proba, data, query, database, cut), "fit_s": fit_s}
    peak = machine.PeakMemory()
    start = time.perf_counter()
    hasher.fit(X, y)
    fit_s = time.perf_counter() - start
    memory = peak.bytes()

    yq, yb = data.y[query], data.y[database]
    start = time.perf_counter()
    F = _by_blocks(hasher.decision_function, data, query)
    q, base = np.packbits(F >= 0, axis=1), _by_blocks(hasher.transform, data, database)
    encode_s = time.perf_counter() - start
    start = time.perf_counter()
    scores = _scores(q, yq, base, yb, run.bits, cut)
    result = {**scores, "fit_s": fit_s, "encode_s": encode_s, "score_s": time.perf_counter() - start}
    if run.method in OURS and run.trial == 0 and len(q) * len(base) < 1e8:  # it sorts, which takes longest of all
        result["map_asymmetric"] = metrics.asymmetric_mean_average_precision(F, yq, base, yb, k=cut)
    if hasattr(hasher, "codes_") and run.n_train is None:  # the paper's footnote: learned codes as the database
        result["map_learned_codes"] = metrics.mean_average_precision(q, yq, hasher.codes_, y, k=cut)
    return {**result, "fit_peak_bytes": memory, "stages_s": getattr(hasher, "timings_", {})}


def _scores(
    q: NDArray[np.uint8], yq: Any, base: NDArray[np.uint8], yb: Any, bits: int, cut: int | None
) -> dict[str, Any]:
    """All scores of the codes as JSON values; for few queries, also the average precision of each."""
    counts = metrics.histograms(q, yq, base, yb, bits)
    scores = metrics.report(counts, cut, PRECISION_AT).to_dict()
    for name in ("precision_at", "recall_at"):
        scores[name] = {str(k): value for k, value in scores[name].items()}
    if len(q) <= MAX_KEPT_QUERIES:
        scores[AVERAGE_PRECISIONS] = metrics.expected_average_precision(counts, cut).round(5).tolist()
    return scores


def _product_map(
    embed: Callable[[Any], NDArray[Any]],
    data: Any,
    query: NDArray[Any],
    database: NDArray[Any],
    cut: int | None,
) -> dict[str, Any]:
    """MAP of ranking by inner products of embedded rows, which are computed from blocks of the database.

    With the rows of unit length themselves it is the MAP of the cosine and of the l2 distance. With DISH's class
    probabilities p it is that of p(x)·p(x′), the estimate that two rows share a class: an upper bound for its codes.
    """
    start, total = time.perf_counter(), 0.0
    at_a_time = min(1024, max(64, machine.free_memory() // (64 * len(database))))  # queries per pass over the rows
    for some in np.array_split(query, -(-len(query) // at_a_time)):
        Q = embed(prepared(data, some))

        def with_queries(X: Any, Q: NDArray[Any] = Q) -> NDArray[Any]:
            return embed(X) @ Q.T

        products = _by_blocks(with_queries, data, database)  # (rows, queries)
        one_hot = np.eye(len(some), dtype=products.dtype)
        found = metrics.product_mean_average_precision(one_hot, data.y[some], products, data.y[database], k=cut)
        total += len(some) * found
    return {"map": total / len(query), "score_s": time.perf_counter() - start}


def _by_blocks(function: Callable[[Any], NDArray[Any]], data: Any, rows: NDArray[Any]) -> NDArray[Any]:
    """``function`` of some rows of a data set, computed block by block."""
    size = max(1, min(BLOCK_ROWS, BLOCK_VALUES // int(np.prod(data.X.shape[1:]))))
    return np.concatenate([function(prepared(data, rows[i : i + size])) for i in range(0, len(rows), size)])


def make_method(run: Run) -> Any:
    """The unfitted hasher of a run; the trial is its seed."""
    kind = DISH if run.method == "ceiling" else registry.find(run.method)
    return kind(n_bits=run.bits, random_state=run.trial, **dict(run.params))


def training_rows(run: Run, data: Any, rows: NDArray[Any]) -> Any:
    """The training rows. If they would fill half of the memory and the method can stream, they are streamed."""
    if data.X.ndim == 4:
        return prepared(data, rows)
    size, free = 4 * len(rows) * data.X.shape[1], machine.free_memory()
    if run.method in OURS and size > free // 2:
        return RowSource(_Selected(data, rows))
    if size > free:
        raise InputError(
            f"{run.method} needs all {len(rows):,} training rows in memory, {size / 1e9:.1f} GB; {free / 1e9:.1f} GB "
            f"are free. Train on fewer rows, or use a method that reads them in blocks: {', '.join(OURS[:2])}"
        )
    return prepared(data, rows)


class _Selected:
    """Some rows of a data set, prepared when they are read."""

    dtype = np.dtype(np.float32)

    def __init__(self, data: Any, rows: NDArray[Any]) -> None:
        self.data, self.rows = data, rows
        self.shape = (len(rows), data.X.shape[1])

    def __getitem__(self, which: Any) -> NDArray[Any]:
        return prepared(self.data, self.rows[which])


def prepared(data: Any, rows: NDArray[Any]) -> NDArray[Any]:
    """Rows by index as methods get them: images unchanged, features scaled to unit length as in the paper."""
    X = data.rows(rows)
    return X if X.ndim == 4 else normalize(np.asarray(X, np.float32), copy=False)  # X is a copy already


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a results file atomically; a published one only if all code is committed, else to a temporary folder."""
    try:
        require_clean(path)
    except InputError as error:
        kept = Path(tempfile.gettempdir()) / path.name
        write_atomically(kept, (json.dumps(content, indent=1) + "\n").encode())
        raise InputError(f"{error}. The results are in {kept}") from None
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
