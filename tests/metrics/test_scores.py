"""Scores from histograms against sorting, and against scikit-learn where no distances tie."""

import subprocess
import sys
from itertools import permutations

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from dish import codes, metrics
from helpers.rankings import RNG, make_codes, relevance, sorted_ap


@pytest.mark.parametrize("multi", [False, True])
@pytest.mark.parametrize("k", [None, 1, 7, 60])
def test_stable_ties_equal_a_stable_sort(multi, k):
    q, yq, b, yb = make_codes(multi=multi)
    D, rel = codes.hamming(q, b), relevance(yq, yb)
    expected = np.mean([sorted_ap(np.argsort(d, kind="stable"), r, k) for d, r in zip(D, rel, strict=True)])
    assert metrics.mean_average_precision(q, yq, b, yb, k=k, ties="stable") == pytest.approx(expected)


def test_expected_ties_equal_the_mean_over_all_orders(kernels):
    q = np.array([[0]], np.uint8)
    b = np.array([[0b00000001], [0b00000010], [0b00000111], [0b00000100], [0b11100000], [0]], np.uint8)
    yq, yb = np.array([1]), np.array([1, 0, 1, 1, 0, 0])
    distance, relevant = codes.hamming(q, b)[0], yb == 1
    orders = [o for o in permutations(range(6)) if (np.diff(distance[list(o)]) >= 0).all()]
    expected = np.mean([sorted_ap(np.array(o), relevant) for o in orders])
    assert len(orders) == 12
    assert metrics.mean_average_precision(q, yq, b, yb) == pytest.approx(expected)
    at_3 = np.mean([relevant[list(o[:3])].mean() for o in orders])
    assert metrics.precision_at_k(q, yq, b, yb, k=3) == pytest.approx(at_3)


@pytest.mark.parametrize("k", [5, 20])
def test_expected_ties_at_k_divide_by_the_expected_number_found(k):
    q, yq, b, yb = make_codes(nq=3)
    D, rel = codes.hamming(q, b), relevance(yq, yb)
    values = []
    for d, relevant in zip(D, rel, strict=True):
        numerators, found = [], []
        for _ in range(4000):
            order = np.lexsort((RNG.random(len(d)), d))[:k]
            ranks = np.flatnonzero(relevant[order]) + 1
            numerators.append((np.arange(1, len(ranks) + 1) / ranks).sum())
            found.append(len(ranks))
        values.append(np.mean(numerators) / max(np.mean(found), 1e-9))
    assert metrics.mean_average_precision(q, yq, b, yb, k=k) == pytest.approx(np.mean(values), abs=0.01)


@pytest.mark.parametrize("ties", ["expected", "stable"])
@pytest.mark.parametrize("k", [1, 5, 40])
def test_map_over_the_largest_possible_number_of_relevant_rows(ties, k, kernels):
    q, yq, b, yb = make_codes(nq=4)
    D, rel = codes.hamming(q, b), relevance(yq, yb)
    values = []
    for d, relevant in zip(D, rel, strict=True):
        orders = [np.argsort(d, kind="stable")]
        if ties == "expected":
            orders = [np.lexsort((RNG.random(len(d)), d)) for _ in range(3000)]
        sums = []
        for order in orders:
            ranks = np.flatnonzero(relevant[order[:k]]) + 1
            sums.append((np.arange(1, len(ranks) + 1) / ranks).sum())
        values.append(np.mean(sums) / min(relevant.sum(), k))
    found = metrics.mean_average_precision(q, yq, b, yb, k=k, ties=ties, denominator="possible")
    assert found == pytest.approx(np.mean(values), abs=0.01 if ties == "expected" else 1e-12)
    whole = [metrics.mean_average_precision(q, yq, b, yb, denominator=name) for name in ("found", "possible")]
    assert whole[0] == pytest.approx(whole[1])


