"""Multi-index hashing (Norouzi et al., 2012): find codes within a radius through buckets of some of their bits.

If two codes of m words differ in at most R bits, then at least one word differs in at most R // m bits, and so do its
lowest t bits. Rows are listed by the lowest t bits of each word. A radius search looks only into the buckets whose
bits differ from the query's in at most R // m places, and checks the distance of every row it finds there.
"""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.codes import popcount
from dish.index.scan import keep_nearest, longer
from dish.numba_lazy import njit


@njit(nogil=True, cache=True)
def list_by_bits(B: Any, m: int, t: int) -> Any:
    """List the rows by the lowest t bits of words 0 … m − 1: starts (m, 2^t + 1), order (m, n).

    Bucket x of word j holds the rows order[j, starts[j, x] : starts[j, x + 1]].
    """
    low = np.uint64((1 << t) - 1)
    starts = np.zeros((m, (1 << t) + 1), np.int32)
    order = np.empty((m, len(B)), np.int32)
    for j in range(m):
        for i in range(len(B)):
            starts[j, np.int64(B[i, j] & low) + 1] += 1
        for x in range(1 << t):
            starts[j, x + 1] += starts[j, x]
        place = starts[j].copy()
        for i in range(len(B)):
            bits = np.int64(B[i, j] & low)
            order[j, place[bits]] = i
            place[bits] += 1
    return starts, order


def near_patterns(t: int, flips: int, most: int) -> NDArray[np.int64] | None:
    """Return all t-bit patterns with at most ``flips`` ones; None if there are more than ``most``."""
    if sum(comb(t, i) for i in range(flips + 1)) > most:
        return None
    ones = [sum(1 << b for b in bits) for i in range(flips + 1) for bits in combinations(range(t), i)]
    return np.array(ones, np.int64)


@njit(nogil=True, cache=True)
def count_by_bits(Q: Any, starts: Any, patterns: Any) -> Any:
    """Return the number of rows in the buckets of each query."""
    low = np.uint64(starts.shape[1] - 2)
    count = np.zeros(len(Q), np.int64)
    for i in range(len(Q)):
        for j in range(len(starts)):
            for x in patterns:
                bucket = np.int64(Q[i, j] & low) ^ x
                count[i] += starts[j, bucket + 1] - starts[j, bucket]
    return count


@njit(nogil=True, cache=True)
def within_by_bits(Q: Any, B: Any, radius: int, starts: Any, order: Any, patterns: Any, flips: int) -> Any:
    """Return what ``scan.within`` returns, looking only into the buckets."""
    low = np.uint64(starts.shape[1] - 2)
    found = np.zeros(len(Q), np.int64)
    d, rows = np.empty(1024, np.int32), np.empty(1024, np.int64)
    c: Any = 0
    for i in range(len(Q)):
        start = c
        room = c
        for j in range(len(starts)):
            for x in patterns:
                bucket = np.int64(Q[i, j] & low) ^ x
                room += starts[j, bucket + 1] - starts[j, bucket]
        while room > len(d):
            d, rows = longer(d, c), longer(rows, c)
        c = _pick_by_bits(Q[i], B, radius, starts, order, patterns, flips, d, rows, c)
        by_row = np.argsort(rows[start:c])
        d[start:c], rows[start:c] = d[start:c][by_row], rows[start:c][by_row]
        keep_nearest(d[start:c], rows[start:c], c - start, c - start, radius)
        found[i] = c - start
    return found, d[:c].copy(), rows[:c].copy()


@njit(nogil=True, cache=True)
def _pick_by_bits(
    q: Any, B: Any, radius: int, starts: Any, order: Any, patterns: Any, flips: int, d: Any, rows: Any, c: int
) -> int:
    """Append the rows in one query's buckets that are within the radius, each once; return the new count."""
    low = np.uint64(starts.shape[1] - 2)
    for j in range(len(starts)):
        for x in patterns:
            bucket = np.int64(q[j] & low) ^ x
            for s in range(starts[j, bucket], starts[j, bucket + 1]):
                row = order[j, s]
                distance = np.uint64(0)
                for w in range(B.shape[1]):
                    distance += popcount(B[row, w] ^ q[w])
                if distance <= radius:
                    again = False  # whether a bucket of an earlier word held it
                    for e in range(j):
                        again |= popcount((B[row, e] ^ q[e]) & low) <= flips
                    if not again:
                        d[c] = distance
                        rows[c] = row
                        c += 1
    return c
