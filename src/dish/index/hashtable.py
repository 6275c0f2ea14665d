"""A hash table of rows by key: ``slots`` holds rows of ``keys`` (n, w), −1 where free."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.numba_lazy import njit


@njit(nogil=True, cache=True)
def slot_of(slots: Any, keys: Any, key: Any) -> Any:
    """Where a key is, or would go."""
    h = np.uint64(0)
    for w in range(len(key)):
        h ^= np.uint64(key[w])  # MurmurHash3's mixing: every bit of a key counts, also where only high ones differ
        h = (h ^ (h >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
        h = (h ^ (h >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
        h ^= h >> np.uint64(33)
    mask = len(slots) - 1
    s = np.int64(h & np.uint64(mask))
    while slots[s] >= 0:
        same = True
        for w in range(len(key)):
            same &= keys[slots[s], w] == key[w]
        if same:
            break
        s = (s + 1) & mask
    return s


@njit(nogil=True, cache=True)
def put(slots: Any, keys: Any, start: int, stop: int) -> Any:
    """Enter rows start … stop − 1; a row replaces an earlier one with its key. Those replaced, −1 where none was."""
    earlier = np.empty(stop - start, np.int32)
    for i in range(start, stop):
        s = slot_of(slots, keys, keys[i])
        earlier[i - start] = slots[s]
        slots[s] = i
    return earlier


@njit(nogil=True, cache=True)
def find(slots: Any, keys: Any, wanted: Any) -> Any:
    """The rows of some keys; −1 for a key that is not there."""
    rows = np.empty(len(wanted), np.int64)
    for i in range(len(wanted)):
        rows[i] = slots[slot_of(slots, keys, wanted[i])]
    return rows


def empty_slots(n: int) -> NDArray[np.int32]:
    """A table for n keys, at most half full."""
    return np.full(1 << max(4, (2 * n - 1).bit_length()), -1, np.int32)
