"""Data sets and protocols of benchmarks/real.py (described in docs/real.md).

Protocols that share their training rows share one fit: ``TRAININGS`` maps each training set to its protocols.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.io.readers import read_features

FEW = {f"{k} rows per class": k for k in (5, 10, 20)}
TRAININGS: dict[str, tuple[str, ...]] = {
    "all rows": ("trained on", "labelled"),
    "half": ("disjoint",),
    **{name: (name,) for name in FEW},
    "half of the seen classes": ("open set", "unseen classes", "neighbours"),
}
MULTILABEL: dict[str, tuple[str, ...]] = {  # the other protocols need one class per row
    "all rows": ("trained on", "labelled"),
    "half": ("disjoint", "neighbours"),
}
PROTOCOLS = tuple(protocol for shared in TRAININGS.values() for protocol in shared)
SAME_ROWS = {"labelled": "trained on", **dict.fromkeys(FEW, "disjoint")}  # the same database and queries
CUT = 5000  # MAP@5000 for multi-label rows
QUERIES = 1000  # of a file without queries of its own
TRAIN, QUERY, LEFT_OUT = 0, 1, 2


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
    """Training rows of one trial, with the database and the queries of the protocols that share them."""

    train: Part
    base: Part
    queries: Part
    only: dict[str, tuple[NDArray[np.bool_], NDArray[np.bool_]]] = field(default_factory=dict)
    # protocols that ask for some rows only: masks of database and queries

    def select(self, protocol: str, base: NDArray[Any], queries: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Those of the values of all database rows and queries that belong to a protocol."""
        if protocol not in self.only:
            return base, queries
        rows, asked = self.only[protocol]
        return base[rows], queries[asked]

    def of(self, protocol: str) -> Split:
        """The rows of one protocol."""
        X, Xq = self.select(protocol, self.base.X, self.queries.X)
        y, yq = self.select(protocol, self.base.y, self.queries.y)
        return Split(self.train, Part(X, y), Part(Xq, yq))


# --- reading ---


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


# --- splitting ---


def trainings(multilabel: bool) -> dict[str, tuple[str, ...]]:
    """Training sets and the protocols that share them, for rows of this kind."""
    return MULTILABEL if multilabel else TRAININGS


def split(rows: Part, queries: Part | None, training: str, trial: int) -> Split:
    """The rows of one trial with one of the training sets."""
    rng = np.random.default_rng(trial)
    order = rng.permutation(len(rows.X))
    if queries is None:
        queries, order = rows.rows(order[:QUERIES]), order[QUERIES:]
    if training == "all rows":
        every = rows.rows(order)
        return Split(every, every, queries)
    first, second = order[: len(order) // 2], order[len(order) // 2 :]
    if training == "half":
        return Split(rows.rows(first), rows.rows(second), queries)
    if training in FEW:
        return Split(rows.rows(first[_place_in_class(rows.y[first]) < FEW[training]]), rows.rows(second), queries)
    classes = rng.permutation(np.unique(rows.y))
    unseen = classes[int(0.75 * len(classes)) :]
    new = np.isin(rows.y[first], unseen)
    base = rows.rows(np.concatenate([second, first[new]]))
    masks = np.isin(base.y, unseen), np.isin(queries.y, unseen)
    return Split(rows.rows(first[~new]), base, queries, {"unseen classes": masks})


def tuning_rows(rows: Part, queries: Part | None, training: str, trials: int) -> Part:
    """The training rows of the first trial that are no query in any of the trials."""
    n = len(rows.X)
    some = split(Part(np.arange(n), rows.y), queries, training, 0).train.X
    if queries is None:
        asked = [np.random.default_rng(trial).permutation(n)[:QUERIES] for trial in range(trials)]
        some = np.setdiff1d(some, np.concatenate(asked))
    return rows.rows(some)


def _place_in_class(y: NDArray[Any]) -> NDArray[np.int64]:
    """For each row, how many rows before it have its class."""
    order = np.argsort(y, kind="stable")
    _, starts, sizes = np.unique(y[order], return_index=True, return_counts=True)
    places = np.empty(len(y), np.int64)
    places[order] = np.arange(len(y)) - np.repeat(starts, sizes)
    return places
