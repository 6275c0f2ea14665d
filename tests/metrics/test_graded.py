"""Graded scores against an enumeration of all orders of tied rows."""

from itertools import permutations

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

from dish import codes, metrics

RNG = np.random.default_rng(0)
DISTANCES = [0b1, 0b10, 0b111, 0b100, 0b11100000, 0, 0b11]  # three rows at distance 1, two at 3


def tied(multi):
    """One query, seven rows with ties, their labels, and the grades of the rows."""
    q, b = np.zeros((1, 1), np.uint8), np.array(DISTANCES, np.uint8)[:, None]
    if multi:
        yq = np.array([[1, 1, 1, 0]])
        yb = np.array(
            [[1, 0, 0, 1], [1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0], [1, 0, 1, 1]]
        )
        return q, yq, b, yb, (yq @ yb.T)[0]
    yq, yb = np.array([1]), np.array([1, 0, 1, 1, 0, 0, 1])
    return q, yq, b, yb, (yb == 1).astype(int)


def orders(q, b):
    """All rankings by distance."""
    d = codes.hamming(q, b)[0]
    found = [np.array(o) for o in permutations(range(len(d))) if (np.diff(d[list(o)]) >= 0).all()]
    assert len(found) == 12
    return found


@pytest.mark.parametrize("multi", [False, True])
@pytest.mark.parametrize("k", [1, 3, 4, 7])
def test_acg_is_the_mean_grade_of_the_k_nearest(multi, k):
    q, yq, b, yb, grade = tied(multi)
    expected = np.mean([grade[o[:k]].mean() for o in orders(q, b)])
    assert metrics.average_cumulative_gain(q, yq, b, yb, k=k) == pytest.approx(expected)


@pytest.mark.parametrize("multi", [False, True])
@pytest.mark.parametrize("k", [None, 1, 3, 4])
def test_ndcg_is_the_mean_over_all_orders(multi, k):
    q, yq, b, yb, grade = tied(multi)

    def dcg(order):
        gains = 2.0 ** grade[order[:k]] - 1
        return (gains / np.log2(np.arange(2, len(gains) + 2))).sum()

    expected = np.mean([dcg(o) for o in orders(q, b)]) / dcg(np.argsort(-grade))
    assert metrics.normalized_discounted_cumulative_gain(q, yq, b, yb, k=k) == pytest.approx(expected)


@pytest.mark.parametrize("multi", [False, True])
@pytest.mark.parametrize("k", [None, 2, 4])
def test_weighted_map_is_the_mean_over_all_orders(multi, k):
    q, yq, b, yb, grade = tied(multi)
    sums, found = [], []
    for order in orders(q, b):
        g = grade[order[:k]]
        acg = np.cumsum(g) / np.arange(1, len(g) + 1)
        sums.append(acg[g > 0].sum())
        found.append((g > 0).sum())
    expected = np.mean(sums) / np.mean(found)
    assert metrics.weighted_mean_average_precision(q, yq, b, yb, k=k) == pytest.approx(expected)


def test_ndcg_equals_scikit_learns():
    """scikit-learn averages over ties too. Its gain is the value that it is given."""
    q, b = (np.packbits(RNG.random((n, 12)) < 0.5, axis=1) for n in (5, 80))
    yq, yb = ((RNG.random((n, 70)) < 0.06).astype(int) for n in (5, 80))
    D = codes.hamming(q, b)
    expected = [ndcg_score((2.0 ** (yq[i] @ yb.T) - 1)[None], -D[i][None], k=20) for i in range(5)]
    assert metrics.normalized_discounted_cumulative_gain(q, yq, b, yb, k=20) == pytest.approx(np.mean(expected))


def test_weighted_map_of_classes_is_map():
    q, b = (np.packbits(RNG.random((n, 12)) < 0.5, axis=1) for n in (9, 60))
    yq, yb = RNG.integers(0, 3, 9), RNG.integers(0, 3, 60)
    for k in (None, 11):
        plain = metrics.mean_average_precision(q, yq, b, yb, k=k)
        assert metrics.weighted_mean_average_precision(q, yq, b, yb, k=k) == pytest.approx(plain)


def test_query_without_labels_counts_zero():
    q, yq, b, yb, _ = tied(True)
    both = np.repeat(q, 2, 0), np.vstack([yq, 0 * yq])
    for score in (
        metrics.average_cumulative_gain,
        metrics.normalized_discounted_cumulative_gain,
        metrics.weighted_mean_average_precision,
    ):
        assert score(*both, b, yb, k=3) == pytest.approx(score(q, yq, b, yb, k=3) / 2)
    with pytest.raises(ValueError, match="k must be"):
        metrics.average_cumulative_gain(q, yq, b, yb, k=8)
