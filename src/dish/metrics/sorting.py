"""MAP of rankings by real numbers, by sorting: real-valued queries, raw vectors, class probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dish import threads
from dish.codes import byte_table, check_codes
from dish.errors import InputError
from dish.metrics.relevance import check_k, match_labels
from dish.numba_lazy import njit


def asymmetric_mean_average_precision(
    F: ArrayLike, q_labels: Any, db_codes: ArrayLike, db_labels: Any, k: int | None = None
) -> float:
    """MAP of ranking database codes by their inner product with the queries' real-valued F (n_queries, r).

    ``F`` is ``hasher.decision_function(queries)``. Ties keep the order of the database.
    """
    F = np.asarray(F, np.float64)
    H = check_codes(db_codes, F.shape[1], name="db_codes")
    y = match_labels(q_labels, db_labels, len(F), len(H))
    k = len(H) if k is None else check_k(k, len(H))
    scores = (_byte_scores(f, H) for f in F)
    return float(np.mean([_sorted_ap(-s, y.relevant(i), k) for i, s in enumerate(scores)]))


def l2_mean_average_precision(
    Xq: ArrayLike, q_labels: Any, X: ArrayLike, labels: Any, k: int | None = None, device: str = "cpu"
) -> float:
    """MAP of ranking raw vectors by l2 distance, the ranking that codes approximate.

    Ties keep the order of the database. ``device`` is the torch device that multiplies and sorts.
    """
    X = as_floats(X)
    return _product_map(2 * as_floats(Xq), q_labels, X, labels, -np.einsum("ij,ij->i", X, X), k, device)


def product_mean_average_precision(
    Pq: ArrayLike, q_labels: Any, P: ArrayLike, labels: Any, k: int | None = None, device: str = "cpu"
) -> float:
    """MAP of ranking rows by their inner product with the query. Ties keep the order of the database.

    For class probabilities p (``DISH.predict_proba``), p(x)·p(x′) is the probability that two rows share a class.
    Codes made from p approximate this ranking. Other rankings, also of codes, can be better.
    """
    Pq, P = as_floats(Pq), as_floats(P)
    return _product_map(Pq, q_labels, P, labels, np.zeros(len(P), P.dtype), k, device)


def _product_map(
    Q: NDArray[Any], q_labels: Any, X: NDArray[Any], labels: Any, offset: NDArray[Any], k: int | None, device: str
) -> float:
    """MAP of ranking rows x by q·x + offset, highest first, 64 queries at a time."""
    import torch

    y = match_labels(q_labels, labels, len(Q), len(X))
    k = len(X) if k is None else check_k(k, len(X))
    rows, added = torch.from_numpy(X).to(device), torch.from_numpy(offset).to(device)
    yq, yb = (torch.from_numpy(words.view(np.int64)).to(device) for words in (y.queries, y.rows))
    queries = torch.from_numpy(Q).to(rows)
    place = torch.arange(1, k + 1, dtype=torch.float64, device=device)
    total = 0.0
    for some in range(0, len(Q), 64):
        block = slice(some, some + 64)
        order = torch.argsort(queries[block] @ rows.T + added, dim=1, descending=True, stable=True)[:, :k]
        both = yq[block, None]  # (block, 1, words)
        relevant = ((both & yb) != 0).any(2) if y.sets else (both == yb).all(2)
        hit = relevant.gather(1, order).double()
        total += float(((hit * hit.cumsum(1) / place).sum(1) / hit.sum(1).clamp(min=1)).sum())
    return total / len(Q)


def as_floats(X: ArrayLike) -> NDArray[Any]:
    """Rows as float32 or float64, because squares and sums of small integers and float16 overflow their type."""
    X = np.asarray(X)
    if X.dtype in (np.float32, np.float64):
        return X
    if X.dtype.kind not in "biuf":
        raise InputError(f"rows must be numbers, got an array of {X.dtype}")
    return X.astype(np.float32 if X.dtype.itemsize == 1 or X.dtype == np.float16 else np.float64)


def l2_distances(Xq: NDArray[Any], X: NDArray[Any]) -> Any:
    """For each query, ‖x‖² − 2x·q of all rows x: this differs from ‖q − x‖² by a constant."""
    norms = np.einsum("ij,ij->i", X, X)
    for start in range(0, len(Xq), 64):
        yield from norms - 2 * (Xq[start : start + 64] @ X.T)


def _sorted_ap(distances: NDArray[Any], relevant: NDArray[np.bool_], k: int) -> float:
    """Average precision of the first k places of one ranking by distance."""
    ranks = np.flatnonzero(relevant[np.argsort(distances, kind="stable")[:k]]) + 1.0
    return float((np.arange(1, len(ranks) + 1) / ranks).mean()) if len(ranks) else 0.0


def _byte_scores(f: NDArray[np.float64], H: NDArray[np.uint8]) -> NDArray[np.float64]:
    """H f for packed ±1 codes, by one table look-up per byte of a code."""
    return np.concatenate(threads.over_rows(_look_up, (H,), byte_table(f, -(-H.shape[1] // 8)), least=1 << 14))


@njit(nogil=True, cache=True)
def _look_up(H: Any, table: Any) -> Any:
    out = np.empty(len(H))
    for i in range(len(H)):
        s = 0.0
        for j in range(H.shape[1]):
            s += table[j, H[i, j]]
        out[i] = s
    return out
