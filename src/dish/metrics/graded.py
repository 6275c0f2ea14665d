"""Graded relevance: rows that share more labels with a query count more. ACG, NDCG and weighted MAP.

The grade of a row is the number of labels that it shares with the query (0 or 1 for classes); its gain is
2^grade − 1. Every score is the exact mean over all orders of rows at equal distance, as for MAP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dish import threads
from dish.codes import as_words, popcount
from dish.metrics.counting import distance
from dish.metrics.relevance import Labels, check_k, check_pair, match_labels
from dish.metrics.scores import Floats, harmonic_sum, top_k_counts
from dish.numba_lazy import njit


@dataclass
class Grades:
    """Per query and distance, (n_queries, r + 1): rows, relevant rows, sum of grades, sum of gains.

    ``by_grade`` (n_queries, highest grade + 1) counts the rows of each grade, which gives the ideal ranking.
    """

    all_: NDArray[np.int64]
    relevant: NDArray[np.int64]
    grades: Floats
    gains: Floats
    by_grade: NDArray[np.int64]


def average_cumulative_gain(
    q_codes: ArrayLike, q_labels: Any, db_codes: ArrayLike, db_labels: Any, k: int = 100
) -> float:
    """ACG@k: the mean grade of the k nearest rows."""
    h, k = _grades_and_k(q_codes, q_labels, db_codes, db_labels, k)
    return float((h.grades / np.maximum(h.all_, 1) * top_k_counts(h.all_, k)).sum(1).mean() / k)


def normalized_discounted_cumulative_gain(
    q_codes: ArrayLike, q_labels: Any, db_codes: ArrayLike, db_labels: Any, k: int | None = None
) -> float:
    """NDCG@k: Σ gain / log₂(1 + place) over the k nearest rows, divided by that of the ideal ranking.

    A query without relevant rows counts 0.
    """
    h, k = _grades_and_k(q_codes, q_labels, db_codes, db_labels, k)
    gained = (h.gains / np.maximum(h.all_, 1) * _discounts(h.all_, k)).sum(1)
    highest_first = h.by_grade[:, ::-1]
    gain = np.exp2(np.arange(highest_first.shape[1])[::-1]) - 1
    ideal = (gain * _discounts(highest_first, k)).sum(1)
    return float((gained / np.where(ideal > 0, ideal, 1)).mean())


def _discounts(counts: NDArray[np.int64], k: int) -> Floats:
    """Σ 1/log₂(1 + place) over the places ≤ k of each group; ``counts`` (n_queries, groups) in ranking order."""
    sums = np.concatenate([[0.0], np.cumsum(1 / np.log2(np.arange(2, k + 2)))])  # over the first 0, 1, …, k places
    ends = np.cumsum(counts, 1)
    return np.asarray(sums[np.minimum(ends, k)] - sums[np.minimum(ends - counts, k)])


def weighted_mean_average_precision(
    q_codes: ArrayLike, q_labels: Any, db_codes: ArrayLike, db_labels: Any, k: int | None = None
) -> float:
    """Weighted MAP: the mean of ACG@p over the places p ≤ k of relevant rows.

    Let a group of g rows at one distance, ρ of them relevant, with grades that sum to T, follow a rows whose grades
    sum to A. At the j-th place of the group, a relevant row of grade s has an expected cumulative grade of
    A + s + (j−1)(T − s)/(g−1). Summed over the rows of the group and the places j ≤ t, with Σ = Σ_{j ≤ t} 1/(a+j):

        1/g · [ (ρA + T) Σ + T(ρ−1)/(g−1) · (t − (a+1) Σ) ] .
    """
    h, k = _grades_and_k(q_codes, q_labels, db_codes, db_labels, k)
    g, rho, T = h.all_.astype(np.float64), h.relevant.astype(np.float64), h.grades
    a, A = np.cumsum(g, 1) - g, np.cumsum(T, 1) - T
    t = np.clip(k - a, 0, g)
    harmonic = harmonic_sum(a, t)
    step = T * (rho - 1) / np.maximum(g - 1, 1)
    sums = (((rho * A + T) * harmonic + step * (t - (a + 1) * harmonic)) / np.maximum(g, 1)).sum(1)
    found = (rho / np.maximum(g, 1) * t).sum(1)
    return float((sums / np.where(found > 0, found, 1)).mean())


def _grades_and_k(
    q_codes: ArrayLike, q_labels: Any, db_codes: ArrayLike, db_labels: Any, k: int | None
) -> tuple[Grades, int]:
    Q, B = check_pair(q_codes, db_codes)
    y = match_labels(q_labels, db_labels, len(Q), len(B))
    return _grades(Q, B, y), len(B) if k is None else check_k(k, len(B))


def _grades(Q: NDArray[np.uint8], B: NDArray[np.uint8], y: Labels) -> Grades:
    most = int(np.bitwise_count(y.queries).sum(1).max()) if y.sets else 1
    rest = as_words(B), y.rows, y.sets, 8 * Q.shape[1], most
    parts = threads.over_rows(_count_grades, (as_words(Q), y.queries), *rest)
    counts, gains, by_grade = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return Grades(counts[:, :, 0], counts[:, :, 1], counts[:, :, 2].astype(np.float64), gains, by_grade)


@njit(nogil=True, cache=True)
def _count_grades(Q: Any, yq: Any, B: Any, yb: Any, sets: bool, r: int, most: int) -> Any:
    """Rows, relevant rows and grades per distance (n_queries, r + 1, 3); gains per distance; rows per grade."""
    counts = np.zeros((len(Q), r + 1, 3), np.int64)
    gains = np.zeros((len(Q), r + 1))
    by_grade = np.zeros((len(Q), most + 1), np.int64)
    for i in range(len(Q)):
        for j in range(len(B)):
            grade = np.int64(0)
            if sets:
                for w in range(yq.shape[1]):
                    grade += np.int64(popcount(yq[i, w] & yb[j, w]))
            else:
                grade = np.int64(yq[i, 0] == yb[j, 0])
            d = distance(Q, i, B, j)
            counts[i, d, 0] += 1
            counts[i, d, 1] += np.int64(grade > 0)
            counts[i, d, 2] += grade
            gains[i, d] += 2.0**grade - 1.0
            by_grade[i, grade] += 1
    return counts, gains, by_grade
