"""Order a shortlist of rows by something finer than Hamming distance: real outputs, or the rows' float vectors.

The shortlist of a query is its row of ``R``, sorted by Hamming distance, then by insertion order.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dish.checks import check_integer, check_option
from dish.errors import InputError
from dish.ids_and_labels import Ids, as_ids
from dish.index import scan
from dish.index.merge import stack
from dish.io.readers import read_npy

RESCORES = ("asymmetric", "float")


def shortlist_size(k: int, shortlist: int | None) -> int:
    """Return the number of candidates per query; None: 10 k, at least 100."""
    return check_integer("shortlist", max(100, 10 * k) if shortlist is None else shortlist, low=k)


def by_outputs(F: NDArray[np.float64], codes: NDArray[Any], R: NDArray[np.int64], k: int) -> scan.Found:
    """Return the k rows with the largest F_i·h of each query as (−F·h, rows); equal ones in insertion order."""
    k = min(k, R.shape[1])
    R = np.sort(R, axis=1)  # equal scores then come in row order
    parts = []
    for i in range(len(F) if k else 0):
        D, r = scan.best_scores(F[i : i + 1], codes[R[i]], k)
        parts.append((D, R[i][r]))
    return stack(parts, len(F), k)


def _cosine(V: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    norms = np.sqrt(_dot(V, V)) * np.sqrt(_dot(q, q))
    return np.divide(_dot(V, q), norms, out=np.zeros(len(V)), where=norms != 0)  # NaN stays NaN


def _dot(V: NDArray[np.float64], q: NDArray[np.float64]) -> Any:
    return (V * q).sum(axis=-1)  # row by row: a matrix product may round equal rows differently


def _negated_distance(V: NDArray[np.float64], q: NDArray[np.float64]) -> Any:
    return -np.sqrt(_dot(V - q, V - q))


METRICS: dict[str, Callable[[NDArray[np.float64], NDArray[np.float64]], Any]] = {
    "cosine": _cosine,  # 0 if one of the vectors is 0
    "dot": _dot,
    "l2": _negated_distance,
}


@dataclass(frozen=True, eq=False)
class FloatVectors:
    """Float vectors of ids, read row by row: an array, or a memory map that stays in its file."""

    rows: NDArray[Any]  # (n, d)
    metric: str
    sorted_ids: Ids | None = None  # None: row i belongs to id i
    order: NDArray[np.int64] | None = None  # the row of each sorted id

    @classmethod
    def of(cls, vectors: Any, ids: ArrayLike | None, metric: str) -> Self:
        """Validate vectors (or open the .npy file of this name) and their ids."""
        check_option("metric", metric, tuple(METRICS))
        rows = read_npy(vectors, mmap_mode="r") if isinstance(vectors, str | os.PathLike) else np.asanyarray(vectors)
        if rows.ndim != 2 or rows.dtype.kind not in "fiu":
            raise InputError(f"vectors must be a matrix of numbers (n, d), got {rows.dtype} of shape {rows.shape}")
        if ids is None:
            return cls(rows, metric)
        given = as_ids(ids)
        if len(given) != len(rows):
            raise InputError(f"ids has {len(given):,} entries for {len(rows):,} vectors")
        order = np.argsort(given, kind="stable")
        ordered = given[order]
        repeated = np.flatnonzero(ordered[1:] == ordered[:-1])
        if len(repeated):
            raise InputError(f"ids must be distinct, but {ordered[repeated].tolist()[0]!r} occurs twice")
        return cls(rows, metric, ordered, order)

    def rows_of(self, ids: Ids) -> NDArray[np.int64]:
        """Return the row of each id's vector, −1 if there is none."""
        if self.sorted_ids is None or self.order is None:
            if ids.dtype == object:
                return np.full(ids.shape, -1)
            return np.where((ids >= 0) & (ids < len(self.rows)), ids, -1)
        if not len(self.sorted_ids) or self.sorted_ids.dtype != ids.dtype:
            return np.full(ids.shape, -1)
        place = np.minimum(np.searchsorted(self.sorted_ids, ids), len(self.sorted_ids) - 1)
        return np.where(self.sorted_ids[place] == ids, self.order[place], -1)

    def check_queries(self, query_vectors: ArrayLike | None, n: int) -> NDArray[np.float64]:
        """Validate one vector per query."""
        d = self.rows.shape[1]
        if query_vectors is None:
            raise InputError(f"rescore='float' needs query_vectors: the float vectors of the queries, ({n}, {d})")
        given = np.asarray(query_vectors)
        if given.dtype.kind not in "fiu" or given.shape != (n, d):
            raise InputError(
                f"query_vectors must be numbers of shape ({n}, {d}): one row per query, as wide as the attached "
                f"vectors; got {given.dtype} of shape {given.shape}"
            )
        vectors = given.astype(np.float64)
        if not np.isfinite(vectors).all():
            raise InputError("query_vectors must be finite, but contain NaN or infinity")
        return vectors

    def best(self, Q: NDArray[np.float64], R: NDArray[np.int64], ids: Ids, k: int) -> scan.Found:
        """Return the k most similar rows of each query as (similarity float32, rows); ``ids`` are the ids of R.

        Equally similar rows stay in the order of R.
        """
        k = min(k, R.shape[1])
        at = self.rows_of(ids)
        if (at < 0).any():
            raise InputError(
                f"id {ids[at < 0].tolist()[0]!r} has no vector, but rescore='float' needs one for every row of the "
                "shortlist: attach vectors for all ids of the index"
            )

        def one(i: int) -> scan.Found:
            S = METRICS[self.metric](np.asarray(self.rows[at[i]], np.float64), Q[i]).astype(np.float32)
            if not np.isfinite(S).all():
                raise InputError(f"the vector of id {ids[i][~np.isfinite(S)].tolist()[0]!r} has no finite similarity")
            order = np.argsort(-S, kind="stable")[:k]
            return S[None, order], R[i : i + 1, order]

        parts = scan.map_threads(one, range(len(Q) if k else 0))
        D, R = stack(parts, len(Q), k)
        return D.astype(np.float32, copy=False), R
