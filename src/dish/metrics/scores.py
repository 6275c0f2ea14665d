"""MAP, precision and recall from distance histograms: nothing is sorted.

Rows at the same distance are tied. ``ties="expected"`` gives the exact mean over all their orders, ``ties="stable"``
keeps them in database order, as a stable sort does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import digamma

from dish import threads
from dish.checks import check_integer, check_option
from dish.codes import as_words
from dish.lazy import Tensor, torch
from dish.metrics.counting import Histograms, distance, histograms, is_relevant
from dish.metrics.relevance import check_k, check_pair, match_labels
from dish.numba_lazy import njit

Floats = NDArray[np.float64]


def mean_average_precision(
    q_codes: ArrayLike,
    q_labels: Any,
    db_codes: ArrayLike,
    db_labels: Any,
    k: int | None = None,
    ties: str = "expected",
    denominator: str = "found",
) -> float:
    """MAP of the Hamming ranking. A query without relevant rows counts 0.

    Parameters
    ----------
    q_codes, db_codes : uint8 (n, ceil(n_bits / 8))
        Packed codes of the queries and of the database.
    q_labels, db_labels : (n,) classes, or (n, l) of 0 and 1
        A row is relevant if it has the query's class, or shares a label with it.
    k : int or None, default=None
        MAP@k: only the first k places count.
    ties : "expected" or "stable", default="expected"
        Order of rows at equal distance: the mean over all orders, or database order.
    denominator : "found" or "possible", default="found"
        With ``k``, the sum of precisions is divided by the number of relevant rows found in the first k places (for
        expected ties, by their expected number), or by the largest possible number, min(relevant rows, k).

    Examples
    --------
    >>> import numpy as np
    >>> from dish import metrics
    >>> database = np.array([[0b00000001], [0b00000011], [0b00000111]], np.uint8)
    >>> round(metrics.mean_average_precision(np.zeros((1, 1), np.uint8), ["a"], database, ["a", "b", "a"]), 3)
    0.833
    """
    check_option("ties", ties, ("expected", "stable"))
    check_option("denominator", denominator, ("found", "possible"))
    Q, B = check_pair(q_codes, db_codes)
    k = len(B) if k is None else check_k(k, len(B))
    if ties == "expected":
        h = histograms(Q, q_labels, B, db_labels)
        return float(expected_average_precision(h, k, denominator).mean())
    y = match_labels(q_labels, db_labels, len(Q), len(B))
    rest = as_words(B), y.rows, y.sets, 8 * Q.shape[1], k
    parts = threads.over_rows(_stable_sums, (as_words(Q), y.queries), *rest)
    sums, found, relevant = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return float((sums / np.maximum(found if denominator == "found" else np.minimum(relevant, k), 1)).mean())


def expected_average_precision(h: Histograms, k: int | None = None, denominator: str = "found") -> Any:
    """Average precision of every query (n_queries,), in expectation over the order of rows at equal distance.

    The histograms may hold NumPy arrays or torch tensors on any device; the result is of the same kind.

    Let a group of g rows at one distance, ρ of them relevant, follow a rows, R of them relevant. The j-th row of the
    group is relevant with probability ρ/g, and R + 1 + (j−1)(ρ−1)/(g−1) relevant rows are then expected up to and
    including it. Summed over j ≤ t (t = g, or the places left up to k), with Σ = Σ_{j ≤ t} 1/(a+j):

        ρ/g · [ (R + 1) Σ + (ρ−1)/(g−1) · (t − (a+1) Σ) ] .
    """
    xp: Any = torch if isinstance(h.all_, Tensor) else np
    g, rho = xp.asarray(h.all_, dtype=xp.float64), xp.asarray(h.relevant, dtype=xp.float64)
    a, R = g.cumsum(1) - g, rho.cumsum(1) - rho
    t = g if k is None else xp.minimum((k - a).clip(min=0), g)
    harmonic = harmonic_sum(a, t)
    step = (rho - 1) / (g - 1).clip(min=1)
    share = rho / g.clip(min=1)
    precisions = (share * ((R + 1) * harmonic + step * (t - (a + 1) * harmonic))).sum(1)
    counted = (share * t).sum(1) if denominator == "found" else rho.sum(1).clip(max=float("inf") if k is None else k)
    return precisions / xp.where(counted > 0, counted, 1.0)


def harmonic_sum(a: Any, t: Any) -> Any:
    """Σ_{j ≤ t} 1/(a + j), for NumPy arrays or torch tensors."""
    digamma_of = torch.digamma if isinstance(a, Tensor) else digamma
    return digamma_of(a + t + 1) - digamma_of(a + 1)


def precision_within_radius(
    q_codes: ArrayLike, q_labels: Any, db_codes: ArrayLike, db_labels: Any, radius: int = 2
) -> float:
    """Mean share of relevant rows among those at distance ≤ radius; a query with no rows there counts 0."""
    return float(within_radius(histograms(q_codes, q_labels, db_codes, db_labels), radius)[0].mean())


def recall_within_radius(
    q_codes: ArrayLike, q_labels: Any, db_codes: ArrayLike, db_labels: Any, radius: int = 2
) -> float:
    """Mean share of a query's relevant rows that lie at distance ≤ radius; a query without relevant rows counts 0."""
    return float(within_radius(histograms(q_codes, q_labels, db_codes, db_labels), radius)[1].mean())


