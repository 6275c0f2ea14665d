"""Hashes of rows, by which a model recognises the rows that it was trained on."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dish.errors import ModelFileError

RowHashes = NDArray[np.uint64]  # one per row
BLOCK = 1 << 10  # rows that are converted at a time


def row_hashes(rows: Any) -> RowHashes:
    """A 64-bit hash (n,) of every row of a matrix (n, d), or of every image (n, H, W, 3).

    The values are hashed as float32, so equal rows have equal hashes whatever number type a file holds. −0 equals 0.
    Numbers that are equal as float32 are not told apart.
    """
    n = rows.shape[0]
    parts = [_digests(rows[start : start + BLOCK]) for start in range(0, n, BLOCK)]
    return np.frombuffer(b"".join(parts), "<u8").astype(np.uint64)


def _digests(rows: Any) -> bytes:
    """Eight bytes per row."""
    dense = np.asarray(rows.toarray() if sp.issparse(rows) else rows)
    with np.errstate(over="ignore"):  # float64 beyond the range of float32 becomes infinite
        values = dense.reshape(len(dense), -1).astype(np.float32) + np.float32(0)  # −0 + 0 is 0
    return b"".join(blake2b(row, digest_size=8).digest() for row in np.ascontiguousarray(values, "<f4"))


def remembered(hashes: list[RowHashes]) -> RowHashes:
    """The distinct hashes of some blocks of rows in ascending order, as a model keeps them."""
    return np.unique(np.concatenate([np.zeros(0, np.uint64), *hashes]))


def check_remembered(hashes: NDArray[Any] | None) -> None:
    """Raise ModelFileError for an array of a model file that ``remembered`` cannot have returned."""
    if hashes is not None and (
        hashes.dtype != np.uint64 or hashes.ndim != 1 or not bool((hashes[1:] > hashes[:-1]).all())
    ):
        raise ModelFileError("the row hashes of the model must be distinct 64-bit numbers in ascending order")
