"""Kernels of the index: scans over packed codes, groups of equal codes, and answers put in a stated order.

Codes are words here, (n, w) unsigned integers. Every kernel runs on one thread and without Python's lock;
``in_threads`` shares the queries out. Of equal keys (distances, negated scores) the lower row comes first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from math import comb
from typing import Any

import numba
import numpy as np
from numba import njit
from numpy.typing import NDArray

from dish.codes import byte_table, popcount

Found = tuple[NDArray[Any], NDArray[np.int64]]  # keys and rows, both (n_queries, k)

BLOCK = 512  # codes whose distances are taken at a time: they stay in the first-level cache
QUERIES = 128  # queries a task


def in_threads(kernel: Callable[..., Any], Q: NDArray[Any], *args: Any, k: int = 1) -> list[Any]:
    """``kernel(some of Q, *args)`` for all of Q, on as many threads as numba may use; results in order.

    With a large k, fewer queries at a time: each needs room for some k candidates.
    """
    n_threads = numba.get_num_threads()
    size = max(1, min(QUERIES, 2**22 // k, -(-len(Q) // n_threads)))
    parts = [Q[i : i + size] for i in range(0, len(Q), size)]
    if n_threads == 1 or len(parts) == 1:
        return [kernel(part, *args) for part in parts]
    with ThreadPoolExecutor(n_threads) as pool:
        return list(pool.map(lambda part: kernel(part, *args), parts))


@njit(nogil=True, cache=True)
def _columns(B: Any, C: Any) -> Any:
    """B (m, w) transposed into the first m columns of C: words of different codes side by side."""
    for w in range(B.shape[1]):
        for t in range(len(B)):
            C[w, t] = B[t, w]


@njit(nogil=True, cache=True)
def _distances(q: Any, B: Any, C: Any, by_column: bool, out: Any) -> Any:
    """out[t] = Hamming distance of q and B[t]; the smallest of them. C holds the columns of B.

    By column the loops become vector instructions; with few queries the transposing would cost more than that.
    """
    if by_column:
        for t in range(len(B)):
            out[t] = popcount(np.uint64(C[0, t] ^ q[0]))
        for w in range(1, B.shape[1]):
            for t in range(len(B)):
                out[t] += popcount(np.uint64(C[w, t] ^ q[w]))
    else:
        for t in range(len(B)):
            d = np.uint64(0)
            for w in range(B.shape[1]):
                d += popcount(np.uint64(B[t, w] ^ q[w]))
            out[t] = d
    low = out[0]
    for t in range(len(B)):
        low = min(low, out[t])
    return low


@njit(nogil=True, cache=True)
def nearest(Q: Any, B: Any, k: int) -> Any:
    """The k nearest of B for every query: distances int32 and rows int64, both (n_queries, k).

    Candidates nearer than the k-th so far are appended in the order of rows and cut back to the k best when
    there are twice as many: constant work a candidate, whatever k is.
    """
    n_bits = 8 * B.itemsize * B.shape[1]
    full = 2 * k + 32
    d = np.empty((len(Q), full + BLOCK), np.int32)
    rows = np.empty((len(Q), full + BLOCK), np.int64)
    count = np.zeros(len(Q), np.int64)
    bound = np.full(len(Q), n_bits + 1, np.uint16)
    out = np.empty(BLOCK, np.uint16)
    C = np.empty((B.shape[1], BLOCK), B.dtype)
    by_column = len(Q) > 3 or B.shape[1] < 3
    for j in range(0, len(B), BLOCK):  # blocks outside, queries inside: a block is read from memory once
        some = B[j : j + BLOCK]
        if by_column:
            _columns(some, C)
        for i in range(len(Q)):
            if _distances(Q[i], some, C, by_column, out) < bound[i]:
                c = count[i]
                for t in range(len(some)):
                    if out[t] < bound[i]:
                        d[i, c] = out[t]
                        rows[i, c] = j + t
                        c += 1
                if c >= full:
                    _keep_nearest(d[i], rows[i], c, k, n_bits)
                    c = k
                    bound[i] = d[i, k - 1]  # a later row at the same distance comes after: not needed
                count[i] = c
    for i in range(len(Q)):
        _keep_nearest(d[i], rows[i], count[i], k, n_bits)
    return d[:, :k].copy(), rows[:, :k].copy()


@njit(nogil=True, cache=True)
def _keep_nearest(d: Any, rows: Any, n: int, k: int, n_bits: int) -> None:
    """Counting sort of the first n candidates by distance, stable; the first k places are written."""
    old_d, old_rows = d[:n].copy(), rows[:n].copy()
    slot = np.zeros(n_bits + 2, np.int64)  # slot[x]: where the next candidate at distance x goes
    for t in range(n):
        slot[old_d[t] + 1] += 1
    for x in range(n_bits + 1):
        slot[x + 1] += slot[x]
    for t in range(n):
        place = slot[old_d[t]]
        slot[old_d[t]] += 1
        if place < k:
            d[place] = old_d[t]
            rows[place] = old_rows[t]


@njit(nogil=True, cache=True)
def best_scores(F: Any, B: Any, k: int) -> Any:
    """The k largest F_i·h over the codes h of B, as (−score float64, rows int64), both (n_queries, k)."""
    B = B.view(np.uint8)  # (n, bytes)
    full = 2 * k + 32
    D = np.empty((len(F), k))
    R = np.empty((len(F), k), np.int64)
    d = np.empty(full)
    rows = np.empty(full, np.int64)
    for i in range(len(F)):
        table = byte_table(F[i], (B.shape[1] + 7) // 8)
        c, bound = 0, np.inf
        for t in range(len(B)):
            score = 0.0
            for j in range(B.shape[1]):
                score += table[j, B[t, j]]
            if -score < bound:
                d[c] = -score
                rows[c] = t
                c += 1
                if c == full:
                    _keep_best(d, rows, c, k)
                    c, bound = k, d[k - 1]
        _keep_best(d, rows, c, k)
        D[i] = d[:k]
        R[i] = rows[:k]
    return D, R


@njit(nogil=True, cache=True)
def _keep_best(d: Any, rows: Any, n: int, k: int) -> None:
    order = np.argsort(d[:n], kind="mergesort")[:k]
    d[: len(order)], rows[: len(order)] = d[order], rows[order]


@njit(nogil=True, cache=True)
def within(Q: Any, B: Any, radius: int) -> Any:
    """Every row of B within the radius: how many a query, distances, rows; ordered by distance, then by row."""
    query, d, rows = np.empty(2 * BLOCK, np.int32), np.empty(2 * BLOCK, np.int32), np.empty(2 * BLOCK, np.int32)
    c = 0
    out = np.empty(BLOCK, np.uint16)
    C = np.empty((B.shape[1], BLOCK), B.dtype)
    by_column = len(Q) > 3 or B.shape[1] < 3
    for j in range(0, len(B), BLOCK):
        some = B[j : j + BLOCK]
        if by_column:
            _columns(some, C)
        for i in range(len(Q)):
            if _distances(Q[i], some, C, by_column, out) <= radius:
                if c + BLOCK > len(d):
                    query, d, rows = _longer(query, c), _longer(d, c), _longer(rows, c)
                c = _pick(out[: len(some)], radius, i, j, query, d, rows, c)
    return _by_query(query[:c], d[:c], rows[:c], len(Q), radius)


@njit(nogil=True, cache=True)
def _pick(out: Any, radius: int, i: int, j: int, query: Any, d: Any, rows: Any, c: int) -> int:
    """Append what is within the radius (a function of its own: arrays that never change are fast)."""
    for t in range(len(out)):
        if out[t] <= radius:
            query[c] = i
            d[c] = out[t]
            rows[c] = j + t
            c += 1
    return c


@njit(nogil=True, cache=True)
def _by_query(query: Any, d: Any, rows: Any, n: int, radius: int) -> Any:
    """Hits in the order of rows → how many a query, distances, rows, by query and distance: a counting sort."""
    slot = np.zeros(n * (radius + 1) + 1, np.int64)
    found = np.zeros(n, np.int64)
    for t in range(len(d)):
        slot[query[t] * (radius + 1) + d[t] + 1] += 1
        found[query[t]] += 1
    for x in range(len(slot) - 1):
        slot[x + 1] += slot[x]
    D, R = np.empty(len(d), np.int32), np.empty(len(d), np.int64)
    for t in range(len(d)):
        x = query[t] * (radius + 1) + d[t]
        D[slot[x]] = d[t]
        R[slot[x]] = rows[t]
        slot[x] += 1
    return found, D, R


@njit(nogil=True, cache=True)
def _longer(a: Any, n: int) -> Any:
    longer = np.empty(2 * len(a), a.dtype)
    longer[:n] = a[:n]
    return longer


# --- Multi-index hashing: rows listed by a few bits of each of m words -----------------------------------------
#
# Of two codes at distance ≤ R, one of m words differs in at most R // m bits, and so do its lowest t bits: all
# rows within R lie in the buckets of those t bits that are that near.


@njit(nogil=True, cache=True)
def list_by_bits(B: Any, m: int, t: int) -> Any:
    """(starts (m, 2^t + 1), order (m, n)): the rows whose word j ends in the bits x are order[j, starts[j, x]:…]."""
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
    """All t-bit patterns of at most so many ones; None if there are more than ``most``."""
    if sum(comb(t, i) for i in range(flips + 1)) > most:
        return None
    ones = [sum(1 << b for b in bits) for i in range(flips + 1) for bits in combinations(range(t), i)]
    return np.array(ones, np.int64)


@njit(nogil=True, cache=True)
def count_by_bits(Q: Any, starts: Any, patterns: Any) -> Any:
    """Rows in the buckets of each query."""
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
    """As ``within``, looking into the buckets only."""
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
            d, rows = _longer(d, c), _longer(rows, c)
        c = _pick_by_bits(Q[i], B, radius, starts, order, patterns, flips, d, rows, c)
        by_row = np.argsort(rows[start:c])
        d[start:c], rows[start:c] = d[start:c][by_row], rows[start:c][by_row]
        _keep_nearest(d[start:c], rows[start:c], c - start, c - start, radius)
        found[i] = c - start
    return found, d[:c].copy(), rows[:c].copy()


@njit(nogil=True, cache=True)
def _pick_by_bits(
    q: Any, B: Any, radius: int, starts: Any, order: Any, patterns: Any, flips: int, d: Any, rows: Any, c: int
) -> int:
    """Append the rows of one query's buckets that are within the radius, each once."""
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
                    again = False  # seen through an earlier word
                    for e in range(j):
                        again |= popcount((B[row, e] ^ q[e]) & low) <= flips
                    if not again:
                        d[c] = distance
                        rows[c] = row
                        c += 1
    return c


