"""Labelled rows, and their split into queries, database and training rows."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dish.checks import check_integer
from dish.errors import DataFileError, InputError
from dish.io.gaps import LABEL, VECTOR, describe, refuse, take_rows, without_labels, without_vector
from dish.io.readers import ColumnNames, StrPath, own_ids, read_features, read_labels
from dish.io.rows import blocks_of, check_finite, is_map, release
from dish.labels import encode_classes, label_matrix, plain_labels

Indices = NDArray[np.int64]
BLOCK_VALUES = 1 << 24  # of a block of rows, when a mean is computed
ROLES = ("train", "train-only", "database", "query")  # "train" rows are also in the database


@dataclass(frozen=True)
class Split:
    """Row indices of one trial. Queries are in no other part; drawn training rows are also in the database."""

    train: Indices
    query: Indices
    database: Indices


@dataclass(frozen=True)
class Dataset:
    """Labelled rows, with the paper's split.

    ``X`` is (n, d) features (array, memory map, CSR or shards) or (n, H, W, 3) images. ``y`` is (n,) classes, (n, l)
    labels of 0 and 1, or None if there are no labels. ``synthetic`` is True for every stand-in.
    """

    name: str
    X: Any
    y: Any
    queries: int = 100  # number of queries per class or label
    synthetic: bool = False
    label_names: tuple[str, ...] = ()
    ids: NDArray[np.str_] | None = field(default=None, repr=False)
    roles: NDArray[np.str_] | None = field(default=None, repr=False)  # the user's split: one of ROLES per row
    mean: NDArray[np.float32] | None = field(default=None, repr=False)  # (d,), which ``rows`` subtracts
    _means: dict[int, NDArray[np.float32]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def rows(self, which: Any = slice(None)) -> NDArray[Any]:
        """Return some or all rows of X minus ``mean``, dense and in memory."""
        rows = self.X[which]
        rows = rows.toarray() if hasattr(rows, "toarray") else np.asarray(rows)
        if self.mean is not None:
            rows = np.subtract(rows, self.mean, dtype=np.float32)
        if is_map(self.X):
            release(self.X)
        return rows

    def centred(self, trial: int = 0) -> Dataset:
        """Return the same rows minus the mean of all training rows of a trial, which is computed block by block."""
        if trial not in self._means:
            train, total = self.split(trial).train, np.zeros(self.X.shape[1])
            size = max(1, BLOCK_VALUES // len(total))
            for start in range(0, len(train), size):
                total += self.rows(train[start : start + size]).sum(axis=0, dtype=np.float64)
            self._means[trial] = (total / len(train)).astype(np.float32)
        return replace(self, mean=self._means[trial])

    def split(self, trial: int = 0, n_train: int | None = None) -> Split:
        """Return queries, database and training rows of one trial; a trial gives the same split on every machine.

        ``n_train=None`` trains on the whole database; an integer draws that many of its rows, equally from every
        class (multilabel rows: from all). With ``roles``, only the drawn training rows depend on the trial.
        """
        if self.roles is not None:
            return split_by_roles(self.roles, n_train, trial, self.y)
        if self.y is None:
            raise InputError(
                f"{self.name} has no labels to split by: give a file of labels (labels=, --labels), or store them "
                "with the rows (y in a .npz, a column y or label, name_labels.npy)"
            )
        return make_split(self.y, self.queries, n_train, trial)


def load_features(
    path: StrPath,
    labels: StrPath | None = None,
    queries: int = 100,
    split: StrPath | None = None,
    columns: ColumnNames | None = None,
) -> Dataset:
    """Read your own features: a .npy (memory-mapped), .npz, .parquet or .csv file, or a folder of shards.

    ``labels`` is a file of labels in any of these formats (see ``io.readers.read_features``). ``split`` is a file
    with one of ``ROLES`` per row; without it queries are drawn at random. ``columns.gaps`` leaves out rows without a
    complete vector or without a label, with a warning that counts them; otherwise they are an error.
    """
    path, columns = Path(path), columns or ColumnNames()
    X, y = read_features(path, labels, columns)
    roles = None if split is None else _read_roles(Path(split), X.shape[0], columns)
    X, y, roles = _complete_rows(path, X, y, roles, columns)
    start = 0
    for block in blocks_of(X):
        check_finite(block, start, X)
        start += len(block)
    if y is not None:
        (y,) = plain_labels(y)
        label_matrix(y) if y.ndim == 2 else encode_classes(y)  # refuse labels that no method can learn
    return Dataset(path.stem, X, y, queries=queries, roles=roles)


def _complete_rows(path: Path, X: Any, y: Any, roles: Any, columns: ColumnNames) -> tuple[Any, Any, Any]:
    """The rows with a complete vector and a label, their labels and roles. Raises DataFileError without the flag."""
    found = {VECTOR: without_vector(X)} | ({} if y is None else {LABEL: without_labels(y)})
    missing = np.logical_or.reduce(list(found.values()))
    if not missing.any():
        return X, y, roles
    for what, mask in found.items():
        if mask.any() and not columns.gaps:
            raise refuse(path, what, mask, own_ids(path, columns))
        if mask.any():
            warnings.warn(f"{describe(path, what, mask, own_ids(path, columns))} are left out", stacklevel=3)
    kept = np.flatnonzero(~missing)
    if not len(kept):
        raise DataFileError(f"{path}: no row has both a complete vector and a label")
    return take_rows(X, kept), *(None if one is None else one[kept] for one in (y, roles))


def _read_roles(path: Path, n: int, columns: ColumnNames | None) -> NDArray[np.str_]:
    roles = np.asarray(read_labels(path, ColumnNames(header=columns.header if columns else None)))
    if roles.shape != (n,):
        raise InputError(f"split {path} must hold one role per row, {n} in all; got {roles.shape[0]}")
    roles = roles.astype(str)
    unknown = sorted(set(roles.tolist()) - set(ROLES))
    if unknown:
        raise InputError(f"split {path} must hold {', '.join(ROLES)}; got {', '.join(unknown[:5])}")
    return roles


def split_by_roles(roles: NDArray[np.str_], n_train: int | None = None, trial: int = 0, y: Any = None) -> Split:
    """Return the split that ``roles`` describes.

    ``n_train`` draws some of its training rows, per trial; with classes ``y`` (n,), equally from every class.
    """
    train, query = np.flatnonzero(np.isin(roles, ("train", "train-only"))), np.flatnonzero(roles == "query")
    database = np.flatnonzero(np.isin(roles, ("train", "database")))
    for name, rows in (("train", train), ("query", query), ("train or database", database)):
        if not len(rows):
            raise InputError(f"split has no rows with the role {name}")
    if n_train is not None:
        if n_train > len(train):
            raise InputError(f"n_train must be at most the {len(train)} training rows of the split, got {n_train}")
        rng = np.random.default_rng(trial)
        place = rng.permutation(len(train)).astype(float)
        if y is not None and not _is_multilabel(y):
            code, _ = encode_classes(y[train])
            place = _places(code, rng) + rng.random(len(train))
        train = np.sort(train[np.argsort(place)[:n_train]])
    return Split(train, query, database)


def make_split(y: Any, queries: int = 100, n_train: int | None = None, trial: int = 0) -> Split:
    """Draw ``queries`` rows per class or label; the other rows are the database (see ``Dataset.split``)."""
    queries = check_integer("queries", queries, low=1)
    trial = check_integer("trial", trial, low=0)
    if n_train is not None:
        n_train = check_integer("n_train", n_train, low=1)
    rng = np.random.default_rng(trial)
    return (_split_labels if _is_multilabel(y) else _split_classes)(y, queries, n_train, rng)


def _is_multilabel(y: Any) -> bool:
    return bool(sp.issparse(y) or np.ndim(y) == 2)


def _places(code: NDArray[Any], rng: np.random.Generator) -> Indices:
    """Return the place of each row within its class, in random order."""
    sizes = np.bincount(code)
    order = rng.permutation(len(code))
    order = order[np.argsort(code[order], kind="stable")]  # sorted by class, shuffled within each
    place = np.empty(len(code), np.int64)
    place[order] = np.arange(len(code)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return place


def _split_classes(y: Any, queries: int, n_train: int | None, rng: np.random.Generator) -> Split:
    code, classes = encode_classes(y)
    sizes, place = np.bincount(code), _places(code, rng)
    share = np.zeros(len(classes), np.int64)
    if n_train is not None:
        share[:] = n_train // len(classes)
        share[: n_train % len(classes)] += 1
    _check_sizes(sizes, queries + np.maximum(share, 1), classes, queries)
    query = place < queries
    train = ~query if n_train is None else ~query & (place < queries + share[code])
    return Split(np.flatnonzero(train), np.flatnonzero(query), np.flatnonzero(~query))


def _split_labels(y: Any, queries: int, n_train: int | None, rng: np.random.Generator) -> Split:
    Y = sp.csc_array(y, copy=True)
    Y.eliminate_zeros()
    query = np.zeros(Y.shape[0], bool)
    sizes = np.diff(Y.indptr)
    for label in np.argsort(sizes, kind="stable"):  # the rarest first, while its rows are still free
        rows = Y.indices[Y.indptr[label] : Y.indptr[label + 1]]
        free = rows[~query[rows]]
        if len(free) < queries:
            raise InputError(
                f"label {label} needs {queries} query rows, but only {len(free)} of its rows are still free"
            )
        query[rng.choice(free, queries, replace=False)] = True
    database = np.flatnonzero(~query)
    train = database
    if n_train is not None:
        if n_train > len(database):
            raise InputError(f"n_train must be at most the {len(database)} database rows, got {n_train}")
        train = np.sort(rng.choice(database, n_train, replace=False))
    return Split(train, np.flatnonzero(query), database)


def _check_sizes(sizes: Indices, needed: Indices, classes: NDArray[Any], queries: int) -> None:
    short = np.flatnonzero(sizes < needed)
    if len(short):
        c = short[0]
        raise InputError(
            f"class {classes[c]!s} has {sizes[c]} rows, but {queries} queries and {needed[c] - queries} training "
            f"rows per class need {needed[c]}"
        )
