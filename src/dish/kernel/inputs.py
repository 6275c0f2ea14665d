"""What ``DISH.fit`` accepts as X and y, as the rows and labels of this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dish.errors import InputError
from dish.io.readers import read_features, read_labels
from dish.io.rows import RowSource, is_path, is_streamed
from dish.lazy import Tensor
from dish.parallel import Ranks
from dish.similarity import Similarity

LARGE = 1 << 28  # bytes


def open_path(X: Any, y: Any, ranks: Ranks) -> tuple[RowSource, Any]:
    """This process's share of the rows of a file or a folder, and of their labels: y, a file, or the folder's own."""
    data, own_labels = read_features(X)
    n = data.shape[0]
    part = ranks.my_rows(n)
    if part.start == part.stop:
        raise InputError(f"{X} has {n} rows, too few for {ranks.world} processes")
    y = read_labels(Path(y)) if is_path(y) else own_labels if y is None else y
    if y is not None and not isinstance(y, Similarity):
        if np.shape(y)[:1] != (n,):
            raise InputError(f"X has {n} rows but y has {len(y) if np.ndim(y) else 'none'}; they must be equal")
        y = y[part]
    return RowSource(data, part), y


def open_unchecked(X: Any) -> RowSource | None:
    """Rows that are checked block by block as they are read, for which no pass is spent; None: X is none of these."""
    if isinstance(X, RowSource):
        return X
    if isinstance(X, Tensor) and (X.device.type == "cuda" or _is_large(X)):
        return RowSource(X.detach())
    if isinstance(X, np.ndarray) and not isinstance(X, np.memmap) and _is_large(X):
        return RowSource(X)
    return RowSource.of(X) if is_streamed(X) else None


def _is_large(X: Any) -> bool:
    """A matrix of floats of more than a quarter of a gigabyte."""
    return X.ndim == 2 and str(X.dtype).endswith(("float32", "float64")) and X.nbytes > LARGE
