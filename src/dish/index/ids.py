"""Find rows by id, for all snapshots of a generation; and string ids as one text for files."""

from __future__ import annotations

import sys
import threading

import numpy as np
from numpy.typing import NDArray

from dish.ids_and_labels import Ids
from dish.index import hashtable


class IntegerLookup:
    """Rows by integer id, in a hash table.

    It only grows and serves every snapshot of its generation: an older snapshot still finds the row that a later
    one replaced.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: NDArray[np.int32] | None = None
        self._ids: Ids = np.empty(0, np.int64)
        self._replaced: dict[int, int] = {}  # row → the earlier row with the same id

    @property
    def nbytes(self) -> int:
        """Size of the table in bytes."""
        return 0 if self._slots is None else self._slots.nbytes

    def add(self, ids: Ids, start: int, stop: int) -> None:
        """Insert rows start … stop − 1; a table that is too small is rebuilt from all rows."""
        with self._lock:
            if self._slots is None or 2 * stop > len(self._slots):
                self._slots, start = hashtable.empty_slots(stop + stop // 4), 0
            earlier = hashtable.put(self._slots, ids[:, None], start, stop)
            again = np.flatnonzero(earlier >= 0)
            self._replaced.update(zip((start + again).tolist(), earlier[again].tolist(), strict=True))
            self._ids = ids

    def find(self, ids: Ids, n: int) -> NDArray[np.int64]:
        """Return the row of each id among the first n rows, −1 if it is absent."""
        if self._slots is None:
            return np.full(len(ids), -1)
        with self._lock:
            found = hashtable.find(self._slots, self._ids[:, None], ids[:, None])
            return _rows_before(n, found, self._replaced)


class StringLookup:
    """Rows by string id, in a dictionary; shared by snapshots like ``IntegerLookup``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[str, int] = {}
        self._replaced: dict[int, int] = {}

    @property
    def nbytes(self) -> int:
        """Size of the dictionary and its keys in bytes."""
        with self._lock:
            return sys.getsizeof(self._rows) + sum(map(sys.getsizeof, self._rows)) + 32 * len(self._rows)

    def add(self, ids: Ids, start: int, stop: int) -> None:
        """Insert rows start … stop − 1."""
        with self._lock:
            for row, one in enumerate(ids[start:stop], start):
                earlier = self._rows.get(one)
                if earlier is not None:
                    self._replaced[row] = earlier
                self._rows[one] = row

    def find(self, ids: Ids, n: int) -> NDArray[np.int64]:
        """Return the row of each id among the first n rows, −1 if it is absent."""
        with self._lock:
            found = np.fromiter((self._rows.get(one, -1) for one in ids), np.int64, len(ids))
            return _rows_before(n, found, self._replaced)


def _rows_before(n: int, found: NDArray[np.int64], replaced: dict[int, int]) -> NDArray[np.int64]:
    """Replace each row ≥ n by the last row before n that had the same id, −1 if there is none."""
    for i in np.flatnonzero(found >= n).tolist():
        row = int(found[i])
        while row >= n:
            row = replaced.get(row, -1)
        found[i] = row
    return found


def to_text(ids: Ids) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return string ids as one UTF-8 text and the end of each id in it."""
    parts = [one.encode("utf-8", "surrogatepass") for one in ids]
    return np.frombuffer(b"".join(parts), np.uint8), np.cumsum([len(p) for p in parts], dtype=np.int64)


def from_text(text: NDArray[np.uint8], ends: NDArray[np.int64]) -> Ids:
    """Return the string ids of such a text."""
    whole, start = bytes(text), 0
    ids = np.empty(len(ends), object)
    for i, end in enumerate(ends.tolist()):
        ids[i] = whole[start:end].decode("utf-8", "surrogatepass")
        start = end
    return ids
