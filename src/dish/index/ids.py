"""Rows by id: the look-ups that the snapshots of a generation share, and string ids as one text."""

from __future__ import annotations

import sys
import threading

import numpy as np
from numpy.typing import NDArray

from dish.ids_and_labels import Ids
from dish.index import hashtable


class IntegerLookup:
    """Rows of integer ids, by a hash table.

    It only grows, and is read for any snapshot of its generation: a row that a later one replaced is still found.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: NDArray[np.int32] | None = None
        self._ids: Ids = np.empty(0, np.int64)
        self._replaced: dict[int, int] = {}  # row → the earlier row with the same id

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        return 0 if self._slots is None else self._slots.nbytes

    def add(self, ids: Ids, start: int, stop: int) -> None:
        """Enter rows start … stop − 1; a table that is too small is made again from all rows."""
        with self._lock:
            if self._slots is None or 2 * stop > len(self._slots):
                self._slots, start = hashtable.empty_slots(stop + stop // 4), 0
            earlier = hashtable.put(self._slots, ids[:, None], start, stop)
            again = np.flatnonzero(earlier >= 0)
            self._replaced.update(zip((start + again).tolist(), earlier[again].tolist(), strict=True))
            self._ids = ids

    def find(self, ids: Ids, n: int) -> NDArray[np.int64]:
        """Rows of ids among the first n rows; −1 for ids that are not there."""
        if self._slots is None:
            return np.full(len(ids), -1)
        with self._lock:
            found = hashtable.find(self._slots, self._ids[:, None], ids[:, None])
            return _before(found, n, self._replaced)


class StringLookup:
    """Rows of string ids, by a dictionary; shared in the same way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[str, int] = {}
        self._replaced: dict[int, int] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the dictionary, its keys among them."""
        with self._lock:
            return sys.getsizeof(self._rows) + sum(map(sys.getsizeof, self._rows)) + 32 * len(self._rows)

    def add(self, ids: Ids, start: int, stop: int) -> None:
        """Enter rows start … stop − 1."""
        with self._lock:
            for row, one in enumerate(ids[start:stop], start):
                earlier = self._rows.get(one)
                if earlier is not None:
                    self._replaced[row] = earlier
                self._rows[one] = row

    def find(self, ids: Ids, n: int) -> NDArray[np.int64]:
        """Rows of ids among the first n rows; −1 for ids that are not there."""
        with self._lock:
            found = np.fromiter((self._rows.get(one, -1) for one in ids), np.int64, len(ids))
            return _before(found, n, self._replaced)


def _before(found: NDArray[np.int64], n: int, replaced: dict[int, int]) -> NDArray[np.int64]:
    """Each row, or the last one before row n that had the same id."""
    for i in np.flatnonzero(found >= n).tolist():
        row = int(found[i])
        while row >= n:
            row = replaced.get(row, -1)
        found[i] = row
    return found


def to_text(ids: Ids) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Strings as one text and where each ends in it."""
    parts = [one.encode("utf-8", "surrogatepass") for one in ids]
    return np.frombuffer(b"".join(parts), np.uint8), np.cumsum([len(p) for p in parts], dtype=np.int64)


def from_text(text: NDArray[np.uint8], ends: NDArray[np.int64]) -> Ids:
    """The strings of such a text."""
    whole, start = bytes(text), 0
    ids = np.empty(len(ends), object)
    for i, end in enumerate(ends.tolist()):
        ids[i] = whole[start:end].decode("utf-8", "surrogatepass")
        start = end
    return ids