# --- A hash table of rows by key: `slots` holds rows of `keys` (n, w), −1 where free -----------------------


@njit(nogil=True, cache=True)
def _slot(slots: Any, keys: Any, key: Any) -> Any:
    """Where a key is, or would go."""
    h = np.uint64(0)
    for w in range(len(key)):
        h = (h ^ np.uint64(key[w])) * np.uint64(0x9E3779B97F4A7C15)
        h ^= h >> np.uint64(29)
    mask = len(slots) - 1
    s = np.int64(h >> np.uint64(8)) & mask
    while slots[s] >= 0:
        same = True
        for w in range(len(key)):
            same &= keys[slots[s], w] == key[w]
        if same:
            break
        s = (s + 1) & mask
    return s


@njit(nogil=True, cache=True)
def put(slots: Any, keys: Any, start: int, stop: int) -> None:
    """Enter rows start … stop − 1; a row replaces an earlier one with its key."""
    for i in range(start, stop):
        slots[_slot(slots, keys, keys[i])] = i


@njit(nogil=True, cache=True)
def find(slots: Any, keys: Any, wanted: Any) -> Any:
    """The rows of some keys; −1 for a key that is not there."""
    rows = np.empty(len(wanted), np.int64)
    for i in range(len(wanted)):
        rows[i] = slots[_slot(slots, keys, wanted[i])]
    return rows


