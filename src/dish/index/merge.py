"""Run scans over all queries, and merge results that cover parts of the queries or parts of the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish import numba_lazy, threads
from dish.index import scan

Scan = Callable[..., Any]  # ``scan.nearest`` or ``scan.best_scores``: (Q, B, k) → keys and rows
ROWS = 1 << 18  # least rows per thread when threads split the rows: fewer do not repay waking a thread


def k_best(kernel: Scan, Q: NDArray[Any], B: NDArray[Any], k: int) -> scan.Found:
    """Return the k best rows of B for all queries."""
    if kernel is scan.nearest and not numba_lazy.pays(kernel, len(Q) * len(B)):
        return scan.nearest_numpy(Q, B, k)
    if kernel is scan.nearest and 0 < 2 * len(Q) <= threads.size(len(B) // ROWS):
        return _split_rows(kernel, Q, B, k)
    return stack(scan.over_queries(kernel, Q, B, k, k=k) if k else [], len(Q), k)


def _split_rows(kernel: Scan, Q: NDArray[Any], B: NDArray[Any], k: int) -> scan.Found:
    """Return the k best rows when there are fewer queries than threads: each thread scans a part of the rows."""
    size = -(-len(B) // threads.size(len(B) // ROWS))
    starts = range(0, len(B), size)
    parts = scan.map_threads(lambda i: kernel(Q, B[i : i + size], min(k, len(B[i : i + size]))), starts)
    return merge([(D, R + i) for i, (D, R) in zip(starts, parts, strict=True)], len(Q), k)


def all_within(Q: NDArray[Any], B: NDArray[Any], radius: int) -> scan.InRadius:
    """Return all rows of B within the radius of all queries."""
    if not numba_lazy.pays(scan.within, len(Q) * len(B)):
        return scan.within_numpy(Q, B, radius)
    return concatenate(scan.over_queries(scan.within, Q, B, radius))


def stack(parts: list[scan.Found], n: int, k: int) -> scan.Found:
    """Join the k best rows of consecutive parts of n queries."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return np.empty((n, k), np.int32), np.empty((n, k), np.int64)
    return np.concatenate([D for D, _ in parts]), np.concatenate([R for _, R in parts])


def concatenate(parts: list[Any]) -> scan.InRadius:
    """Join the radius results of consecutive parts of the queries."""
    if len(parts) == 1:
        joined: scan.InRadius = parts[0]
        return joined
    empty = (np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int64))
    found, D, R = (np.concatenate(arrays) for arrays in zip(empty, *parts, strict=True))
    return found, D, R


def merge(parts: list[scan.Found], n: int, k: int) -> scan.Found:
    """Merge the best rows of consecutive parts of the rows into the k best; ties stay in row order."""
    if len(parts) < 2:
        return parts[0] if parts else stack([], n, 0)
    D, R = (np.concatenate([part[i] for part in parts], axis=1) for i in (0, 1))
    order = np.argsort(D, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(D, order, 1), np.take_along_axis(R, order, 1)


def merge_within(parts: list[Any], n: int, deleted: NDArray[np.int64], limit: int | None) -> scan.InRadius:
    """Merge the radius results of n queries over parts of the rows into (lims, distances, rows).

    The parts are consecutive; rows may also be given by their ids. Deleted rows are dropped, and each query keeps at
    most ``limit`` hits, the nearest first.
    """
    found, D, R = concatenate(parts)
    if len(parts) > 1 or len(deleted):
        query = np.concatenate([np.repeat(np.arange(n), part[0]) for part in parts])
        if len(deleted):
            alive = ~np.isin(R, deleted)
            query, D, R = query[alive], D[alive], R[alive]
        order = np.lexsort((D, query))  # stable: ties stay in row order
        found, D, R = np.bincount(query, minlength=n), D[order], R[order]
    if limit is not None and (found > limit).any():
        ends = np.cumsum(found)
        first = np.arange(len(D)) - np.repeat(ends - found, found) < limit
        found, D, R = np.minimum(found, limit), D[first], R[first]
    lims = np.zeros(n + 1, np.int64)
    np.cumsum(found, out=lims[1:])
    return lims, D, R


def drop_deleted(deleted: NDArray[np.int64], D: NDArray[Any], R: NDArray[np.int64], k: int) -> scan.Found:
    """Return the first k rows of each query that are not deleted; every query must have that many."""
    if not len(deleted):
        return D, R
    alive = ~np.isin(R, deleted)
    kept = alive & (np.cumsum(alive, axis=1) <= k)
    return D[kept].reshape(len(D), k), R[kept].reshape(len(D), k)
