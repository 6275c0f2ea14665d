"""Columns of .parquet files: features one per column or as one column of vectors, labels, tags and ids.

Needs pyarrow, the extra ``parquet``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.errors import DataFileError
from dish.io.columns import Columns
from dish.io.errors import StrPath, reading
from dish.labels import as_array


def layout(path: StrPath) -> tuple[dict[str, Any], int]:
    """Types of the columns by name and the number of rows, from the file's end: no row is read."""
    pa, pq = _pyarrow()
    with reading(path, "parquet file", (pa.ArrowException,)):
        schema = pq.read_schema(path)
        return dict(zip(schema.names, schema.types, strict=True)), pq.read_metadata(path).num_rows


def read_rows(path: Path, columns: Columns) -> NDArray[Any]:
    """The features of a file, (n, d)."""
    return matrix(path, feature_columns(path, columns))


def read_labels(path: Path, columns: Columns) -> Any:
    """The labels of a file: its column of labels; without one, its only column, or several of 0 and 1."""
    name = columns.labels_in(path, list(layout(path)[0]))
    names = [name] if name else feature_columns(path, replace(columns, x=()))
    return label_column(path, names[0]) if len(names) == 1 else matrix(path, names)


def feature_columns(path: StrPath, columns: Columns) -> list[str]:
    """The columns of features, which are all numbers, or one of vectors; otherwise they must be named."""
    pa, _ = _pyarrow()
    types, _ = layout(path)
    names = columns.features_in(path, list(types))
    numbers = [n for n in names if _is_number(pa, types[n])]
    if len(names) > 1 and len(numbers) < len(names):
        shown = ", ".join(f"{name} ({types[name]})" for name in names[:20])
        raise DataFileError(
            f"{path}: which of the columns {shown} are the features? One column of vectors, or several of numbers: "
            "name them with --x-column, and those of labels and ids with --y-column and --id-column"
        )
    return names


def matrix(path: StrPath, names: list[str], head: int | None = None) -> NDArray[Any]:
    """Columns of numbers, or one of vectors, as (n, d); one of numbers as (n,). ``head``: the first rows only."""
    pa, pq = _pyarrow()
    with reading(path, "parquet file", (pa.ArrowException, StopIteration)):
        if head is None:
            table = pq.read_table(path, columns=names)
        else:
            with pq.ParquetFile(path) as file:
                table = pa.Table.from_batches([next(file.iter_batches(head, columns=names))])
        values = [table[name].combine_chunks() for name in names]
        if len(values) == 1 and pa.types.is_nested(values[0].type):
            return _matrix_of_lists(path, names[0], values[0])
        arrays = [value.to_numpy(zero_copy_only=False) for value in values]
        return arrays[0] if len(arrays) == 1 else np.column_stack(arrays)


def label_column(path: StrPath, name: str) -> Any:
    """Labels as they are: (n,) classes, None where there is none; (n, l) of vectors; or (n,) lists of tags."""
    pa, pq = _pyarrow()
    with reading(path, "parquet file", (pa.ArrowException,)):
        values = pq.read_table(path, columns=[name])[name].combine_chunks()
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        if pa.types.is_nested(values.type):
            if _is_number(pa, values.type.value_type):
                return _matrix_of_lists(path, name, values)
            tags = np.empty(len(values), object)
            tags[:] = values.to_pylist()
            return tags
        if values.null_count or not _is_number(pa, values.type):
            return as_array(values.to_pylist())  # as floats, whole numbers beside gaps would not stay exact
        return np.asarray(values.to_numpy(zero_copy_only=False))


def _matrix_of_lists(path: StrPath, name: str, lists: Any) -> NDArray[Any]:
    import pyarrow.compute

    widths = pyarrow.compute.list_value_length(lists).unique().to_pylist()
    if len(widths) != 1 or lists.null_count:
        raise DataFileError(f"{path}: the lists in column {name!r} differ in length")
    return np.asarray(lists.flatten().to_numpy(zero_copy_only=False)).reshape(len(lists), widths[0])


def _is_number(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ImportError("reading .parquet files needs pyarrow: pip install 'dish-hash[parquet]'") from None
    return pyarrow, pyarrow.parquet
