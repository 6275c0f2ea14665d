"""One's own features: an array file or a folder of shards, read when rows are asked for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.io.shards import Shards
from dish.io.tables import DataFileError, StrPath, open_npz, parquet_layout, read_npy, read_parquet

PARQUET_LABELS = ("y", "label")  # columns of a shard that are not features


def read_features(path: StrPath, labels: StrPath | None = None) -> tuple[Any, NDArray[Any] | None]:
    """X and y (or None) of a .npy file (memory-mapped), of a .npz with X and y (or Y), or of a folder of shards.

    A folder holds .npy shards (features ``*.npy``, labels in ``y*.npy`` or ``*_labels.npy``, in the same
    order of names) or .parquet shards (a list column or one column a feature; labels in ``y`` or
    ``label``). ``labels`` names a .npy file with the labels of all rows; beside ``name.npy`` the file
    ``name_labels.npy`` is taken if it is there.
    """
    path = Path(path)
    X: Any
    y: NDArray[Any] | None
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder")
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
    return X, y


def _check_matrix(path: Path, X: Any) -> None:
    if len(X.shape) != 2 or X.dtype.kind not in "fiub" or 0 in X.shape:
        raise DataFileError(f"{path} must hold a matrix of numbers (n, d), got {X.dtype} of shape {X.shape}")


def _read_npz(path: Path) -> tuple[NDArray[Any], NDArray[Any] | None]:
    with open_npz(path) as archive:
        if "X" not in archive:
            raise DataFileError(f"{path} holds no X, only {', '.join(archive.files) or 'nothing'}")
        return archive["X"], next((archive[name] for name in ("y", "Y") if name in archive), None)


def _read_shards(folder: Path) -> tuple[Shards, NDArray[Any] | None]:
    arrays, tables = (sorted(folder.glob(f"*.{kind}"), key=_by_number) for kind in ("npy", "parquet"))
    if bool(arrays) == bool(tables):
        raise DataFileError(
            f"{folder} must hold either .npy or .parquet shards, found {'both' if arrays else 'none'}"
        )
    _check_numbers([f.name for f in arrays or tables], folder)
    return _npy_shards(folder, arrays) if arrays else _parquet_shards(tables)


def _by_number(file: Path) -> list[Any]:
    """Names in the order people count in: part-2 before part-10."""
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.split(r"(\d+)", file.name)]


def _check_numbers(names: list[str], folder: Path) -> None:
    """Shards that are numbered must be all there: part-00000, part-00001, …; or part-3-of-8."""
    series: dict[tuple[str, str], dict[int, str]] = {}
    for name in names:
        if found := re.fullmatch(r"(.*?)(\d+)(?:-of-(\d+))?(\D*)", name):
            series.setdefault(
                (
                    found[1],
                    found[3] or "",
                ),
                {},
            )[int(found[2])] = name
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


def _npy_shards(folder: Path, files: list[Path]) -> tuple[Shards, NDArray[Any] | None]:
    label_files = [f for f in files if re.match(r"(y|labels?)($|[-_.\d])", f.stem) or f.stem.endswith("_labels")]
    parts: dict[Path, Any] = {f: _peek(f) for f in files if f not in label_files}
    if not parts:
        raise DataFileError(f"{folder} holds labels (y*.npy, labels*.npy, *_labels.npy) but no features")
    for file, part in parts.items():
        _check_matrix(file, part)
    _check_widths({file: part.shape[1] for file, part in parts.items()})
    arrays = list(parts.values())
    dtype = np.result_type(*(a.dtype for a in arrays))
    labels = {f: read_npy(f) for f in label_files}
    if len({(y.ndim, *y.shape[1:]) for y in labels.values()}) > 1:
        raise DataFileError(f"{folder}: its label files differ in shape")
    if 1 < len(labels) != len(parts):
        raise DataFileError(f"{folder} has {len(parts)} files of features, but {len(labels)} of labels")
    if len(labels) == len(parts):
        for (file, part), (label_file, y) in zip(parts.items(), labels.items(), strict=True):
            if part.shape[0] != len(y):
                raise DataFileError(f"{file} has {part.shape[0]:,} rows, but {label_file} has {len(y):,} labels")
    names = [str(file) for file in parts]
    opened = [partial(read_npy, f, "r") for f in parts]
    X = Shards(opened, [a.shape[0] for a in arrays], arrays[0].shape[1], dtype, names)
    return X, np.concatenate(list(labels.values())) if labels else None


@dataclass(frozen=True)
class _Shape:
    """What is known of a file that is not held open: there may be more of them than a process may open."""

    shape: tuple[int, ...]
    dtype: Any


def _peek(file: Path) -> _Shape:
    part = read_npy(file, mmap_mode="r")
    if part.ndim == 2 and len(part):
        _check_some_rows(file, part[[0, len(part) // 2, len(part) - 1]])
    return _Shape(part.shape, part.dtype)


def _check_some_rows(file: Path, rows: NDArray[Any]) -> None:
    """Damage that fills a shard is found in any row of it, before a pass over all of them is under way."""
    if rows.dtype.kind == "f" and not np.isfinite(rows).all():
        raise DataFileError(f"{file} contains NaN or infinity")


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
    full = [file for file, n in zip(files, lengths, strict=True) if n]
    if not full:
        raise DataFileError(f"{files[0].parent}: all shards are empty")
    names = _feature_columns(full[0])
    heads = {file: _parquet_rows(file, names, head=16) for file in full}
    for file, head in heads.items():
        _check_matrix(file, head)
        _check_some_rows(file, head)
    _check_widths({file: head.shape[1] for file, head in heads.items()})
    dtype = np.result_type(np.float32, *(head.dtype for head in heads.values()))  # whole numbers may have gaps: NaN
    width = heads[full[0]].shape[1]
    opened = [partial(_parquet_rows, f, names) for f in full]
    X = Shards(opened, [n for n in lengths if n], width, dtype, [str(f) for f in full])
    return X, np.concatenate(labels) if labels else None


def _feature_columns(file: Path) -> list[str]:
    columns = [name for name in parquet_layout(file)[0] if name not in PARQUET_LABELS]
    if not columns:
        raise DataFileError(f"{file} holds labels but no features")
    return columns


def _parquet_rows(file: Path, columns: list[str], head: int | None = None) -> NDArray[Any]:
    """Feature columns of a file, in the order of the first shard's."""
    here = _feature_columns(file)
    if len(here) == len(columns) and set(here) != set(columns):
        raise DataFileError(f"{file} has other columns than the first shard: {sorted(set(here) ^ set(columns))[:4]}")
    rows = read_parquet(file, columns if set(here) == set(columns) else here, head)
    return rows[:, None] if rows.ndim == 1 else rows


def _check_widths(widths: dict[Path, int]) -> None:
    first, width = next(iter(widths.items()))
    for file, other in widths.items():
        if other != width:
            raise DataFileError(f"{file} has {other} features, but {first} has {width}")
