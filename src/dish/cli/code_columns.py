"""Ids, labels and vectors that `dish encode` writes next to codes, such as codes.ids.npy and codes.vectors.npy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dish.cli.gaps import labels_with_gaps, write_labels
from dish.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dish.io.readers import ColumnNames


def column_of(path: Path, columns: ColumnNames, name: str) -> NDArray[Any]:
    """A column of a table, or of all .parquet files in a folder, in the order of their rows."""
    import numpy as np

    from dish.io import readers

    files = readers.shard_files(path, ".parquet") if path.is_dir() else [path]
    parts = [readers.read_labels(file, columns.only(name)) for file in files]
    parts = [part for part in parts if len(part)] or parts[:1]
    firsts = [next((one for one in part.tolist() if one is not None), None) for part in parts]
    if len({isinstance(one, str) for one in firsts if one is not None}) > 1:
        raise InputError(
            f"{path}: column {name!r} has text in some of its files and numbers in others; write the same type to all"
        )
    return np.concatenate(parts)


def write_column(codes: Path, name: str, column: NDArray[Any]) -> Path:
    """Write the ids or labels of codes next to them: to a .parquet file if they have gaps, which .npy cannot hold."""
    from dish.io.data_cache import save_npy

    npy, table = codes.with_suffix(f".{name}.npy"), codes.with_suffix(f".{name}.parquet")
    with_gaps = labels_with_gaps(column)
    if with_gaps:
        write_labels(table, column)
        npy.unlink(missing_ok=True)
    else:
        save_npy(npy, column)
        table.unlink(missing_ok=True)
    return table if with_gaps else npy


def write_vectors(codes: Path, X: Any) -> Path:
    """Write the vectors (n, d) of codes next to them, block by block, for searches that rescore."""
    import numpy as np

    from dish.io.atomic import replacing
    from dish.io.rows import blocks_of

    path = codes.with_suffix(".vectors.npy")
    header = {"descr": np.lib.format.dtype_to_descr(X.dtype), "fortran_order": False, "shape": tuple(X.shape)}
    with replacing(path) as temporary, open(temporary, "wb") as file:  # not mapped: a full disk raises an error
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks_of(X):
            file.write(np.ascontiguousarray(block, X.dtype).tobytes())
    return path
