"""The rows of an index at one moment: codes as words, ids with their look-up, labels."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dish.codes import n_bytes
from dish.index import scan

if TYPE_CHECKING:
    from dish.index.views import Groups, Lists

Ids = NDArray[Any]  # int64, or objects that are all str


@dataclass(frozen=True)
class Rows:
    """The rows at one moment. Arrays may be longer than n: later rows are written behind it, never before."""

    codes: NDArray[Any]  # (≥ n, w) words
    ids: Ids = field(default_factory=lambda: np.empty(0, np.int64))
    labels: NDArray[np.int32] | None = None  # numbers of labels, −1 for none; None: no row has one
    n: int = 0
    dead: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))  # removed rows, ascending
    view: Groups | Lists | None = None
    born: object = field(default_factory=object)  # the same as long as rows keep their numbers

    def without(self, removed: NDArray[np.int64]) -> Rows:
        """The same with more rows dead."""
        return replace(self, dead=np.union1d(self.dead, removed)) if len(removed) else self

    def squeezed(self) -> Rows:
        """The living rows alone, numbered anew."""
        alive = np.ones(self.n, bool)
        alive[self.dead] = False
        labels = None if self.labels is None else self.labels[: self.n][alive]
        return Rows(self.codes[: self.n][alive], self.ids[: self.n][alive], labels, int(alive.sum()))


def appended(a: NDArray[Any], n: int, more: NDArray[Any]) -> NDArray[Any]:
    """The first n rows of ``a`` and then more; in place where there is room, else with room for an eighth."""
    if n + len(more) > len(a):
        room = max(n + len(more), n + n // 8 + 64 if n else 0)
        longer = np.empty((room, *a.shape[1:]), a.dtype)
        longer[:n] = a[:n]
        a = longer
    a[n : n + len(more)] = more
    return a


class IntegerLookup:
    """Rows of integer ids: by bisection while ids only grow, then by a hash table."""

    def __init__(self) -> None:
        self.slots: NDArray[np.int32] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        return 0 if self.slots is None else self.slots.nbytes

    def add(self, rows: Rows, start: int) -> None:
        """Take note of the rows from ``start`` on."""
        if self.slots is None:
            tail = rows.ids[max(start - 1, 0) : rows.n]
            if (tail[1:] > tail[:-1]).all():
                return
            start = 0
        if self.slots is None or 2 * rows.n > len(self.slots):
            self.slots, start = scan.empty_slots(rows.n + rows.n // 4), 0
        scan.put(self.slots, rows.ids[:, None], start, rows.n)

    def find(self, ids: Ids, rows: Rows) -> NDArray[np.int64]:
        """Rows of ids; −1 for those that are not there."""
        if ids.dtype != np.int64:
            return np.full(len(ids), -1)
        if self.slots is None:
            known = rows.ids[: rows.n]
            found = np.minimum(np.searchsorted(known, ids), max(rows.n - 1, 0))
            found = np.where(known[found] == ids, found, -1) if rows.n else np.full(len(ids), -1)
        else:
            found = scan.find(self.slots, rows.ids[:, None], ids[:, None])
        return _living(found, rows)


class StringLookup:
    """Rows of string ids: a dictionary."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the dictionary, its keys among them."""
        return sys.getsizeof(self.rows) + sum(map(sys.getsizeof, self.rows)) + 32 * len(self.rows)

    def add(self, rows: Rows, start: int) -> None:
        """Take note of the rows from ``start`` on."""
        self.rows.update(zip(rows.ids[start : rows.n], range(start, rows.n), strict=True))

    def find(self, ids: Ids, rows: Rows) -> NDArray[np.int64]:
        """Rows of ids; −1 for those that are not there."""
        found = np.fromiter((self.rows.get(one, -1) for one in ids), np.int64, len(ids))
        return _living(found, rows)


def _living(found: NDArray[np.int64], rows: Rows) -> NDArray[np.int64]:
    return np.where(np.isin(found, rows.dead), -1, found) if len(rows.dead) else found


def words_of(n_bits: int) -> tuple[type[np.unsignedinteger[Any]], int]:
    """Type and number of the words that hold a code: at most twice its bytes."""
    width = n_bytes(n_bits)
    for word, size in ((np.uint8, 1), (np.uint16, 2), (np.uint32, 4)):
        if width <= size:
            return word, 1
    return np.uint64, -(-width // 8)


def as_ids(ids: Any, n: int | None = None) -> Ids:
    """Ids as int64, or as an array of str objects."""
    if isinstance(ids, str | bytes) or (np.ndim(ids) == 0 and not hasattr(ids, "__iter__")):
        raise ValueError(f"ids must be a list of ids, got {ids!r}")
    given = ids if isinstance(ids, np.ndarray) else np.array(list(ids), object)
    if given.ndim != 1:
        raise ValueError(f"ids must be a list of ids, got shape {given.shape}")
    if n is not None and len(given) != n:
        raise ValueError(f"ids has {len(given):,} entries for {n:,} codes")
    if not len(given):
        return np.empty(0, np.int64)
    if given.dtype.kind == "U" or (given.dtype == object and all(isinstance(one, str) for one in given)):
        return np.array(given.tolist(), object)
    whole = given.dtype.kind in "iu" or (
        given.dtype == object
        and all(isinstance(one, int | np.integer) and not isinstance(one, bool | np.bool_) for one in given)
    )
    if not whole:
        raise ValueError(f"ids must be whole numbers or strings, all of one kind; got {given[0]!r} among them")
    try:
        if given.dtype == np.uint64 and given.max() > np.iinfo(np.int64).max:
            raise OverflowError
        return given.astype(np.int64)
    except OverflowError:
        raise ValueError("ids must fit into 64 bits with a sign") from None


def as_labels(labels: Any, n: int) -> list[Any] | None:
    """Labels as plain values, one a row."""
    if labels is None:
        return None
    given = np.asarray(labels)
    if given.ndim != 1 or len(given) != n:
        raise ValueError(f"labels must be one a row, {n:,} of them; got shape {given.shape}")
    values: list[Any] = given.tolist()
    if not all(isinstance(value, str | int | float) for value in values):
        raise ValueError("labels must be numbers or strings")
    return values


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
