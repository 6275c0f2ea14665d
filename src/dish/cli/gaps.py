"""`--drop-missing`: rows with gaps are an error that counts and names them, or are left out and counted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dish.errors import DataFileError, InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dish.io.gaps import Mask
    from dish.io.readers import ColumnNames


def complete_rows(
    drop: bool, columns: ColumnNames, *found: tuple[str, Path, Mask], of: Path | None = None
) -> NDArray[Any] | None:
    """The indices of the rows that have everything; None if all have.

    ``found``: what rows may be without, the file that should hold it, and a mask of the rows without it. Without
    ``drop`` such rows raise DataFileError. The ids in messages come with the file ``of``.
    """
    import numpy as np

    from dish import parallel
    from dish.io.gaps import describe, refuse
    from dish.io.readers import own_ids

    gaps = [one for one in found if one[2].any()]
    if not gaps:
        return None
    ids = None if of is None else own_ids(of, columns)
    for what, path, mask in gaps:
        if not drop:
            raise refuse(path, what, mask, ids)
        if parallel.current().first:
            print(f"dish: note: {describe(path, what, mask, ids)} are left out", file=sys.stderr)
    missing = np.logical_or.reduce([mask for _, _, mask in gaps])
    if missing.all():
        raise DataFileError(f"{gaps[0][1]}: no row is left, because every row is without {gaps[0][0]}")
    return np.flatnonzero(~missing)


def complete_vectors(path: Path, X: Any, columns: ColumnNames) -> tuple[Any, NDArray[Any] | None]:
    """The rows of X with a complete vector, and their indices (None: all). Without the flag X is not read here."""
    from dish.io.gaps import VECTOR, take_rows, without_vector

    if not columns.gaps:
        return X, None
    kept = complete_rows(True, columns, (VECTOR, path, without_vector(X)), of=path)
    return (X, None) if kept is None else (take_rows(X, kept), kept)


def labelled_rows(path: Path, labels: Path | None, X: Any, y: Any, columns: ColumnNames) -> NDArray[Any] | None:
    """The indices of the rows with a complete vector and a label; None if all have both.

    Without the flag, vectors are not read here. The labels are in the file ``labels``, or come with the rows.
    """
    from dish.io.gaps import LABEL, VECTOR, without_labels, without_vector
    from dish.labels import UNLABELLED

    unlabelled = without_labels(y)
    marked = y.dtype.kind in "ifO" and bool((y[unlabelled] == UNLABELLED).any())
    found = [(f"{LABEL} (-1 is none)" if marked else LABEL, labels or path, unlabelled)]
    if columns.gaps:
        found.insert(0, (VECTOR, path, without_vector(X)))
    return complete_rows(columns.gaps, columns, *found, of=path)


def kept_values(column: NDArray[Any], kept: NDArray[Any]) -> NDArray[Any]:
    """The kept values of ids or labels, as an array of their type if none of them is missing."""
    from dish.labels import as_array

    some = column[kept]
    return as_array(some.tolist()) if some.dtype.kind == "O" else some


def rows_path(codes: Path) -> Path:
    """The file that says which row each code is of, if rows were left out: codes.rows.npy for codes.npy."""
    return codes.with_suffix(".rows.npy")


def write_rows(codes: Path, kept: NDArray[Any] | None) -> None:
    """Write the row of each code next to the codes. None: code i is of row i, which needs no file."""
    from dish.io.data_cache import save_npy

    if kept is None:
        rows_path(codes).unlink(missing_ok=True)
    else:
        save_npy(rows_path(codes), kept)


def rows_of(codes: Path, n: int) -> NDArray[Any] | None:
    """The row of each of n codes, if `dish encode` left rows out; None: code i is of row i."""
    from dish.io.readers import read_npy

    path = rows_path(codes)
    rows = read_npy(path) if path.is_file() else None
    return rows if rows is not None and rows.shape == (n,) else None


def check_ids_given(codes: Path, n: int, ids: Path | None) -> None:
    """Raise InputError if codes would get their places as ids, which are not the numbers of their rows."""
    if ids is None and rows_of(codes, n) is not None:
        own = codes.with_suffix(".ids.npy")
        raise InputError(
            f"{codes}: rows were left out when it was encoded, so code i is not of row i, and the ids 0, 1, 2, … "
            f"would be wrong: give --ids {own if own.is_file() else rows_path(codes)}"
        )


def check_same_rows(codes: Path, X: Any, kept: NDArray[Any] | None) -> None:
    """Raise InputError unless the rows of X that were kept are those of the codes."""
    import numpy as np

    from dish.io.readers import read_npy

    n = read_npy(codes, mmap_mode="r").shape[0]
    rows, own = rows_of(codes, n), np.arange(X.shape[0]) if kept is None else kept
    if n == len(own) and not np.array_equal(own, np.arange(n) if rows is None else rows):
        raise InputError(
            f"{codes} has codes of other rows than those that X has without gaps: encode all rows again with "
            "`dish encode`"
        )


def labels_with_gaps(labels: NDArray[Any]) -> bool:
    """Whether labels have gaps that a .npy file cannot hold."""
    from dish.labels import is_missing

    return labels.dtype.kind == "O" and bool(is_missing(labels).any())


def write_labels(path: Path, labels: NDArray[Any]) -> None:
    """Write labels with gaps to a .parquet file, with null for a gap."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from dish.io.atomic import replacing

    with replacing(path) as temporary:
        pq.write_table(pa.table({"label": pa.array(labels.tolist(), from_pandas=True)}), str(temporary))