def f1_within_radius(
    q_codes: ArrayLike, q_labels: Any, db_codes: ArrayLike, db_labels: Any, radius: int = 2
) -> float:
    """Mean over queries of 2PR/(P + R) with precision P and recall R within the radius; 0 if both are 0."""
    precision, recall, _ = within_radius(histograms(q_codes, q_labels, db_codes, db_labels), radius)
    return float(f1(precision, recall).mean())


def precision_at_k(q_codes: ArrayLike, q_labels: Any, db_codes: ArrayLike, db_labels: Any, k: int = 100) -> float:
    """Mean share of relevant rows among the k nearest, in expectation over the order of ties."""
    h = histograms(q_codes, q_labels, db_codes, db_labels)
    k = check_k(k, int(h.all_[0].sum()))
    return float(found_at(h, k).mean() / k)


def recall_at_k(q_codes: ArrayLike, q_labels: Any, db_codes: ArrayLike, db_labels: Any, k: int = 100) -> float:
    """Mean share of a query's relevant rows that are among the k nearest; a query without relevant rows counts 0."""
    h = histograms(q_codes, q_labels, db_codes, db_labels)
    return float(recall_at(h, check_k(k, int(h.all_[0].sum()))).mean())


def precision_recall_curve(
    q_codes: ArrayLike, q_labels: Any, db_codes: ArrayLike, db_labels: Any
) -> tuple[Floats, Floats]:
    """Precision and recall within radius 0, 1, …, r, over the pairs of all queries."""
    return curve(histograms(q_codes, q_labels, db_codes, db_labels))


# --- from histograms --------------------------------------------------------------------------------------


def within_radius(h: Histograms, radius: int) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Precision, recall and number of rows at distance ≤ radius, per query."""
    check_integer("radius", radius, low=0)
    size, relevant = h.all_[:, : radius + 1].sum(1), h.relevant[:, : radius + 1].sum(1)
    return relevant / np.maximum(size, 1), relevant / np.maximum(h.relevant.sum(1), 1), size


def f1(precision: Floats, recall: Floats) -> Floats:
    """The harmonic mean 2PR/(P + R)."""
    both = precision + recall
    return np.asarray(2 * precision * recall / np.where(both > 0, both, 1))


def found_at(h: Histograms, k: int) -> Floats:
    """Expected number of relevant rows among the k nearest, per query."""
    return np.asarray((h.relevant / np.maximum(h.all_, 1) * top_k_counts(h.all_, k)).sum(1))


def recall_at(h: Histograms, k: int) -> Floats:
    """Expected share of the relevant rows that are among the k nearest, per query."""
    return np.asarray(found_at(h, k) / np.maximum(h.relevant.sum(1), 1))


def top_k_counts(counts: NDArray[np.int64], k: int) -> NDArray[np.int64]:
    """How many of the ``counts`` rows at each distance (n_queries, r + 1) are among the k nearest."""
    return np.clip(k - (np.cumsum(counts, 1) - counts), 0, counts)


def curve(h: Histograms) -> tuple[Floats, Floats]:
    """Precision and recall by radius, over the pairs of all queries."""
    found, relevant = np.cumsum(h.all_.sum(0)), np.cumsum(h.relevant.sum(0))
    return relevant / np.maximum(found, 1), relevant / max(int(relevant[-1]), 1)


@njit(nogil=True, cache=True)
def _stable_sums(Q: Any, yq: Any, B: Any, yb: Any, sets: bool, r: int, k: int) -> Any:
    """Per query: Σ precisions over the relevant rows in the first k places, their number, and all relevant rows.

    Rows at equal distance keep their order. Counts give the place of each row, without sorting.
    """
    sums = np.zeros(len(Q))
    n_found, n_relevant = np.zeros(len(Q), np.int64), np.zeros(len(Q), np.int64)
    for i in range(len(Q)):
        count = np.zeros((r + 2, 2), np.int64)
        for j in range(len(B)):
            d = distance(Q, i, B, j)
            count[d + 1, 0] += 1
            count[d + 1, 1] += is_relevant(yq, i, yb, j, sets)
        rank, found = np.cumsum(count[:, 0]), np.cumsum(count[:, 1])  # rows at smaller distances
        n_relevant[i] = found[-1]
        for j in range(len(B)):
            d = distance(Q, i, B, j)
            rank[d] += 1
            if is_relevant(yq, i, yb, j, sets):
                found[d] += 1
                if rank[d] <= k:
                    sums[i] += found[d] / rank[d]
                    n_found[i] += 1
    return sums, n_found, n_relevant