def empty_slots(n: int) -> NDArray[np.int32]:
    """A table for n keys, at most half full."""
    return np.full(1 << max(4, (2 * n - 1).bit_length()), -1, np.int32)


# --- Groups of equal codes --------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def group(slots: Any, B: Any, most: int) -> Any:
    """Rows of B by equal code: (first row of each group, group of each row); nothing beyond ``most`` groups.

    Groups are numbered in the order in which their codes first appear.
    """
    first = np.empty(most, np.int32)
    member_of = np.empty(len(B), np.int32)
    u = 0
    for i in range(len(B)):
        s = _slot(slots, B, B[i])
        if slots[s] < 0:
            if u == most:
                return first[:0], member_of[:0]
            slots[s] = i
            first[u] = i
            member_of[i] = u
            u += 1
        else:
            member_of[i] = member_of[slots[s]]
    return first[:u].copy(), member_of


@njit(nogil=True, cache=True)
def list_members(member_of: Any, u: int) -> Any:
    """(starts, members): the rows of group g are members[starts[g]:starts[g + 1]], ascending."""
    starts = np.zeros(u + 1, np.int32)
    for g in member_of:
        starts[g + 1] += 1
    for g in range(u):
        starts[g + 1] += starts[g]
    place = starts[:-1].copy()
    members = np.empty(len(member_of), np.int32)
    for i in range(len(member_of)):
        members[place[member_of[i]]] = i
        place[member_of[i]] += 1
    return starts, members


