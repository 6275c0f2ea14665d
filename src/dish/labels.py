"""Labels of any type → class numbers, or a 0/1 matrix of label sets. No torch: scoring and search load it too."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray


def encode_classes(y: Any, name: str = "y") -> tuple[NDArray[np.int32], NDArray[Any]]:
    """Labels (n,) of any type → class numbers 0 … c−1 (n,) and the sorted classes (c,)."""
    y = np.asarray(y)
    if y.ndim == 2 and y.shape[1] == 1:
        from sklearn.exceptions import DataConversionWarning

        warnings.warn(
            f"A column-vector {name} was passed when a 1d array was expected; it is read as (n,) classes",
            DataConversionWarning,
            stacklevel=3,
        )
        y = y.ravel()
    if y.ndim != 1:
        raise ValueError(f"{name} must be (n,) classes or (n, l) labels of 0 and 1; got shape {y.shape}")
    if len(y) == 0:
        raise ValueError(f"{name} is empty; at least one labelled row is needed")
    if y.dtype.kind == "f":
        if not np.isfinite(y).all():
            raise ValueError(f"{name} contains NaN or infinity; every row needs a label")
        if not (y == np.round(y)).all():
            raise ValueError(
                f"Unknown label type: continuous. {name} holds fractions; classes must be integers or strings"
            )
    if y.dtype.kind == "c":
        raise ValueError(f"Complex data not supported: {name} must hold classes")
    if y.dtype.kind == "O":
        if any(v is None or v != v for v in y):
            raise ValueError(f"{name} contains None or NaN; every row needs a label")
        words = {isinstance(v, str) for v in y}
        if len(words) > 1:
            raise ValueError(f"{name} mixes strings with other values; give every row a label of one kind")
    if y.dtype.kind in "iu" and int(y.max()) - int(y.min()) < 4 * len(y):  # without a sort
        low = y.min()
        shifted = (y - low).astype(np.int64) if y.dtype.kind == "u" else y.astype(np.int64) - int(low)
        there = np.bincount(shifted) > 0
        codes = (np.cumsum(there) - 1).astype(np.int32)[shifted]
        return codes, np.flatnonzero(there).astype(y.dtype) + low
    classes, codes = np.unique(y, return_inverse=True)
    return codes.astype(np.int32).ravel(), classes


def label_matrix(y: Any) -> sp.csr_array:
    """(n, l) labels of 0 and 1, dense or sparse → CSR float64."""
    Y = sp.csr_array(y).astype(np.float64)
    if Y.shape[0] == 0:
        raise ValueError("y is empty; at least one labelled row is needed")
    if not np.isin(Y.data, (0.0, 1.0)).all():
        raise ValueError("a 2-D y must hold only 0 and 1 (one column a label); other values were found")
    Y.eliminate_zeros()
    return Y


def unique_rows(packed: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.intp]]:
    """Distinct rows of bytes in ascending order, and which of them each row is."""
    keys = np.ascontiguousarray(packed).view(np.dtype((np.void, packed.shape[1]))).ravel()
    _, first, place = np.unique(keys, return_index=True, return_inverse=True)
    return packed[first], place.ravel()
