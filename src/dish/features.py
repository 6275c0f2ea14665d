"""One's own features: an array file or a folder of shards, read when rows are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.labelled import Dataset
from dish.tables import DataFileError, StrPath, open_npz, parquet_layout, read_npy, read_parquet

PARQUET_LABELS = ("y", "label")  # columns of a shard that are not features


class Shards:
    """Rows that lie in several files, seen as one matrix (n, d). Rows are read when they are asked for."""

    def __init__(self, parts: list[Callable[[], NDArray[Any]]], lengths: list[int], n_features: int, dtype: Any):
        self._parts = parts
        self._starts = np.concatenate([[0], np.cumsum(lengths)])
        self._open: tuple[int, NDArray[Any]] | None = None
        self.shape = (int(self._starts[-1]), n_features)
        self.dtype = np.dtype(dtype)
        self.ndim = 2

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: Any) -> NDArray[Any]:
        index = np.arange(len(self))[which]  # also gives slices, masks and errors their usual meaning
        flat = np.atleast_1d(index)
        rows = np.empty((len(flat), self.shape[1]), self.dtype)
        shard = np.searchsorted(self._starts, flat, side="right") - 1
        for s in np.unique(shard):
            here = shard == s
            rows[here] = self._part(int(s))[flat[here] - self._starts[s]]
        return rows if np.ndim(index) else rows[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:].astype(dtype or self.dtype, copy=False)

    def blocks(self, rows: int = 8192) -> Iterator[NDArray[Any]]:
        """All rows in order, a block at a time."""
        for start in range(0, len(self), rows):
            yield self[start : start + rows]

    def _part(self, s: int) -> NDArray[Any]:
        if self._open is None or self._open[0] != s:
            self._open = (s, self._parts[s]())
        return self._open[1]


def load_features(path: StrPath, labels: StrPath | None = None, queries: int = 100) -> Dataset:
    """Your own features: a .npy file (memory-mapped), a .npz with X and y (or Y), or a folder of shards.

    A folder holds .npy shards (features ``*.npy``, labels in ``y*.npy`` or ``*_labels.npy``, in the same
    order of names) or .parquet shards (a list column or one column a feature; labels in ``y`` or
    ``label``). ``labels`` names a .npy file with the labels of all rows; beside ``name.npy`` the file
    ``name_labels.npy`` is taken if it is there.
    """
    path = Path(path)
    X: Any
    y: NDArray[Any] | None
    if not path.exists():
        raise FileNotFoundError(f"no features at {path}")
    if path.is_dir():
        X, y = _read_shards(path)
    elif path.suffix == ".npz":
        X, y = _read_npz(path)
    elif path.suffix == ".npy":
        X, y = read_npy(path, mmap_mode="r"), None
        beside = path.with_name(f"{path.stem}_labels.npy")
        if beside.exists():
            y = read_npy(beside)
    else:
        raise ValueError(f"path must be a .npy or .npz file or a folder of .npy or .parquet shards, got {path}")
    if labels is not None:
        y = read_npy(labels)
    _check_matrix(path, X)
    if y is not None and (y.ndim not in (1, 2) or len(y) != X.shape[0]):
        raise DataFileError(f"{path} has {X.shape[0]:,} rows, but its labels are of shape {y.shape}")
    return Dataset(path.stem, X, y, queries=queries)


def _check_matrix(path: Path, X: Any) -> None:
    if len(X.shape) != 2 or X.dtype.kind not in "fiub" or 0 in X.shape:
        raise DataFileError(f"{path} must hold a matrix of numbers (n, d), got {X.dtype} of shape {X.shape}")


def _read_npz(path: Path) -> tuple[NDArray[Any], NDArray[Any] | None]:
    with open_npz(path) as archive:
        if "X" not in archive:
            raise DataFileError(f"{path} holds no X, only {', '.join(archive.files) or 'nothing'}")
        return archive["X"], next((archive[name] for name in ("y", "Y") if name in archive), None)


def _read_shards(folder: Path) -> tuple[Shards, NDArray[Any] | None]:
    arrays, tables = sorted(folder.glob("*.npy")), sorted(folder.glob("*.parquet"))
    if bool(arrays) == bool(tables):
        raise DataFileError(
            f"{folder} must hold either .npy or .parquet shards, found {'both' if arrays else 'none'}"
        )
    return _npy_shards(folder, arrays) if arrays else _parquet_shards(tables)


def _npy_shards(folder: Path, files: list[Path]) -> tuple[Shards, NDArray[Any] | None]:
    label_files = [f for f in files if f.stem.startswith("y") or f.stem.endswith("_labels")]
    parts = {f: read_npy(f, mmap_mode="r") for f in files if f not in label_files}
    if not parts:
        raise DataFileError(f"{folder} holds labels but no features")
    for file, part in parts.items():
        _check_matrix(file, part)
    _check_widths({file: part.shape[1] for file, part in parts.items()})
    arrays = list(parts.values())
    dtype = np.result_type(*(a.dtype for a in arrays))
    X = Shards([lambda a=a: a for a in arrays], [len(a) for a in arrays], arrays[0].shape[1], dtype)  # type: ignore[misc]
    return X, np.concatenate([read_npy(f) for f in label_files]) if label_files else None


def _parquet_shards(files: list[Path]) -> tuple[Shards, NDArray[Any] | None]:
    lengths, labels = [], []
    for file in files:
        names, n = parquet_layout(file)
        lengths.append(n)
        name = next((name for name in PARQUET_LABELS if name in names), None)
        if name is not None:
            labels.append(read_parquet(file, [name]))
    if labels and len(labels) != len(files):
        raise DataFileError(f"{files[0].parent}: only {len(labels)} of {len(files)} shards hold labels")
    first = _parquet_rows(files[0])
    _check_matrix(files[0], first)

    def checked(file: Path) -> NDArray[Any]:
        part = _parquet_rows(file)
        _check_widths({files[0]: first.shape[1], file: part.shape[1]})
        return part

    X = Shards([lambda f=f: checked(f) for f in files], lengths, first.shape[1], first.dtype)  # type: ignore[misc]
    return X, np.concatenate(labels) if labels else None


def _parquet_rows(file: Path) -> NDArray[Any]:
    columns = [name for name in parquet_layout(file)[0] if name not in PARQUET_LABELS]
    if not columns:
        raise DataFileError(f"{file} holds labels but no features")
    rows = read_parquet(file, columns)
    return rows[:, None] if rows.ndim == 1 else rows


def _check_widths(widths: dict[Path, int]) -> None:
    first, width = next(iter(widths.items()))
    for file, other in widths.items():
        if other != width:
            raise DataFileError(f"{file} has {other} features, but {first} has {width}")
