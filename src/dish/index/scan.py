"""Exhaustive scans over codes: the k nearest, all within a radius, the k largest inner products.

Codes are words (n, w), see ``codes.to_words``. Results are sorted by key (distance or negated score), then by row.
The compiled kernels run on one thread and release the GIL; ``over_queries`` splits the queries between threads.
``nearest_numpy`` and ``within_numpy`` return the same results as the kernels without compiling anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish import threads
from dish.codes import byte_table, distances, popcount
from dish.numba_lazy import njit

Found = tuple[NDArray[Any], NDArray[np.int64]]  # keys and rows, both (n_queries, k)
InRadius = tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]  # hits per query; distances and rows

BLOCK = 512  # codes per block: their distances fit into the first-level cache
QUERIES = 128  # queries per task


def over_queries(kernel: Callable[..., Any], Q: NDArray[Any], *args: Any, k: int = 1) -> list[Any]:
    """Return ``kernel(part of Q, *args)`` for consecutive parts of Q, computed in threads."""
    candidates = 2**22 // k  # a query needs memory for about k candidates
    size = max(1, min(QUERIES, candidates, -(-len(Q) // threads.size(len(Q)))))
    return map_threads(lambda part: kernel(part, *args), [Q[i : i + size] for i in range(0, len(Q), size)])


def map_threads(work: Callable[[Any], Any], parts: Sequence[Any]) -> list[Any]:
    """Return ``[work(part) for part in parts]``, computed in threads."""
    results: list[Any] = [None] * len(parts)
    rest = iter(range(len(parts)))  # shared: a thread that is done takes the next part

    def take(_: int) -> None:
        for i in rest:
            results[i] = work(parts[i])

    threads.run(take, threads.size(len(parts)))
    return results


@njit(nogil=True, cache=True)
def _columns(B: Any, C: Any) -> Any:
    """Transpose B (m, w) into the first m columns of C, so that one word of consecutive codes is contiguous."""
    for w in range(B.shape[1]):
        for t in range(len(B)):
            C[w, t] = B[t, w]


@njit(nogil=True, cache=True)
def _some_below(Q: Any, i: int, words: Any, C: Any, n: int, by_column: bool, bound: int) -> bool:
    """Return whether any of n codes may be nearer to Q[i] than ``bound``.

    The codes are given twice: row after row in ``words`` and as columns of C. The test is exact for codes of one and
    two words; longer codes always return True. A negative distance − bound wraps around to a number whose top bit is
    set. The OR of these numbers needs no comparison, so the loops vectorise.
    """
    signs, b = np.uint64(0), np.uint64(bound)
    q, p = np.uint64(Q[i, 0]), np.uint64(Q[i, Q.shape[1] - 1])
    if Q.shape[1] == 1:
        for t in range(len(words)):
            signs |= popcount(np.uint64(words[t]) ^ q) - b
    elif Q.shape[1] == 2 and by_column:
        for t in range(n):
            signs |= popcount(np.uint64(C[0, t]) ^ q) - b + popcount(np.uint64(C[1, t]) ^ p)
    elif Q.shape[1] == 2:
        for t in range(n):
            signs |= popcount(np.uint64(words[2 * t]) ^ q) - b + popcount(np.uint64(words[2 * t + 1]) ^ p)
    else:
        return True
    return signs >> np.uint64(63) != 0


@njit(nogil=True, cache=True)
def _distances(Q: Any, i: int, words: Any, C: Any, n: int, by_column: bool, out: Any) -> Any:
    """Write the Hamming distance between Q[i] and code t to out[t] for all n codes; return the smallest."""
    if Q.shape[1] == 1:
        q = Q[i, 0]
        for t in range(len(words)):
            out[t] = popcount(np.uint64(words[t] ^ q))
    elif by_column:
        for t in range(n):
            out[t] = popcount(C[0, t] ^ Q[i, 0])
        for w in range(1, Q.shape[1]):
            for t in range(n):
                out[t] += popcount(C[w, t] ^ Q[i, w])
    elif Q.shape[1] == 2:
        first, second = Q[i, 0], Q[i, 1]
        for t in range(n):
            out[t] = popcount(words[2 * t] ^ first) + popcount(words[2 * t + 1] ^ second)
    else:
        for t in range(n):
            d = np.uint64(0)
            for w in range(Q.shape[1]):
                d += popcount(words[np.uint64(t * Q.shape[1] + w)] ^ Q[i, w])  # unsigned: no negative indexing
            out[t] = d
    low = out[0]
    for t in range(n):
        low = min(low, out[t])
    return low


@njit(nogil=True, cache=True)
def nearest(Q: Any, B: Any, k: int) -> Any:
    """Return the k nearest codes of B for every query: distances int32 and rows int64, both (n_queries, k).

    Codes nearer than the k-th nearest so far become candidates, in row order. When there are more than 2k candidates
    they are cut back to the k nearest, so the work per candidate does not depend on k. The scan of a query ends when
    k codes equal it.
    """
    n_bits = 8 * B.itemsize * B.shape[1]
    full = 2 * k + 32
    d = np.empty((len(Q), full + BLOCK), np.int32)
    rows = np.empty((len(Q), full + BLOCK), np.int64)
    count = np.zeros(len(Q), np.int64)
    bound = np.full(len(Q), n_bits + 1, np.int64)  # distance of the k-th candidate; later rows must be nearer
    at = np.zeros((len(Q), n_bits + 1), np.int64)  # number of candidates at each distance
    below = np.zeros(len(Q), np.int64)  # number of candidates nearer than the bound
    out = np.empty(BLOCK, np.uint16)
    C = np.empty((B.shape[1], BLOCK), B.dtype)
    by_column = len(Q) > 3 and B.shape[1] > 1
    flat, w = B.ravel(), B.shape[1]
    for j in range(0, len(B), BLOCK):  # queries in the inner loop: each block is read from memory once
        n = min(BLOCK, len(B) - j)
        words = flat[w * j : w * (j + n)]
        if by_column:
            _columns(B[j : j + n], C)
        for i in range(len(Q)):
            if bound[i] == 0 or not _some_below(Q, i, words, C, n, by_column, bound[i]):
                continue
            if _distances(Q, i, words, C, n, by_column, out) < bound[i]:
                c = _pick_nearer(out[:n], j, k, d[i], rows[i], count[i], at[i], bound, below, i)
                if c >= full:
                    keep_nearest(d[i], rows[i], c, k, n_bits)
                    c = k
                count[i] = c
    for i in range(len(Q)):
        keep_nearest(d[i], rows[i], count[i], k, n_bits)
    return d[:, :k].copy(), rows[:, :k].copy()


def nearest_numpy(Q: NDArray[Any], B: NDArray[Any], k: int) -> Found:
    """Return what ``nearest`` returns."""
    n, D, R = len(B), np.empty((len(Q), k), np.int32), np.empty((len(Q), k), np.int64)
    for i in range(len(Q) if k else 0):
        keys = distances(Q[i : i + 1], B)[0] * n + np.arange(n)  # sorts by distance, then by row
        D[i], R[i] = np.divmod(np.sort(np.partition(keys, k - 1)[:k]), n)
    return D, R


@njit(nogil=True, cache=True)
def _pick_nearer(out: Any, j: int, k: int, d: Any, rows: Any, c: int, at: Any, bound: Any, below: Any, i: int) -> int:
    """Append the codes nearer than query i's bound; lower the bound while k candidates are nearer than it."""
    b, n_below = bound[i], below[i]
    for t in range(len(out)):
        if out[t] < b:
            d[c] = out[t]
            rows[c] = j + t
            c += 1
            at[out[t]] += 1
            n_below += 1
            while n_below >= k:
                b -= 1
                n_below -= at[b]
    bound[i], below[i] = b, n_below
    return c


