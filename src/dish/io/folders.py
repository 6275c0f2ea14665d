"""A folder of shards as one matrix: which files, in which order, all of them there, and alike.

Shards are .npy, .npz or .parquet files. Only their heads are looked at here; rows are read when they are asked for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.errors import DataFileError
from dish.io import parquet
from dish.io.columns import Columns
from dish.io.shards import Shards
from dish.io.tables import array_name, check_matrix, labels_beside, open_npz, read_npy

KINDS = (".npy", ".npz", ".parquet")


def has_shards(folder: Path) -> bool:
    """Whether a folder holds files that can be shards."""
    return any(_files(folder, kind) for kind in KINDS)


def read_shards(folder: Path, columns: Columns) -> tuple[Shards, Any]:
    """The rows of all shards as one matrix, and their labels, or None."""
    found = {kind: files for kind in KINDS if (files := _files(folder, kind))}
    if len(found) != 1:
        kinds = " and ".join(found) or "none"
        raise DataFileError(f"{folder} must hold shards of one kind, .npy, .npz or .parquet files; found {kinds}")
    ((kind, files),) = found.items()
    _check_numbers([file.name for file in files], folder)
    if kind == ".npy":
        return _npy_shards(folder, files)
    return _npz_shards(files) if kind == ".npz" else _parquet_shards(files, columns)


def _files(folder: Path, kind: str) -> list[Path]:
    return sorted(folder.glob(f"*{kind}"), key=_by_number)


def _by_number(file: Path) -> list[Any]:
    """Names in the order people count in: part-2 before part-10."""
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.split(r"(\d+)", file.name)]


def _check_numbers(names: list[str], folder: Path) -> None:
    """Shards that are numbered must be all there: part-00000, part-00001, …; or part-3-of-8."""
    series: dict[tuple[str, str], dict[int, str]] = {}
    for name in names:
        if found := re.fullmatch(r"(.*?)(\d+)(?:-of-(\d+))?(\D*)", name):
            series.setdefault((found[1], found[3] or ""), {})[int(found[2])] = name
    for (prefix, of), have in series.items():
        first = min(have)
        if not of and first > 1 and not re.search(rf"0{first}", have[first]):
            continue  # years, sizes: no count from a beginning
        wanted = range(first if first <= 1 else 0, first + int(of)) if of else range(first, max(have) + 1)
        missing = [i for i in wanted if i not in have]
        if missing and (of or len(have) > 1):
            after = f"-of-{of}" if of else ""
            raise DataFileError(
                f"{folder}: shard {prefix}{missing[0]:0{_digits(have)}d}{after} is missing"
                + (f", and {len(missing) - 1} more" if len(missing) > 1 else "")
            )


def _digits(have: dict[int, str]) -> int:
    """How many digits the numbers of a series are written with, 1 if they are not padded."""
    number, name = next(iter(have.items()))
    found = re.search(rf"0*{number}", name)
    return len(found[0]) if found else 1


# --- What is known of a shard from its head: there may be more of them than a process may hold open ------


@dataclass(frozen=True)
class _Shard:
    """A file of rows, of this shape and type once ``rows`` is called."""

    file: Path
    shape: tuple[int, ...]
    dtype: Any
    rows: Any


def _as_one(shards: list[_Shard]) -> Shards:
    for shard in shards:
        check_matrix(shard.file, shard)
        if shard.shape[1] != shards[0].shape[1]:
            raise DataFileError(
                f"{shard.file} has {shard.shape[1]} features, but {shards[0].file} has {shards[0].shape[1]}"
            )
    dtype = np.result_type(*(shard.dtype for shard in shards))
    lengths, names = [shard.shape[0] for shard in shards], [str(shard.file) for shard in shards]
    return Shards([shard.rows for shard in shards], lengths, shards[0].shape[1], dtype, names)


def _check_some_rows(file: Path, rows: NDArray[Any]) -> None:
    """Damage that fills a shard is found in any row of it, before a pass over all of them is under way."""
    if rows.dtype.kind == "f" and not np.isfinite(rows).all():
        raise DataFileError(f"{file} contains NaN or infinity")


def _join_labels(folder: Path, labels: list[Any], n_files: int) -> Any:
    """The labels of all shards; None if no shard has any."""
    if not labels:
        return None
    if len(labels) != n_files:
        raise DataFileError(f"{folder}: only {len(labels)} of {n_files} shards hold labels")
    if len({(y.ndim, *y.shape[1:]) for y in labels}) > 1:
        raise DataFileError(f"{folder}: its labels differ in shape from shard to shard")
    if len({y.dtype.kind in "OUS" for y in labels}) > 1:
        raise DataFileError(f"{folder}: its labels are text in some shards and numbers in others")
    return np.concatenate(labels)


# --- One kind of shard each -------------------------------------------------------------------------------


def _npy_shards(folder: Path, files: list[Path]) -> tuple[Shards, Any]:
    label_files = [f for f in files if re.match(r"(y|labels?)($|[-_.\d])", f.stem) or f.stem.endswith("_labels")]
    shards = [_npy_shard(file) for file in files if file not in label_files]
    if not shards:
        raise DataFileError(f"{folder} holds labels (y*.npy, labels*.npy, *_labels.npy) but no features")
    X, labels = _as_one(shards), [read_npy(file) for file in label_files]
    if 1 < len(labels) != len(shards):
        raise DataFileError(f"{folder} has {len(shards)} files of features, but {len(labels)} of labels")
    if len(labels) == len(shards):
        for shard, file, y in zip(shards, label_files, labels, strict=True):
            if shard.shape[0] != len(y):
                raise DataFileError(f"{shard.file} has {shard.shape[0]:,} rows, but {file} has {len(y):,} labels")
    return X, _join_labels(folder, labels, len(labels))


def _npy_shard(file: Path) -> _Shard:
    rows = read_npy(file, mmap_mode="r")
    if rows.ndim == 2 and len(rows):
        _check_some_rows(file, rows[[0, len(rows) // 2, len(rows) - 1]])
    return _Shard(file, rows.shape, rows.dtype, partial(read_npy, file, "r"))


def _npz_shards(files: list[Path]) -> tuple[Shards, Any]:
    shards, labels = [], []
    for file in files:
        with open_npz(file) as archive:
            name = array_name(file, archive)
            shards.append(_Shard(file, *_shape_in(archive, name), partial(_npz_rows, file, name)))
            y = labels_beside(archive)
        if y is not None:
            if y.shape[:1] != shards[-1].shape[:1]:
                raise DataFileError(f"{file} has {shards[-1].shape[0]:,} rows, but labels of shape {y.shape}")
            labels.append(y)
    return _as_one(shards), _join_labels(files[0].parent, labels, len(files))


def _shape_in(archive: Any, name: str) -> tuple[tuple[int, ...], Any]:
    """Shape and type of an array of an archive, from its head."""
    with archive.zip.open(f"{name}.npy") as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    return shape, dtype


def _npz_rows(file: Path, name: str) -> NDArray[Any]:
    with open_npz(file) as archive:
        return np.asarray(archive[name])


def _parquet_shards(files: list[Path], columns: Columns) -> tuple[Shards, Any]:
    layouts = {file: parquet.layout(file) for file in files}
    labels = [
        parquet.label_column(file, name)
        for file, (types, _) in layouts.items()
        if (name := columns.labels_in(file, list(types))) is not None
    ]
    y = _join_labels(files[0].parent, labels, len(files))
    full = [file for file, (_, n) in layouts.items() if n]
    if not full:
        raise DataFileError(f"{files[0].parent}: all shards are empty")
    names = parquet.feature_columns(full[0], columns)
    shards = []
    for file in full:
        head = _parquet_rows(file, names, columns, head=16)
        check_matrix(file, head)
        _check_some_rows(file, head)
        dtype = np.result_type(np.float32, head.dtype)  # whole numbers may have gaps: NaN
        shape = (layouts[file][1], head.shape[1])
        shards.append(_Shard(file, shape, dtype, partial(_parquet_rows, file, names, columns)))
    return _as_one(shards), y


def _parquet_rows(file: Path, names: list[str], columns: Columns, head: int | None = None) -> NDArray[Any]:
    """Feature columns of a file, in the order of the first shard's."""
    here = parquet.feature_columns(file, columns)
    if len(here) == len(names) and set(here) != set(names):
        raise DataFileError(f"{file} has other columns than the first shard: {sorted(set(here) ^ set(names))[:4]}")
    rows = parquet.matrix(file, names if set(here) == set(names) else here, head)
    return rows[:, None] if rows.ndim == 1 else rows
