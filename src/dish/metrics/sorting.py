"""MAP of rankings by real numbers, which have to be sorted: real-valued queries, and the raw vectors themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dish.codes import byte_table, check_codes
from dish.compiled import njit, prange
from dish.metrics.relevance import check_k, match_labels


def asymmetric_mean_average_precision(
    F: ArrayLike, q_labels: Any, db_codes: ArrayLike, db_labels: Any, k: int | None = None
) -> float:
    """MAP of ranking database codes by their inner product with the queries' real-valued F (n_queries, r).

    ``F`` is ``hasher.decision_function(queries)``: only the database is rounded to bits. Equal scores come in
    database order.
    """
    F = np.asarray(F, np.float64)
    H = check_codes(db_codes, F.shape[1], name="db_codes")
    y = match_labels(q_labels, db_labels, len(F), len(H))
    k = len(H) if k is None else check_k(k, len(H))
    scores = (_byte_scores(f, H) for f in F)
    return float(np.mean([_sorted_ap(-s, y.relevant(i), k) for i, s in enumerate(scores)]))


def l2_mean_average_precision(Xq: ArrayLike, q_labels: Any, X: ArrayLike, labels: Any, k: int | None = None) -> float:
    """MAP of ranking raw vectors by l2 distance: what the codes replace. Equal distances in database order."""
    Xq, X = as_floats(Xq), as_floats(X)
    y = match_labels(q_labels, labels, len(Xq), len(X))
    k = len(X) if k is None else check_k(k, len(X))
    precisions = [_sorted_ap(d, y.relevant(i), k) for i, d in enumerate(l2_distances(Xq, X))]
    return float(np.mean(precisions))


def as_floats(X: ArrayLike) -> NDArray[Any]:
    """Rows as float32 or float64: the squares and sums of small integers and of float16 would overflow their type."""
    X = np.asarray(X)
    if X.dtype in (np.float32, np.float64):
        return X
    if X.dtype.kind not in "biuf":
        raise ValueError(f"rows must be numbers, got {X.dtype}")
    return X.astype(np.float32 if X.dtype.itemsize == 1 or X.dtype == np.float16 else np.float64)


def l2_distances(Xq: NDArray[Any], X: NDArray[Any]) -> Any:
    """‖x‖² − 2x·q over the rows x, which has the order of ‖q − x‖², for one query after the other."""
    norms = np.einsum("ij,ij->i", X, X)
    for start in range(0, len(Xq), 64):
        yield from norms - 2 * (Xq[start : start + 64] @ X.T)


def _sorted_ap(distances: NDArray[Any], relevant: NDArray[np.bool_], k: int) -> float:
    """Average precision at k of one ranking by distance."""
    ranks = np.flatnonzero(relevant[np.argsort(distances, kind="stable")[:k]]) + 1.0
    return float((np.arange(1, len(ranks) + 1) / ranks).mean()) if len(ranks) else 0.0


def _byte_scores(f: NDArray[np.float64], H: NDArray[np.uint8]) -> NDArray[np.float64]:
    """H f for packed ±1 codes: a table look-up for every byte of a code."""
    return np.asarray(_look_up(byte_table(f, -(-H.shape[1] // 8)), H))


@njit(parallel=True, cache=True)
def _look_up(table: Any, H: Any) -> Any:
    out = np.empty(len(H))
    for i in prange(len(H)):
        s = 0.0
        for j in range(H.shape[1]):
            s += table[j, H[i, j]]
        out[i] = s
    return out
