"""A hash table from keys to rows, as compiled functions.

``slots`` holds row indices, −1 where free; ``keys`` (n, w) holds the key of every row. Collisions probe linearly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.numba_lazy import njit


def empty_slots(n: int) -> NDArray[np.int32]:
    """Return a table for n keys that is at most half full; its size is a power of two."""
    return np.full(1 << max(4, (2 * n - 1).bit_length()), -1, np.int32)


@njit(nogil=True, cache=True)
def slot_of(slots: Any, keys: Any, key: Any) -> Any:
    """Return the slot that holds ``key``, or the free slot where it belongs."""
    h = np.uint64(0)
    for w in range(len(key)):
        h ^= np.uint64(key[w])  # the final mix of MurmurHash3: every bit of the key affects the slot
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
    """Insert rows start … stop − 1; return the earlier row with the same key that each one replaces, or −1."""
    earlier = np.empty(stop - start, np.int32)
    for i in range(start, stop):
        s = slot_of(slots, keys, keys[i])
        earlier[i - start] = slots[s]
        slots[s] = i
    return earlier


@njit(nogil=True, cache=True)
def find(slots: Any, keys: Any, wanted: Any) -> Any:
    """Return the row of each wanted key, −1 if it is absent."""
    rows = np.empty(len(wanted), np.int64)
    for i in range(len(wanted)):
        rows[i] = slots[slot_of(slots, keys, wanted[i])]
    return rows
