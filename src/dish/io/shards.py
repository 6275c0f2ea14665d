"""Rows in several pieces: files seen as one matrix, and blocks of whatever is read a block at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.errors import InputError
from dish.io.pages import release


class Shards:
    """Rows that lie in several files, seen as one matrix (n, d). Rows are read when they are asked for."""

    def __init__(
        self,
        parts: Sequence[Callable[[], NDArray[Any]]],
        lengths: list[int],
        n_features: int,
        dtype: Any,
        names: list[str] | None = None,
    ) -> None:
        self._parts = parts
        self._starts = np.concatenate([[0], np.cumsum(lengths)])
        self._open = threading.local()  # the shard that a thread has open: no two threads swap each other's
        self._names = names
        self.shape = (int(self._starts[-1]), n_features)
        self.dtype = np.dtype(dtype)
        self.ndim = 2

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: Any) -> NDArray[Any]:
        if isinstance(which, slice) and which.step in (None, 1):
            return self._span(*which.indices(len(self))[:2])
        index = np.arange(len(self))[which]  # gives masks, numbers and errors their usual meaning
        flat = np.atleast_1d(index)
        rows = np.empty((len(flat), self.shape[1]), self.dtype)
        shard = np.searchsorted(self._starts, flat, side="right") - 1
        for s in np.unique(shard):
            here = shard == s
            rows[here] = self._part(int(s))[flat[here] - self._starts[s]]
        return rows if np.ndim(index) else rows[0]

    def _span(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start … stop − 1; of a memory-mapped shard nothing stays in memory but the copy."""
        rows = np.empty((max(0, stop - start), self.shape[1]), self.dtype)
        done = start
        while done < stop:
            s = int(np.searchsorted(self._starts, done, side="right")) - 1
            end = min(stop, int(self._starts[s + 1]))
            block = self._part(s)[done - self._starts[s] : end - self._starts[s]]
            rows[done - start : end - start] = block
            if isinstance(block, np.memmap):
                release(block)
            done = end
        return rows

    def where(self, row: int) -> str:
        """The file that holds a row."""
        s = int(np.searchsorted(self._starts, row, side="right")) - 1
        return self._names[s] if self._names else f"block {s}"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:].astype(dtype or self.dtype, copy=False)

    def _part(self, s: int) -> NDArray[Any]:
        opened = getattr(self._open, "part", None)
        if opened is None or opened[0] != s:
            opened = self._open.part = (s, self._parts[s]())
        part: NDArray[Any] = opened[1]
        return part


def is_streamed(X: Any) -> bool:
    """Whether X is read a block at a time: a memory-map, shards, a path, or an iterable of row blocks."""
    return is_path(X) or isinstance(X, Shards) or is_map(X) or is_blocks(X)


def is_path(X: Any) -> bool:
    """Whether X names a file or a folder."""
    return isinstance(X, str | os.PathLike)


def is_blocks(X: Any) -> bool:
    """Whether X is an iterable of row blocks, not an array, a table or nested lists of numbers."""
    if isinstance(X, list | tuple):
        return len(X) > 0 and np.ndim(X[0]) == 2
    return isinstance(X, Iterable) and not hasattr(X, "shape") and not hasattr(X, "__array__") and not is_path(X)


def is_map(X: Any) -> bool:
    """Whether X is a memory-map of a file."""
    return isinstance(X, np.memmap) and getattr(X, "_mmap", None) is not None


def check_widths(widths: set[tuple[int, ...]]) -> None:
    """Row blocks must all have the same width."""
    if len(widths) != 1:
        raise InputError(f"X: the row blocks differ in shape ({sorted(widths)}), or there are none")


def as_array(block: Any) -> NDArray[Any]:
    """A row block, which may be a tensor of any kind, as an array."""
    if hasattr(block, "detach"):
        block = block.detach().cpu()
        block = block.float() if "bfloat16" in str(block.dtype) else block
    return np.asarray(block)


def check_finite(block: NDArray[Any], start: int, X: Any) -> None:
    """Refuse NaN, by the number of the row and the name of its file; ``start`` is that of the block's first row."""
    if block.dtype.kind == "f" and not np.isfinite(block).all():
        raise not_finite(start + int(np.flatnonzero(~np.isfinite(block).all(axis=1))[0]), X)


def not_finite(row: int, X: Any) -> ValueError:
    """The error that names a bad row."""
    file = f" ({X.where(row)})" if isinstance(X, Shards) else ""
    return ValueError(f"Input X contains NaN or infinity in row {row:,}{file}")
