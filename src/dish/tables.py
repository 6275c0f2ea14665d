"""Reading the files people have: .npy (memory-mapped), .npz, .parquet and .csv → arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SUFFIXES = (".npy", ".npz", ".parquet", ".csv")


class InputError(ValueError):
    """A file that cannot be read as rows or labels; the message says which and why."""


def read_rows(path: Path) -> NDArray[Any]:
    """Rows X (n, d) of numbers from a file."""
    X = _read(path, prefer=("X", "x", "features", "embeddings"))
    if X.dtype.kind not in "fiub":
        raise InputError(f"{path}: rows must be numbers, found {X.dtype}")
    if X.ndim != 2:
        raise InputError(f"{path}: rows must be a matrix (n, d), found shape {X.shape}")
    return X


def read_labels(path: Path) -> NDArray[Any]:
    """Labels from a file: (n,) classes of any type, or (n, l) of 0/1."""
    y = _read(path, prefer=("y", "Y", "labels", "label"))
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim not in (1, 2):
        raise InputError(f"{path}: labels must be (n,) or (n, l), found shape {y.shape}")
    return y


def _read(path: Path, prefer: tuple[str, ...]) -> NDArray[Any]:
    if not path.exists():
        raise InputError(f"{path}: no such file")
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path}: unknown kind of file; {', '.join(SUFFIXES)} can be read")
    try:
        if path.suffix == ".npy":
            return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
        if path.suffix == ".npz":
            return _from_npz(path, prefer)
        return _from_parquet(path) if path.suffix == ".parquet" else _from_csv(path)
    except InputError:
        raise
    except (OSError, ValueError, EOFError) as error:
        reason = "it holds Python objects" if "allow_pickle" in str(error) else error
        raise InputError(f"{path}: cannot be read as {path.suffix} ({reason})") from None


def _from_npz(path: Path, prefer: tuple[str, ...]) -> NDArray[Any]:
    with np.load(path, allow_pickle=False) as archive:
        names = list(archive)
        chosen = next((name for name in prefer if name in names), names[0] if len(names) == 1 else None)
        if chosen is None:
            raise InputError(f"{path}: holds {', '.join(names)}; name the wanted array one of {', '.join(prefer)}")
        return np.asarray(archive[chosen])


def _from_parquet(path: Path) -> NDArray[Any]:
    """One column is a vector of values; several are a matrix; one column of lists is a matrix too."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise InputError(f"{path}: reading parquet needs pyarrow (pip install 'dish[parquet]')") from None
    try:
        table = pq.read_table(path)
    except pa.ArrowInvalid as error:
        raise InputError(f"{path}: cannot be read as .parquet ({error})") from None
    columns = [table.column(name).combine_chunks() for name in table.column_names]
    if len(columns) == 1:
        column = columns[0]
        if pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type):
            return np.stack([np.asarray(row) for row in column.to_numpy(zero_copy_only=False)])
        return np.asarray(column.to_numpy(zero_copy_only=False))
    return np.column_stack([c.to_numpy(zero_copy_only=False) for c in columns])


def _from_csv(path: Path) -> NDArray[Any]:
    """Comma-separated values; a first line that is not numbers while the second is, is a header."""
    with path.open(encoding="utf-8") as file:
        head = [line.strip().split(",") for line in (file.readline(), file.readline()) if line.strip()]
    if not head:
        raise InputError(f"{path}: is empty")
    numbers = [all(_is_number(v) for v in line) for line in head]
    skip = 1 if len(head) == 2 and numbers == [False, True] else 0
    if all(numbers[skip:]):
        return np.loadtxt(path, delimiter=",", skiprows=skip, ndmin=2, dtype=np.float64)
    return np.loadtxt(path, delimiter=",", ndmin=2, dtype=str, encoding="utf-8")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