def test_map_without_ties_equals_scikit_learns(kernels):
    r = 40
    b = np.packbits(np.tril(np.ones((r, r), bool)), axis=1)  # distances 1 … r from zero
    q = np.zeros((1, r // 8), np.uint8)
    yb = RNG.integers(0, 2, r)
    expected = average_precision_score(yb, -codes.hamming(q, b)[0])
    for ties in ("expected", "stable"):
        assert metrics.mean_average_precision(q, [1], b, yb, ties=ties) == pytest.approx(expected)


@pytest.mark.parametrize("k", [None, 1, 7, 60])
@pytest.mark.parametrize("denominator", ["found", "possible"])
def test_expected_average_precision_of_tensors_equals_that_of_arrays(k, denominator):
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 6, (20, 17))
    relevant = rng.integers(0, rows + 1)
    relevant[3] = 0
    expected = metrics.expected_average_precision(metrics.Histograms(rows, relevant), k, denominator)
    tensors = metrics.Histograms(torch.from_numpy(rows).int(), torch.from_numpy(relevant).int())
    found = metrics.expected_average_precision(tensors, k, denominator)
    assert isinstance(found, torch.Tensor)
    assert isinstance(expected, np.ndarray)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("multi", [False, True])
def test_recall_and_f1_equal_counting(multi, kernels):
    q, yq, b, yb = make_codes(nq=20, r=8, multi=multi)
    D, rel = codes.hamming(q, b), relevance(yq, yb)
    total = np.maximum(rel.sum(1), 1)
    ball = D <= 2
    precision = (ball & rel).sum(1) / np.maximum(ball.sum(1), 1)
    recall = (ball & rel).sum(1) / total
    f1 = np.where(precision + recall > 0, 2 * precision * recall / np.maximum(precision + recall, 1e-300), 0)
    assert metrics.recall_within_radius(q, yq, b, yb) == pytest.approx(recall.mean())
    assert metrics.f1_within_radius(q, yq, b, yb) == pytest.approx(f1.mean())
    k = 7
    found = []
    for d, relevant in zip(D, rel, strict=True):  # rows at the last distance are in with probability room / size
        edge = np.sort(d)[k - 1]
        room, at_edge = k - (d < edge).sum(), d == edge
        found.append((relevant & (d < edge)).sum() + room * (relevant & at_edge).sum() / at_edge.sum())
    assert metrics.recall_at_k(q, yq, b, yb, k=k) == pytest.approx(np.mean(found / total))


@pytest.mark.parametrize("multi", [False, True])
def test_precision_within_radius_and_curve_equal_counting(multi, kernels):
    q, yq, b, yb = make_codes(nq=20, r=8, multi=multi)
    D, rel = codes.hamming(q, b), relevance(yq, yb)
    ball = D <= 2
    per_query = np.where(ball.sum(1) > 0, (ball & rel).sum(1) / np.maximum(ball.sum(1), 1), 0)
    assert metrics.precision_within_radius(q, yq, b, yb) == pytest.approx(per_query.mean())
    precision, recall = metrics.precision_recall_curve(q, yq, b, yb)
    for d in range(9):
        inside = d >= D
        assert precision[d] == pytest.approx((inside & rel).sum() / max(inside.sum(), 1))
        assert recall[d] == pytest.approx((inside & rel).sum() / rel.sum())


def test_query_without_rows_in_the_radius_counts_zero():
    q, b = np.array([[0], [255]], np.uint8), np.array([[0], [1]], np.uint8)
    assert metrics.precision_within_radius(q, [1, 1], b, [1, 1]) == 0.5


def test_rejects_bad_options():
    q, yq, b, yb = make_codes()
    with pytest.raises(ValueError, match="ties"):
        metrics.mean_average_precision(q, yq, b, yb, ties="random")
    with pytest.raises(ValueError, match="k must be"):
        metrics.mean_average_precision(q, yq, b, yb, k=1000)
    with pytest.raises(ValueError, match="radius"):
        metrics.precision_within_radius(q, yq, b, yb, radius=-1)
    with pytest.raises(ValueError, match=r"radius must be a whole number.*1\.5"):
        metrics.recall_within_radius(q, yq, b, yb, radius=1.5)
    with pytest.raises(ValueError, match=r"k must be a whole number.*2\.5"):
        metrics.mean_average_precision(q, yq, b, yb, k=2.5)


def test_metrics_do_not_load_torch():
    program = "import sys; from dish import metrics; metrics.evaluate; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
