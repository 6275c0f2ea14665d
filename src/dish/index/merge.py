"""Answers of the kernels: over all queries, merged over stretches of rows, without deleted rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish import threads
from dish.codes import distances
from dish.index import scan
from dish.numba_lazy import pays

Kernel = Callable[..., Any]  # (queries, codes, k) → keys and rows, ascending by key, then by row
ROWS = 1 << 18  # per thread at least, where threads share the rows of one query: it must pay to wake one


def run(kernel: Kernel, Q: NDArray[Any], B: NDArray[Any], k: int) -> scan.Found:
    """A kernel over all queries."""
    if kernel is scan.nearest and not pays(kernel, len(Q) * len(B)):
        return nearest_of_few(Q, B, k)
    if kernel is scan.nearest and 0 < 2 * len(Q) <= threads.size(len(B) // ROWS):
        return _over_rows(kernel, Q, B, k)
    return stacked(scan.in_threads(kernel, Q, B, k, k=k) if k else [], len(Q), k)


def _over_rows(kernel: Kernel, Q: NDArray[Any], B: NDArray[Any], k: int) -> scan.Found:
    """A kernel with few queries: the threads share the rows."""
    size = -(-len(B) // threads.size(len(B) // ROWS))
    starts = range(0, len(B), size)
    parts = scan.share_out(lambda i: kernel(Q, B[i : i + size], min(k, len(B[i : i + size]))), starts)
    return merge([(D, R + i) for i, (D, R) in zip(starts, parts, strict=True)], len(Q), k)


def run_within(Q: NDArray[Any], B: NDArray[Any], radius: int) -> Any:
    """``scan.within`` over all queries."""
    if not pays(scan.within, len(Q) * len(B)):
        return within_few(Q, B, radius)
    return joined(scan.in_threads(scan.within, Q, B, radius))


def nearest_of_few(Q: NDArray[Any], B: NDArray[Any], k: int) -> scan.Found:
    """``scan.nearest`` by NumPy."""
    n, D, R = len(B), np.empty((len(Q), k), np.int32), np.empty((len(Q), k), np.int64)
    for i in range(len(Q) if k else 0):
        keys = distances(Q[i : i + 1], B)[0] * n + np.arange(n)  # by distance, then by row
        D[i], R[i] = np.divmod(np.sort(np.partition(keys, k - 1)[:k]), n)
    return D, R


def within_few(Q: NDArray[Any], B: NDArray[Any], radius: int) -> Any:
    """``scan.within`` by NumPy."""
    found, parts = np.zeros(len(Q), np.int64), [(np.empty(0, np.int32), np.empty(0, np.int64))]
    for i in range(len(Q)):
        d = distances(Q[i : i + 1], B)[0]
        rows = np.flatnonzero(d <= radius)
        rows = rows[np.argsort(d[rows], kind="stable")]
        found[i] = len(rows)
        parts.append((d[rows].astype(np.int32), rows))
    D, R = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return found, D, R


def stacked(parts: list[scan.Found], n: int, k: int) -> scan.Found:
    """Answers to one part of the queries after another, as one."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return np.empty((n, k), np.int32), np.empty((n, k), np.int64)
    return np.concatenate([D for D, _ in parts]), np.concatenate([R for _, R in parts])


def joined(parts: list[Any]) -> Any:
    """The same of radius searches."""
    if len(parts) == 1:
        return parts[0]
    empty = (np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int64))
    return tuple(np.concatenate(arrays) for arrays in zip(empty, *parts, strict=True))


def merge(parts: list[scan.Found], n: int, k: int) -> scan.Found:
    """Answers over one stretch of rows after another → the first k by key; a stable sort keeps rows in order."""
    if len(parts) < 2:
        return parts[0] if parts else stacked([], n, 0)
    D, R = (np.concatenate([part[i] for part in parts], axis=1) for i in (0, 1))
    order = np.argsort(D, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(D, order, 1), np.take_along_axis(R, order, 1)


def merge_within(parts: list[Any], n: int, deleted: NDArray[np.int64], limit: int | None) -> Any:
    """(how many, distances, rows) over stretches of rows → (lims, distances, rows) of the first ``limit`` of a query.

    Deleted rows are left out.
    """
    found, D, R = joined(parts)
    if len(parts) > 1 or len(deleted):
        query = np.concatenate([np.repeat(np.arange(n), part[0]) for part in parts])
        alive = ~np.isin(R, deleted)
        query, D, R = query[alive], D[alive], R[alive]
        order = np.lexsort((R, D, query))
        found, D, R = np.bincount(query, minlength=n), D[order], R[order]
    if limit is not None and (found > limit).any():
        ends = np.cumsum(found)
        first = np.arange(len(D)) - np.repeat(ends - found, found) < limit
        found, D, R = np.minimum(found, limit), D[first], R[first]
    lims = np.zeros(n + 1, np.int64)
    np.cumsum(found, out=lims[1:])
    return lims, D, R


def without(deleted: NDArray[np.int64], D: NDArray[Any], R: NDArray[np.int64], k: int) -> scan.Found:
    """The first k of each line that are not deleted; each line has that many."""
    if not len(deleted):
        return D, R
    alive = ~np.isin(R, deleted)
    kept = alive & (np.cumsum(alive, axis=1) <= k)
    return D[kept].reshape(len(D), k), R[kept].reshape(len(D), k)


def rerank(F: NDArray[np.float64], codes: NDArray[Any], R: NDArray[np.int64], k: int) -> scan.Found:
    """The k best by inner product of each line of candidates."""
    k = min(k, R.shape[1])
    R = np.sort(R, axis=1)  # equal scores in the order of rows
    parts = []
    for i in range(len(F) if k else 0):
        D, r = scan.best_scores(F[i : i + 1], codes[R[i]], k)
        parts.append((D, R[i][r]))
    return stacked(parts, len(F), k)
