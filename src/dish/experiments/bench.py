"""Definition → run → one JSON; tables and figures are made from the JSONs (``dish.report``).

A finished run is not run again, a failing one is recorded and does not stop the rest, and every file is written
whole: interrupting and starting again loses nothing.
"""

from __future__ import annotations

import json
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.io import modelfile
from dish.io.pages import release
from dish.io.shards import is_map
from dish.machine import PeakMemory, environment

PRECISION_AT = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


@dataclass(frozen=True)
class Run:
    """One definition: what is trained on what, and how. Its file name says all of it.

    ``data`` is a name of the registry or a path of features; ``params`` are parameters of the method beyond
    its defaults; ``cut`` cuts the MAP at that many places; ``n_queries`` and ``n_database`` take some of the rows.
    """

    data: str
    method: str
    bits: int
    n_train: int | None = None
    trial: int = 0
    params: tuple[tuple[str, Any], ...] = ()
    cut: int | None = None
    n_queries: int | None = None
    n_database: int | None = None

    def path(self, folder: Path) -> Path:
        """Where its result goes."""
        parts = [self.method, f"{self.bits}bits", f"train{self.n_train or 'all'}", f"trial{self.trial}"]
        parts += [
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in self.params
        ]
        parts += [f"cut{self.cut}"] if self.cut else []
        parts += [f"queries{self.n_queries}"] if self.n_queries else []
        parts += [f"database{self.n_database}"] if self.n_database else []
        return folder / Path(self.data).stem / ("_".join(parts) + ".json")


def method_names(images: bool = False) -> list[str]:
    """What can be benchmarked: DISH, the registry and the l2 distance of raw rows; or the networks, on images."""
    from dish.baselines import REGISTRY
    from dish.deep.hasher import DeepHasher

    names = [name for name, kind in REGISTRY.items() if issubclass(kind, DeepHasher) == images]
    return ["dish_d", *names] if images else ["dish", *names, "l2"]


def paper_sizes(data: str, method: str) -> list[int | None]:
    """Training rows of a method in the paper's table of that data; the whole database where it has none."""
    from dish.experiments.paper import TABLES

    lines = [line for table in TABLES.values() if table.data == data for line in table.lines if line.method == method]
    return list(dict.fromkeys(line.n_train for line in lines)) or [None]


