"""How many true nearest neighbours of float vectors a search by codes finds."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dish.codes import hamming
from dish.errors import InputError
from dish.metrics.relevance import check_k, check_pair
from dish.metrics.scores import top_k_counts
from dish.metrics.sorting import as_floats, l2_distances


def neighbour_recall(
    Xq: ArrayLike,
    q_codes: ArrayLike,
    X: ArrayLike,
    db_codes: ArrayLike,
    *,
    k: int = 10,
    oversampling: tuple[float, ...] = (1, 2, 4, 10),
) -> dict[float, float]:
    """Recall of the k nearest rows by l2 distance, for each oversampling factor.

    The search takes the ``oversampling · k`` nearest codes and sorts them by float distance, so it returns a true
    neighbour if and only if that is among these codes. Factor 1 gives the recall of the codes alone. The recall is
    the mean over all orders of rows at equal Hamming distance. For rows of length one, l2 and cosine order agree.
    """
    Xq, X = as_floats(Xq), as_floats(X)
    Q, B = check_pair(q_codes, db_codes)
    for name, rows, codes in (("Xq", Xq, Q), ("X", X, B)):
        if len(rows) != len(codes):
            raise InputError(f"{name} has {len(rows)} rows for {len(codes)} codes")
    k = check_k(k, len(B))
    shortlists = [min(len(B), round(factor * k)) for factor in oversampling]
    if min(shortlists, default=k) < k:
        raise InputError(f"oversampling must hold factors of at least 1, got {oversampling}")
    found = np.zeros(len(shortlists))
    for i, squared in enumerate(l2_distances(Xq, X)):
        D = hamming(Q[i : i + 1], B)[0]
        counts = np.bincount(D)[None]
        nearest = D[np.argsort(squared, kind="stable")[:k]][None]
        found += [share_found(counts, nearest, places)[0] for places in shortlists]
    return {factor: float(value / len(Q)) for factor, value in zip(oversampling, found, strict=True)}


def share_found(counts: NDArray[np.int64], nearest: NDArray[np.integer], places: int) -> NDArray[np.float64]:
    """The share (n_queries,) of true neighbours among the first ``places`` codes, the mean over all orders of ties.

    ``counts`` has the number of rows at each Hamming distance from each query (n_queries, r + 1), and ``nearest`` the
    Hamming distances of its true neighbours (n_queries, k).
    """
    chance = top_k_counts(counts, places) / np.maximum(counts, 1)
    return np.asarray(np.take_along_axis(chance, nearest, axis=1).mean(1))