@njit(nogil=True, cache=True)
def expand(D: Any, G: Any, starts: Any, members: Any, k: int) -> Any:
    """Groups by key (n_queries, ≥ k groups or all of them) → the k first rows by key, then by row."""
    keys = np.empty((len(D), k), D.dtype)
    rows = np.empty((len(D), k), np.int64)
    marks = np.empty(0, np.uint64)
    for i in range(len(D)):
        marks = _expand(D[i], G[i], starts, members, keys[i], rows[i], marks)
    return keys, rows


@njit(nogil=True, cache=True)
def expand_all(found: Any, D: Any, G: Any, starts: Any, members: Any) -> Any:
    """Groups within the radius, as ``within`` has them → all of their rows in the same form."""
    n_rows = np.zeros(len(found), np.int64)
    c = 0
    for i in range(len(found)):
        for g in G[c : c + found[i]]:
            n_rows[i] += starts[g + 1] - starts[g]
        c += found[i]
    keys = np.empty(n_rows.sum(), D.dtype)
    rows = np.empty(len(keys), np.int64)
    marks = np.empty(0, np.uint64)
    c, p = 0, np.int64(0)
    for i in range(len(found)):
        d, g = D[c : c + found[i]], G[c : c + found[i]]
        marks = _expand(d, g, starts, members, keys[p : p + n_rows[i]], rows[p : p + n_rows[i]], marks)
        c += found[i]
        p += n_rows[i]
    return n_rows, keys, rows


@njit(nogil=True, cache=True)
def _expand(d: Any, g: Any, starts: Any, members: Any, keys: Any, rows: Any, marks: Any) -> Any:
    """Fill keys and rows from groups in ascending order of key; rows of equal key ascend."""
    place, i = 0, 0
    while place < len(rows):
        j, total = i, 0
        while j < len(d) and d[j] == d[i]:  # groups i … j − 1 share a key
            total += starts[g[j] + 1] - starts[g[j]]
            j += 1
        take = min(total, len(rows) - place)
        if j == i + 1:
            s = starts[g[i]]
            rows[place : place + take] = members[s : s + take]
        elif 8 * take < total:
            rows[place : place + take] = _first_merged(g[i:j], starts, members, take)
        elif 256 * total < len(members):
            rows[place : place + take] = _sorted_members(g[i:j], starts, members, total)[:take]
        else:
            if not len(marks):
                marks = np.zeros((len(members) >> 6) + 1, np.uint64)
            _read_off(g[i:j], starts, members, marks, rows[place : place + take])
        keys[place : place + take] = d[i]
        place += take
        i = j
    return marks


@njit(nogil=True, cache=True)
def _sorted_members(g: Any, starts: Any, members: Any, total: int) -> Any:
    """All members of some groups, ascending."""
    rows = np.empty(total, np.int64)
    c = 0
    for x in g:
        for s in range(starts[x], starts[x + 1]):
            rows[c] = members[s]
            c += 1
    rows.sort()
    return rows


@njit(nogil=True, cache=True)
def _read_off(g: Any, starts: Any, members: Any, marks: Any, rows: Any) -> None:
    """The first members of some groups, ascending, by a bit a row; with many this costs less than sorting.

    All marks are zero before and after.
    """
    one = np.uint64(1)
    for x in g:
        for s in range(starts[x], starts[x + 1]):
            marks[members[s] >> 6] |= one << np.uint64(members[s] & 63)
    c = 0
    for w in range(len(marks)):
        word = marks[w]
        if word:
            marks[w] = 0
            while word and c < len(rows):
                rows[c] = 64 * w + np.int64(popcount((word & (~word + one)) - one))
                word &= word - one
                c += 1


@njit(nogil=True, cache=True)
def _first_merged(g: Any, starts: Any, members: Any, k: int) -> Any:
    """The first k members of some groups, ascending: a heap of the k lowest rows so far."""
    heap = [np.int64(-members[starts[g[0]]])]  # negated: the highest of them on top
    heap.pop()
    for x in g:
        for s in range(starts[x], starts[x + 1]):
            row = np.int64(members[s])
            if len(heap) < k:
                heapq.heappush(heap, -row)
            elif row < -heap[0]:
                heapq.heapreplace(heap, -row)
            else:
                break  # members ascend: the rest are higher still
    rows = -np.array(heap)
    rows.sort()
    return rows