def run_all(
    runs: Iterable[Run],
    folder: Path,
    *,
    force: bool = False,
    datasets: dict[str, Any] | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> dict[Run, dict[str, Any]]:
    """Do what is not done yet; the results of all of them. ``datasets`` are used by name and filled in."""
    loaded: dict[str, Any] = {} if datasets is None else datasets
    results = {}
    warm: set[str] = set()
    todo = list(runs)
    for i, run in enumerate(todo):
        path = run.path(folder)
        if force or not path.exists():
            if run.data not in loaded:
                report(f"loading {run.data}")
                loaded[run.data] = load_data(run.data)
            if run.method not in warm:
                _warm_up(run, loaded[run.data])
                warm.add(run.method)
            start = time.perf_counter()
            write_json(path, _attempt(run, loaded[run.data]))
            report(f"[{i + 1}/{len(todo)}] {path.parent.name}/{path.stem}: {time.perf_counter() - start:.1f} s")
        results[run] = json.loads(path.read_text())
    return results


def finished(runs: Iterable[Run], folder: Path) -> dict[Run, dict[str, Any]]:
    """The results there are, without running anything."""
    return {run: json.loads(run.path(folder).read_text()) for run in runs if run.path(folder).exists()}


def _warm_up(run: Run, data: Any) -> None:
    """A method's first fit compiles its kernels: do that on a few rows, so that no run's time has it in it."""
    if run.method != "l2" and data.X.ndim == 2:  # networks compile nothing
        some = data.split(run.trial, None).train[:: max(1, len(data) // 500)]
        with suppress(Exception), warnings.catch_warnings():  # what is wrong with it, the run itself will say
            warnings.simplefilter("ignore")
            make_method(run).fit(prepared(data, some), data.y[some])


def load_data(name: str) -> Any:
    """A dataset by registry name ("cifar10" means its GIST, "cifar10_images" the images), or features by path."""
    from dish import datasets

    name = {"cifar10": "cifar10_gist", "cifar10_images": "cifar10"}.get(name, name)
    if name == "synthetic_imagenet":  # 21 GB: made once, then memory-mapped
        return datasets.synthetic_imagenet(path=datasets.cache_folder() / "synthetic_imagenet.npy")
    if name in datasets.DATASETS:
        return datasets.DATASETS[name]()
    if Path(name).exists():
        return datasets.load_features(name)
    raise ValueError(f"data must be a path or one of {', '.join(datasets.DATASETS)}; got {name!r}")


def _attempt(run: Run, data: Any) -> dict[str, Any]:
    definition = {
        "data": Path(run.data).stem,
        "synthetic": bool(data.synthetic),
        "method": run.method,
        "bits": run.bits,
        "n_train": run.n_train,
        "trial": run.trial,
        "params": dict(run.params),
        "cut": run.cut,
        "n_queries": run.n_queries,
        "n_database": run.n_database,
    }
    try:
        measured = execute(run, data)
    except Exception as error:
        measured = {"failed": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc(limit=-3)}
    return {"definition": definition, **measured, "environment": environment()}


def execute(run: Run, data: Any) -> dict[str, Any]:
    """Train, encode and score one definition."""
    from dish import metrics

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
    peak = PeakMemory()
    start = time.perf_counter()
    hasher.fit(X, labels[split.train])
    fit_s = time.perf_counter() - start
    memory = peak.bytes()

    start = time.perf_counter()
    F = hasher.decision_function(Xq)
    q, base = np.packbits(F >= 0, axis=1), _encode(hasher, data, database)
    encode_s = time.perf_counter() - start
    start = time.perf_counter()
    score = metrics.evaluate(q, yq, base, yb, n_bits=run.bits, k=run.cut, at=PRECISION_AT)
    result = {**score.to_dict(), "fit_s": fit_s, "encode_s": encode_s, "score_s": time.perf_counter() - start}
    result["precision_at"] = {str(k): p for k, p in score.precision_at.items()}
    if run.method == "dish" and run.trial == 0 and len(q) * len(base) < 1e8:  # it sorts: longer than all the rest
        result["map_asymmetric"] = metrics.asymmetric_mean_average_precision(F, yq, base, yb, k=run.cut)
    if hasattr(hasher, "codes_") and run.n_train is None:  # the paper's footnote: learned codes as the database
        yt = labels[split.train]
        result["map_learned_codes"] = metrics.mean_average_precision(q, yq, hasher.codes_, yt, k=run.cut)
    return {**result, "fit_peak_bytes": memory, "stages_s": getattr(hasher, "timings_", {})}


def _encode(hasher: Any, data: Any, rows: NDArray[Any], block: int = 50_000) -> NDArray[np.uint8]:
    """Codes of some rows of a dataset, a block at a time."""
    parts = (rows[i : i + block] for i in range(0, len(rows), block))
    return np.concatenate([hasher.transform(prepared(data, part)) for part in parts])


def make_method(run: Run) -> Any:
    """The hasher of a definition; the trial is its seed."""
    from dish.baselines import REGISTRY
    from dish.deep.dish import DeepDISH
    from dish.kernel.dish import DISH

    kinds: dict[str, Any] = {"dish": DISH, "dish_d": DeepDISH, **REGISTRY}
    if run.method not in kinds:
        raise ValueError(f"method must be one of {', '.join(method_names())}; got {run.method!r}")
    return kinds[run.method](n_bits=run.bits, random_state=run.trial, **dict(run.params))


def training_rows(run: Run, data: Any, rows: NDArray[Any]) -> Any:
    """Rows to learn from; those that would fill half of the memory are read by the method, if it can."""
    from dish import machine
    from dish.io.rows import Rows

    if run.method == "dish" and data.X.ndim == 2 and 4 * len(rows) * data.X.shape[1] > machine.free_memory() // 2:
        return Rows(_Selected(data, rows))
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
    modelfile.write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
