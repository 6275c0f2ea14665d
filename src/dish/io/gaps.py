"""Rows with gaps: find them, describe them, and leave them out.

A row has no vector if its list is null or empty, or if any of its values is NaN, null or an empty field of a table.
Readers return such values as NaN. Infinity is not a gap but damage, and always an error. A row has no label if
``labels.without_label`` says so; a vector of labels (n, l), if all of them are NaN. A row has no id if the id is null
or an empty field.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.errors import DataFileError
from dish.io.atomic import StrPath
from dish.io.rows import Shards, blocks_of, is_map, is_streamed, release
from dish.labels import as_array, is_missing, without_label

SHOWN = 5  # rows that a message names
FLAG = "--drop-missing"
VECTOR, LABEL, ID = "a complete vector", "a label", "an id"  # what a row may be without

Mask = NDArray[np.bool_]


def without_vector(X: Any) -> Mask:
    """A mask (n,) of the rows of X with NaN. X is read a block at a time."""
    found = np.zeros(X.shape[0], bool)
    if X.dtype.kind == "f":
        start = 0
        for block in blocks_of(X):
            found[start : start + len(block)] = np.isnan(block).any(axis=1)
            start += len(block)
    return found


def without_labels(y: Any) -> Mask:
    """A mask (n,) of the rows that have no label, or none of the labels (n, l) of a vector."""
    y = as_array(y)
    return without_label(y) if y.ndim == 1 else np.asarray(is_missing(y).all(axis=1))


def without_id(ids: Any) -> Mask:
    """A mask (n,) of the rows whose id is null, NaN or empty."""
    ids = as_array(ids)
    empty = [isinstance(one, str) and not one for one in ids.tolist()] if ids.dtype.kind in "OU" else False
    return np.asarray(is_missing(ids) | np.asarray(empty, bool))


def describe(path: StrPath, what: str, missing: Mask, ids: Any = None, columns: Sequence[str] = ()) -> str:
    """How many rows of a file are without something, and the first of them by index and id.

    ``columns`` are those with gaps.
    """
    rows = np.flatnonzero(missing)
    more = ", …" if len(rows) > SHOWN else ""
    s = "s" if len(rows) > 1 else ""
    names = ", ".join(map(str, rows[:SHOWN].tolist())) + more
    text = f"{path}: {len(rows):,} of {len(missing):,} rows without {what} (row{s} {names}, counted from 0"
    if ids is not None and len(ids) == len(missing):
        text += f"; id{s} {', '.join(map(repr, as_array(ids)[rows[:SHOWN]].tolist()))}{more}"
    if columns:
        text += f"; gaps in {', '.join(map(repr, columns[:SHOWN]))}{', …' if len(columns) > SHOWN else ''}"
    return text + ")"


def refuse(path: StrPath, what: str, missing: Mask, ids: Any = None, columns: Sequence[str] = ()) -> DataFileError:
    """The error for rows with gaps. It names the flag that leaves them out."""
    return DataFileError(f"{describe(path, what, missing, ids, columns)}: leave them out with {FLAG}, or fill them")


def check_vectors(path: StrPath, X: Any, ids: Any = None, names: Sequence[str] = ()) -> None:
    """Raise DataFileError if rows of X (n, d) have gaps; ``names`` are those of the d columns, if they have any."""
    missing = without_vector(X)
    if missing.any():
        empty = np.isnan(X[missing]).any(axis=0).tolist()
        columns = [name for name, gap in zip(names, empty, strict=True) if gap] if names else []
        raise refuse(path, VECTOR, missing, ids, columns)


@contextmanager
def counted(path: StrPath, X: Any, ids: Any = None) -> Iterator[None]:
    """Turn an error about NaN in a row of X into one about all such rows, which costs a pass over X only then."""
    try:
        yield
    except ValueError as error:
        if "NaN" not in str(error) or not (is_map(X) or isinstance(X, Shards)):
            raise
        check_vectors(path, X, ids)
        raise


def take_rows(X: Any, kept: NDArray[np.intp]) -> Any:
    """The rows of X with ascending indices; those of a memory map or of shards are read when they are needed."""
    return KeptRows(X, kept) if is_streamed(X) else X[kept]


class KeptRows(Shards):
    """Some rows of a memory map or of shards, as one matrix that need not fit into memory."""

    def __init__(self, X: Any, kept: NDArray[np.intp]) -> None:
        super().__init__([], [len(kept)], X.shape[1], X.dtype)
        self._X, self._kept = X, kept

    def __getitem__(self, which: Any) -> NDArray[Any]:
        found = np.asarray(self._X[self._kept[which]])
        if is_map(self._X):
            release(self._X)
        return found

    def where(self, row: int) -> str:
        """Which row of the file this is."""
        original = int(self._kept[row])
        file = f" of {self._X.where(original)}" if isinstance(self._X, Shards) else ""
        return f"row {original:,}{file} with the rows that were left out"
