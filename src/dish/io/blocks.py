"""Rows of anything that is read a block at a time, as arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.errors import InputError
from dish.io.features import read_features
from dish.io.pages import release
from dish.io.shards import as_array, check_widths, is_blocks, is_map, is_path


def blocks_of(X: Any, size: int = 1 << 14) -> Iterator[NDArray[Any]]:
    """Row blocks of anything streamed, as arrays, for hashers that check and encode them one by one."""
    if is_path(X):
        X, _ = read_features(X)
    if is_blocks(X):
        width = None
        for block in X:
            rows = as_array(block)
            width = rows.shape[1:] if width is None else width
            check_widths({width, rows.shape[1:]})
            if len(rows):
                yield rows
        if width is None:
            raise InputError("X: there are no row blocks")
        return
    for i in range(0, X.shape[0], size):
        block = X[i : i + size]
        yield np.asarray(block)
        if is_map(block):
            release(block)