@njit(nogil=True, cache=True)
def keep_nearest(d: Any, rows: Any, n: int, k: int, n_bits: int) -> None:
    """Sort the first n candidates by distance (stable counting sort) and write the first k places."""
    old_d, old_rows = d[:n].copy(), rows[:n].copy()
    slot = np.zeros(n_bits + 2, np.int64)  # slot[x]: place of the next candidate at distance x
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
    """Return the k largest F_i·h over the ±1 codes h of B: −score float64 and rows int64, both (n_queries, k)."""
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
    """Return all rows of B within the radius: hits per query, then distances and rows of the hits, query by query."""
    query, d, rows = np.empty(2 * BLOCK, np.int32), np.empty(2 * BLOCK, np.int32), np.empty(2 * BLOCK, np.int32)
    c = 0
    out = np.empty(BLOCK, np.uint16)
    C = np.empty((B.shape[1], BLOCK), B.dtype)
    by_column = len(Q) > 3 and B.shape[1] > 1
    flat, w = B.ravel(), B.shape[1]
    for j in range(0, len(B), BLOCK):
        n = min(BLOCK, len(B) - j)
        words = flat[w * j : w * (j + n)]
        if by_column:
            _columns(B[j : j + n], C)
        for i in range(len(Q)):
            if not _some_below(Q, i, words, C, n, by_column, radius + 1):
                continue
            if _distances(Q, i, words, C, n, by_column, out) <= radius:
                if c + BLOCK > len(d):
                    query, d, rows = longer(query, c), longer(d, c), longer(rows, c)
                c = _pick(out[:n], radius, i, j, query, d, rows, c)
    return _by_query(query[:c], d[:c], rows[:c], len(Q), radius)


def within_numpy(Q: NDArray[Any], B: NDArray[Any], radius: int) -> InRadius:
    """Return what ``within`` returns."""
    found, parts = np.zeros(len(Q), np.int64), [(np.empty(0, np.int32), np.empty(0, np.int64))]
    for i in range(len(Q)):
        d = distances(Q[i : i + 1], B)[0]
        rows = np.flatnonzero(d <= radius)
        rows = rows[np.argsort(d[rows], kind="stable")]
        found[i] = len(rows)
        parts.append((d[rows].astype(np.int32), rows))
    D, R = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return found, D, R


@njit(nogil=True, cache=True)
def _pick(out: Any, radius: int, i: int, j: int, query: Any, d: Any, rows: Any, c: int) -> int:
    """Append the codes within the radius. (A separate function: numba is faster if the arrays are not reassigned.)"""
    for t in range(len(out)):
        if out[t] <= radius:
            query[c] = i
            d[c] = out[t]
            rows[c] = j + t
            c += 1
    return c


@njit(nogil=True, cache=True)
def _by_query(query: Any, d: Any, rows: Any, n: int, radius: int) -> Any:
    """Sort hits in row order by query and distance (stable counting sort); return them as ``within`` does."""
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
    """Return an array twice as long as ``a`` with the first n entries copied."""
    twice = np.empty(2 * len(a), a.dtype)
    twice[:n] = a[:n]
    return twice
