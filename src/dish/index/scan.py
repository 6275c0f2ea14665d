"""Scans over packed codes, with answers in a stated order.

Codes are words here, (n, w) unsigned integers. Every kernel runs on one thread and without Python's lock;
``in_threads`` shares the queries out. Of equal keys (distances, negated scores) the lower row comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.codes import byte_table, popcount
from dish.compiled import njit, threads

Found = tuple[NDArray[Any], NDArray[np.int64]]  # keys and rows, both (n_queries, k)

BLOCK = 512  # codes whose distances are taken at a time: they stay in the first-level cache
QUERIES = 128  # per task


def in_threads(kernel: Callable[..., Any], Q: NDArray[Any], *args: Any, k: int = 1) -> list[Any]:
    """``kernel(some of Q, *args)`` for all of Q, on as many threads as numba may use; results in order.

    With a large k, fewer queries at a time: each needs room for some k candidates.
    """
    n_threads = threads()
    size = max(1, min(QUERIES, 2**22 // k, -(-len(Q) // n_threads)))
    return share_out(lambda part: kernel(part, *args), [Q[i : i + size] for i in range(0, len(Q), size)])


def share_out(work: Callable[[Any], Any], parts: Sequence[Any]) -> list[Any]:
    """``work`` on every part, on as many threads as numba may use; results in order."""
    n_threads = min(threads(), len(parts))
    if n_threads < 2:
        return [work(part) for part in parts]
    with ThreadPoolExecutor(n_threads) as pool:
        return list(pool.map(work, parts))


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
    there are twice as many: constant work per candidate, whatever k is.
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
                    keep_nearest(d[i], rows[i], c, k, n_bits)
                    c = k
                    bound[i] = d[i, k - 1]  # a later row at the same distance comes after: not needed
                count[i] = c
    for i in range(len(Q)):
        keep_nearest(d[i], rows[i], count[i], k, n_bits)
    return d[:, :k].copy(), rows[:, :k].copy()


@njit(nogil=True, cache=True)
def keep_nearest(d: Any, rows: Any, n: int, k: int, n_bits: int) -> None:
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
    """Every row of B within the radius: how many per query, distances, rows; ordered by distance, then by row."""
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
                    query, d, rows = longer(query, c), longer(d, c), longer(rows, c)
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
    """Hits in the order of rows → how many per query, distances, rows, by query and distance: a counting sort."""
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
def longer(a: Any, n: int) -> Any:
    """The first n entries of ``a``, with room for twice as many."""
    twice = np.empty(2 * len(a), a.dtype)
    twice[:n] = a[:n]
    return twice
