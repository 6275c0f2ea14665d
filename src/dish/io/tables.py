"""Reading the files people have: .npy (memory-mapped), .npz, .parquet and .csv → arrays.

No file is trusted: pickled objects are never loaded, and damage is an error that names the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from dish.errors import DataFileError, InputError
from dish.io import csvfile, parquet
from dish.io.columns import Columns
from dish.io.errors import StrPath, reading

SUFFIXES = (".npy", ".npz", ".parquet", ".csv")
ROWS_IN_NPZ = ("X", "x", "features", "embeddings")
LABELS_IN_NPZ = ("y", "Y", "labels", "label")


def read_rows(path: Path, columns: Columns | None = None) -> NDArray[Any]:
    """Rows X (n, d) of numbers from a file."""
    X = _read(path, columns or Columns(), labels=False)
    if X.dtype.kind not in "fiub":
        raise DataFileError(f"{path}: rows must be numbers, found {X.dtype}")
    if X.ndim != 2:
        raise DataFileError(f"{path}: rows must be a matrix (n, d), found shape {X.shape}")
    return X


def read_labels(path: Path, columns: Columns | None = None) -> Any:
    """Labels from a file: (n,) classes of any type, (n, l) of 0 and 1, or (n,) lists of tags."""
    y = _read(path, columns or Columns(), labels=True)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim not in (1, 2):
        raise DataFileError(f"{path}: labels must be (n,) or (n, l), found shape {y.shape}")
    return y


def as_saved(path: StrPath, name: str, column: Any) -> NDArray[Any]:
    """A column as an array that a .npy file can hold: no Python objects, no gaps, no lists."""
    values = np.asarray(column)
    if values.dtype.kind == "O" and all(isinstance(value, str) for value in values):
        values = values.astype(str)
    if values.dtype.kind == "O":
        raise DataFileError(
            f"{path}: column {name!r} has gaps, lists or values of several kinds, which a .npy file cannot hold; "
            "name the table itself where ids or labels are asked for"
        )
    return values


def check_matrix(path: StrPath, X: Any) -> None:
    """Refuse what is not a matrix of numbers with rows and columns."""
    if len(X.shape) != 2 or X.dtype.kind not in "fiub" or 0 in X.shape:
        raise DataFileError(f"{path} must hold a matrix of numbers (n, d), got {X.dtype} of shape {X.shape}")


def _read(path: Path, columns: Columns, *, labels: bool) -> Any:
    if not path.exists():
        raise DataFileError(f"{path}: no such file")
    if path.suffix in (".csv", ".parquet"):
        table = csvfile if path.suffix == ".csv" else parquet
        return table.read_labels(path, columns) if labels else table.read_rows(path, columns)
    if path.suffix == ".npy":
        return np.asarray(read_npy(path, mmap_mode="r"))
    if path.suffix == ".npz":
        with open_npz(path) as archive:
            return np.asarray(archive[array_name(path, archive, LABELS_IN_NPZ if labels else ROWS_IN_NPZ)])
    raise DataFileError(f"{path}: unknown kind of file; {', '.join(SUFFIXES)} can be read")


def array_name(path: StrPath, archive: NpzFile, usual: tuple[str, ...] = ROWS_IN_NPZ) -> str:
    """The wanted array of an archive: the one with a usual name, or the only one there is."""
    names = archive.files
    chosen = next((name for name in usual if name in names), names[0] if len(names) == 1 else None)
    if chosen is None:
        raise DataFileError(f"{path}: holds {', '.join(names) or 'nothing'}; name the wanted array {usual[0]}")
    return chosen


def labels_beside(archive: NpzFile) -> NDArray[Any] | None:
    """The labels that an archive holds beside its rows, or None."""
    return next((archive[name] for name in LABELS_IN_NPZ if name in archive), None)


def read_npy(path: StrPath, mmap_mode: Any = None) -> NDArray[Any]:
    """The array of a .npy file without pickled objects."""
    with reading(path, ".npy file of numbers"):
        array = np.load(path, mmap_mode=mmap_mode, allow_pickle=False)
        if not isinstance(array, np.ndarray):
            array.close()
            raise InputError("it is an archive of arrays")
        return array


@contextmanager
def open_npz(path: StrPath) -> Iterator[NpzFile]:
    """The arrays of a .npz file by name, each read when asked for; none with pickled objects."""
    with reading(path, ".npz file of numbers"):
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, NpzFile):
            raise InputError("it is a single array")
        with archive:
            yield archive
