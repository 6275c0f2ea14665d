"""Reading the files people have: .npy (memory-mapped), .npz, .parquet and .csv → arrays.

No file is trusted: pickled objects are never loaded, and damage is an error that names the file.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

StrPath = str | os.PathLike[str]

SUFFIXES = (".npy", ".npz", ".parquet", ".csv")


class DataFileError(ValueError):
    """A data file that is missing a part, is damaged, or is not what its name says."""


# --- Rows and labels, from a file of any kind -------------------------------------------------------------


def read_rows(path: Path) -> NDArray[Any]:
    """Rows X (n, d) of numbers from a file."""
    X = _read(path, prefer=("X", "x", "features", "embeddings"))
    if X.dtype.kind not in "fiub":
        raise DataFileError(f"{path}: rows must be numbers, found {X.dtype}")
    if X.ndim != 2:
        raise DataFileError(f"{path}: rows must be a matrix (n, d), found shape {X.shape}")
    return X


def read_labels(path: Path) -> NDArray[Any]:
    """Labels from a file: (n,) classes of any type, or (n, l) of 0/1."""
    y = _read(path, prefer=("y", "Y", "labels", "label"))
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim not in (1, 2):
        raise DataFileError(f"{path}: labels must be (n,) or (n, l), found shape {y.shape}")
    return y


def _read(path: Path, prefer: tuple[str, ...]) -> NDArray[Any]:
    if not path.exists():
        raise DataFileError(f"{path}: no such file")
    if path.suffix == ".npy":
        return np.asarray(read_npy(path, mmap_mode="r"))
    if path.suffix == ".npz":
        return _choose_from_npz(path, prefer)
    if path.suffix == ".csv":
        return _read_csv(path)
    if path.suffix == ".parquet":
        try:
            return read_parquet(path)
        except ImportError as error:
            raise DataFileError(f"{path}: {error}") from None
    raise DataFileError(f"{path}: unknown kind of file; {', '.join(SUFFIXES)} can be read")


def _choose_from_npz(path: Path, prefer: tuple[str, ...]) -> NDArray[Any]:
    with open_npz(path) as archive:
        names = archive.files
        chosen = next((name for name in prefer if name in names), names[0] if len(names) == 1 else None)
        if chosen is None:
            raise DataFileError(f"{path}: holds {', '.join(names)}; name the wanted array one of {', '.join(prefer)}")
        return np.asarray(archive[chosen])


# --- One kind of file each --------------------------------------------------------------------------------


@contextmanager
def _reading(path: StrPath, kind: str, also: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turns what goes wrong inside into errors that name the file."""
    damage: tuple[type[Exception], ...]
    damage = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, *also)
    try:
        yield
    except DataFileError:
        raise
    except FileNotFoundError:
        raise FileNotFoundError(f"no file at {path}") from None
    except damage as error:
        reason = "it holds no array, or one of Python objects" if "allow_pickle" in str(error) else error
        raise DataFileError(f"{path} is not a {kind}, or is damaged ({reason})") from None


def read_npy(path: StrPath, mmap_mode: Any = None) -> NDArray[Any]:
    """The array of a .npy file without pickled objects."""
    with _reading(path, ".npy file of numbers"):
        array = np.load(path, mmap_mode=mmap_mode, allow_pickle=False)
        if not isinstance(array, np.ndarray):
            array.close()
            raise ValueError("it is an archive of arrays")
        return array


@contextmanager
def open_npz(path: StrPath) -> Iterator[NpzFile]:
    """The arrays of a .npz file by name, each read when asked for; none with pickled objects."""
    with _reading(path, ".npz file of numbers"):
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, NpzFile):
            raise ValueError("it is a single array")
        with archive:
            yield archive


def parquet_layout(path: StrPath) -> tuple[list[str], int]:
    """Names of the columns and number of the rows of a .parquet file, from its end: no row is read."""
    pa, pq = _pyarrow()
    with _reading(path, "parquet file", (pa.ArrowException,)):
        return pq.read_schema(path).names, pq.read_metadata(path).num_rows


def read_parquet(path: StrPath, columns: list[str] | None = None, head: int | None = None) -> NDArray[Any]:
    """All columns of a .parquet file, or some: one of values is (n,), several, or one of lists, (n, d).

    ``head`` reads that many rows only.
    """
    pa, pq = _pyarrow()
    with _reading(path, "parquet file", (pa.ArrowException, StopIteration)):
        if head is None:
            table = pq.read_table(path, columns=columns)
        else:
            with pq.ParquetFile(path) as file:
                table = pa.Table.from_batches([next(file.iter_batches(head, columns=columns))])
        values = {name: table[name].combine_chunks() for name in table.column_names}
        if len(values) > 1:
            return np.column_stack([value.to_numpy(zero_copy_only=False) for value in values.values()])
        for name, value in values.items():
            if pa.types.is_nested(value.type):
                return _matrix_of_lists(path, name, value)
            return np.asarray(value.to_numpy(zero_copy_only=False))
        raise DataFileError(f"{path} has no columns")


def _matrix_of_lists(path: StrPath, name: str, lists: Any) -> NDArray[Any]:
    import pyarrow.compute

    widths = pyarrow.compute.list_value_length(lists).unique().to_pylist()
    if len(widths) != 1 or lists.null_count:
        raise DataFileError(f"{path}: the lists in column {name!r} differ in length")
    return np.asarray(lists.flatten().to_numpy(zero_copy_only=False)).reshape(len(lists), widths[0])


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ImportError("reading .parquet files needs pyarrow: pip install 'dish[parquet]'") from None
    return pyarrow, pyarrow.parquet


def _read_csv(path: Path) -> NDArray[Any]:
    """Comma-separated values; a first line that is not numbers while the second is, is a header."""
    with _reading(path, "table of comma-separated values"):
        with path.open(encoding="utf-8-sig") as file:
            head = [line.strip().split(",") for line in (file.readline(), file.readline()) if line.strip()]
        if not head:
            raise DataFileError(f"{path}: is empty")
        if any(not value.strip() for line in head for value in line):
            raise DataFileError(f"{path}: has an empty field in its first lines")
        numbers = [all(_is_number(v) for v in line) for line in head]
        skip = 1 if len(head) == 2 and numbers == [False, True] else 0
        if all(numbers[skip:]):
            return np.loadtxt(
                path, delimiter=",", skiprows=skip, ndmin=2, dtype=np.float64, comments=None, encoding="utf-8-sig"
            )
        return np.loadtxt(path, delimiter=",", ndmin=2, dtype=str, comments=None, encoding="utf-8-sig")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
