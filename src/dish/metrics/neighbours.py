"""How many of the true nearest neighbours of float vectors the codes find, with oversampling and rescoring."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from dish.codes import hamming
from dish.errors import InputError
from dish.metrics.relevance import check_k, check_pair
from dish.metrics.scores import taken
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
    """Share of the k nearest rows by l2 distance that a search by codes returns, by oversampling factor.

    The search takes the ``oversampling · k`` nearest codes and orders these by the float distance: so a true
    neighbour is returned exactly if it is among them. With factor 1 that is the recall of the codes alone. Rows at
    the same Hamming distance are taken in expectation over their orders. (Rows of length one: by cosine.)
    """
    Xq, X = as_floats(Xq), as_floats(X)
    Q, B = check_pair(q_codes, db_codes)
    for name, rows, codes in (("Xq", Xq, Q), ("X", X, B)):
        if len(rows) != len(codes):
            raise InputError(f"{name} has {len(rows)} rows for {len(codes)} codes")
    k = check_k(k, len(B))
    shortlists = [min(len(B), round(factor * k)) for factor in oversampling]
    if min(shortlists, default=k) < k:
        raise InputError(f"oversampling must be factors of at least 1, got {oversampling}")
    found = np.zeros(len(shortlists))
    for i, squared in enumerate(l2_distances(Xq, X)):
        D = hamming(Q[i : i + 1], B)[0]
        counts = np.bincount(D)[None]
        nearest = D[np.argsort(squared, kind="stable")[:k]]  # Hamming distances of the true neighbours
        for s, places in enumerate(shortlists):
            chance = taken(counts, places)[0] / np.maximum(counts[0], 1)
            found[s] += chance[nearest].mean()
    return {factor: float(value / len(Q)) for factor, value in zip(oversampling, found, strict=True)}
