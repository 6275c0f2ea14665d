"""Encode Arrow tables: one callable that Ray Data, Spark, Dask or a plain loop can run. It imports none of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dish import codes
from dish.errors import InputError, UnsupportedError
from dish.io.modelfile import check_same_model
from dish.io.rows import check_finite
from dish.registry import load

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

CODE = "code"  # name of the column of codes


@dataclass(frozen=True)
class EncodeBatch:
    """Replaces the vectors of a table by their codes.

    An object of this class is called with an Arrow table or record batch. It returns a table with the column "code"
    (fixed-size binary; code length and model in the metadata of the schema, see ``codes.export``) and all other
    columns. It holds only the path of the model, so it is cheap to send to other processes. Each process loads the
    model once, when it encodes its first rows.

    Parameters
    ----------
    model_path : str
        A model file made by ``dish fit``. Every machine must be able to read it.
    column : str or sequence of str, default="vector"
        The column of vectors (lists of numbers of one length, or Ray tensors), or the columns of numbers, in the
        model's order.
    keep : sequence of str or None, default=None
        The other columns to return. None: all.
    model : str or None, default=None
        The ``fingerprint_`` that the model must have. None: any.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import pyarrow as pa
    >>> from dish import DISH
    >>> from dish.ray import EncodeBatch
    >>> X = np.random.default_rng(0).normal(size=(60, 5))
    >>> hasher = DISH(n_bits=16, n_anchors=20).fit(X, X[:, 0] > 0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     hasher.save(f"{folder}/model.dish")
    ...     encode = EncodeBatch(f"{folder}/model.dish")
    ...     table = encode(pa.table({"id": [7, 8], "vector": X[:2].tolist()}))
    >>> table.column_names, table.schema.field("code").type
    (['id', 'code'], FixedSizeBinaryType(fixed_size_binary[2]))
    """

    model_path: str
    column: str | Sequence[str] = "vector"
    keep: Sequence[str] | None = None
    model: str | None = None

    def __call__(self, batch: pa.Table | pa.RecordBatch) -> pa.Table:
        """Return the table with codes instead of vectors."""
        import pyarrow as pa

        table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        hasher, model = load_once(self.model_path)
        check_same_model(self.model, model, "the output", f"the model file {self.model_path}")
        names = [self.column] if isinstance(self.column, str) else list(self.column)
        kept = [name for name in table.column_names if name not in names] if self.keep is None else list(self.keep)
        _check_columns(table, [*names, *kept])
        if CODE in kept:
            raise InputError(f"the table has a column {CODE!r} already: leave it out with keep, or rename it")
        packed = np.empty((0, codes.n_bytes(hasher.n_bits)), np.uint8)
        if len(table):  # an empty data frame does not know the type of its columns
            X = _matrix(table, names)
            check_finite(X, 0, X)
            packed = hasher.transform(X)
        encoded = codes.export(packed, hasher.n_bits, to="arrow", model=model)
        return (
            table.select(kept)
            .append_column(encoded.schema.field(CODE), encoded[CODE])
            .replace_schema_metadata(encoded.schema.metadata)
        )

    def frame(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return a pandas data frame with codes (bytes) instead of vectors. For ``map_partitions`` of Dask."""
        import pyarrow as pa

        found = self(pa.Table.from_pandas(frame, preserve_index=False)).to_pandas()
        return found.set_index(frame.index)

    def map_in_pandas(self, frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """Encode data frames one after another. For ``DataFrame.mapInPandas`` of Spark."""
        return (self.frame(frame) for frame in frames)

    def map_in_arrow(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Encode record batches one after another. For ``DataFrame.mapInArrow`` of Spark.

        Spark has no fixed-size binary, so the codes are of variable size, and there is no metadata.
        """
        import pyarrow as pa

        for batch in batches:
            table = self(batch)
            place = table.column_names.index(CODE)
            table = table.set_column(place, CODE, table[CODE].cast(pa.binary())).replace_schema_metadata(None)
            yield from table.combine_chunks().to_batches()


def load_once(path: str) -> tuple[Any, str | None]:
    """Return a model that takes plain rows, and its fingerprint. A process keeps one until its file changes."""
    try:
        about = os.stat(path)
    except OSError:  # load says what is wrong
        return _load(path)
    return _load(path, about.st_ino, about.st_size, about.st_mtime_ns)


@lru_cache(maxsize=1)
def _load(path: str, *version: int) -> tuple[Any, str | None]:
    hasher = load(path).without_names()
    if getattr(hasher, "takes_images", False):
        raise UnsupportedError(f"{path} encodes images, not vectors: use `dish encode` with a folder")
    return hasher, getattr(hasher, "fingerprint_", None)


def _check_columns(table: pa.Table, names: list[str]) -> None:
    """Raise InputError unless the table has all these columns, each once."""
    for name in names:
        if table.column_names.count(name) != 1:
            found = "several columns" if name in table.column_names else "no column"
            raise InputError(f"the table has {found} {name!r}; its columns are {', '.join(table.column_names)}")


def _matrix(table: pa.Table, names: list[str]) -> NDArray[Any]:
    """Return one column of vectors, or columns of numbers, as (n, d)."""
    import pyarrow as pa

    columns = [table[name].combine_chunks() for name in names]
    if any(column.null_count for column in columns):
        gaps = np.logical_or.reduce([column.is_null().to_numpy(zero_copy_only=False) for column in columns])
        raise InputError(
            f"{int(gaps.sum()):,} of {len(gaps):,} rows have a null in {', '.join(names)}, the first is number "
            f"{int(gaps.argmax())}, counted from 0: leave them out of the files"
        )
    if len(columns) == 1 and isinstance(columns[0].type, pa.BaseExtensionType):  # a tensor of Ray
        columns[0] = columns[0].storage
    is_lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if len(columns) == 1 and any(check(columns[0].type) for check in is_lists):
        return _rows_of_lists(columns[0], names[0])
    for name, column in zip(names, columns, strict=True):
        if not pa.types.is_integer(column.type) and not pa.types.is_floating(column.type):
            raise InputError(f"column {name!r} must hold numbers or lists of numbers, got {column.type}")
    return np.column_stack([column.to_numpy(zero_copy_only=False) for column in columns])


def _rows_of_lists(lists: Any, name: str) -> NDArray[Any]:
    import pyarrow.compute as pc

    widths = pc.list_value_length(lists).unique().to_pylist()
    values = lists.flatten()
    if len(widths) > 1 or values.null_count:
        raise InputError(f"the lists in column {name!r} must have one length and no nulls")
    return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(len(lists), widths[0] if widths else 0)
