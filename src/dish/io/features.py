"""Rows and labels of one's own, from any file or folder that can be read: the one door for all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dish.errors import DataFileError
from dish.io import csvfile, folders, parquet
from dish.io.columns import Columns
from dish.io.errors import StrPath
from dish.io.tables import array_name, check_matrix, labels_beside, open_npz, read_labels, read_npy, read_rows


def read_features(path: StrPath, labels: StrPath | None = None, columns: Columns | None = None) -> tuple[Any, Any]:
    """X (n, d) and y (or None) of a file or a folder of shards.

    ========================  =======================  ==================================================
    path                      X                        y, unless ``labels`` names a file of them
    ========================  =======================  ==================================================
    .npy                      memory-mapped            ``name_labels.npy`` beside it, if there is one
    .npz                      X, x, features,          its array y, Y, labels or label
                              embeddings, or its only
                              array
    .parquet, .csv            columns of numbers, or   its column y or label
                              one column of vectors
    folder of .npy            ``*.npy``                ``y*.npy`` or ``*_labels.npy``, in the same order
    folder of .npz, .parquet  as of one such file      as of one such file
    ========================  =======================  ==================================================

    ``columns`` names the columns of tables that do not speak for themselves.
    """
    path, columns = Path(path), columns or Columns()
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder")
    if labels is not None:  # a column y is then one of the file of labels
        X, _ = _read(path, columns.without_labels())
        y = read_labels(Path(labels), columns.only_labels())
    else:
        X, y = _read(path, columns)
    check_matrix(path, X)
    if y is not None and (y.ndim not in (1, 2) or y.shape[0] != X.shape[0]):
        raise DataFileError(f"{path} has {X.shape[0]:,} rows, but its labels are of shape {y.shape}")
    return X, y


def _read(path: Path, columns: Columns) -> tuple[Any, Any]:
    if path.is_dir():
        return folders.read_shards(path, columns)
    if path.suffix == ".npy":
        beside = path.with_name(f"{path.stem}_labels.npy")
        return read_npy(path, mmap_mode="r"), read_npy(beside) if beside.exists() else None
    if path.suffix == ".npz":
        with open_npz(path) as archive:
            return archive[array_name(path, archive)], labels_beside(archive)
    X = read_rows(path, columns)
    return X, read_labels(path, columns) if _label_column(path, columns) else None


def _label_column(path: Path, columns: Columns) -> str | None:
    names = parquet.layout(path)[0] if path.suffix == ".parquet" else csvfile.names_of(path, columns)
    return columns.labels_in(path, list(names))
