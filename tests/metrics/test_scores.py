"""Histogram scoring against plain sorting, and against scikit-learn where no distances tie."""

import subprocess
import sys
from itertools import permutations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.metrics import average_precision_score

from dish import codes, metrics
from dish.metrics.counting import _exact_dtype, _histograms_torch
from dish.metrics.relevance import match_labels

RNG = np.random.default_rng(0)


def make(nq=9, nb=60, r=12, multi=False):
    q, b = (np.packbits(RNG.random((n, r)) < 0.5, axis=1) for n in (nq, nb))
    if multi:
        yq, yb = ((RNG.random((n, 70)) < 0.05).astype(int) for n in (nq, nb))
    else:
        yq, yb = RNG.integers(0, 3, nq), RNG.integers(0, 3, nb)
    return q, yq, b, yb


def relevance(yq, yb):
    return (yq @ yb.T) > 0 if yq.ndim == 2 else yq[:, None] == yb[None]


def sorted_ap(order, relevant, k=None):
    hits = relevant[order][:k]
    ranks = np.flatnonzero(hits) + 1
    return (np.arange(1, len(ranks) + 1) / ranks).mean() if len(ranks) else 0.0


@pytest.mark.parametrize("multi", [False, True])
@pytest.mark.parametrize("k", [None, 1, 7, 60])
def test_stable_ties_equal_a_stable_sort(multi, k):
    q, yq, b, yb = make(multi=multi)
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
def test_expected_ties_at_k_are_the_mean_precisions_over_the_mean_number_found(k):
    q, yq, b, yb = make(nq=3)
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
def test_map_over_what_could_have_been_found(ties, k, kernels):
    q, yq, b, yb = make(nq=4)
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


@pytest.mark.parametrize("multi", [False, True])
def test_recall_equals_counting(multi, kernels):
    q, yq, b, yb = make(nq=20, r=8, multi=multi)
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
    for d, relevant in zip(D, rel, strict=True):  # a row at the last distance is in with probability room / size
        edge = np.sort(d)[k - 1]
        room, at_edge = k - (d < edge).sum(), d == edge
        found.append((relevant & (d < edge)).sum() + room * (relevant & at_edge).sum() / at_edge.sum())
    assert metrics.recall_at_k(q, yq, b, yb, k=k) == pytest.approx(np.mean(found / total))
    report = metrics.evaluate(q, yq, b, yb, n_bits=8, k=k, at=(k,))
    assert report.recall_at == {k: pytest.approx(np.mean(found / total))}
    assert (report.recall_within_2, report.f1_within_2) == (pytest.approx(recall.mean()), pytest.approx(f1.mean()))
    possible = metrics.mean_average_precision(q, yq, b, yb, k=k, denominator="possible")
    assert report.map_possible == pytest.approx(possible)


def test_a_report_prints_as_a_short_table():
    q, yq, b, yb = make()
    report = metrics.evaluate(q, yq, b, yb, k=10)
    text = str(report)
    assert text.splitlines()[0] == "9 queries, 60 rows, 16 bits"
    assert f"MAP@10                         {report.map:.4f}" in text
    assert "curve" not in text
    assert len(text.splitlines()) <= 12
    assert max(map(len, text.splitlines())) < 60


def test_metrics_load_without_torch():
    program = "import sys; from dish import metrics; metrics.evaluate; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_without_ties_it_is_scikit_learns_average_precision(kernels):
    r = 40
    b = np.packbits(np.tril(np.ones((r, r), bool)), axis=1)  # distances 1 … r from zero
    q = np.zeros((1, r // 8), np.uint8)
    yb = RNG.integers(0, 2, r)
    expected = average_precision_score(yb, -codes.hamming(q, b)[0])
    for ties in ("expected", "stable"):
        assert metrics.mean_average_precision(q, [1], b, yb, ties=ties) == pytest.approx(expected)


@pytest.mark.parametrize("multi", [False, True])
def test_radius_curve_and_report_equal_counting(multi, kernels):
    q, yq, b, yb = make(nq=20, r=8, multi=multi)
    D, rel = codes.hamming(q, b), relevance(yq, yb)
    ball = D <= 2
    per_query = np.where(ball.sum(1) > 0, (ball & rel).sum(1) / np.maximum(ball.sum(1), 1), 0)
    assert metrics.precision_within_radius(q, yq, b, yb) == pytest.approx(per_query.mean())
    precision, recall = metrics.precision_recall_curve(q, yq, b, yb)
    for d in range(9):
        inside = d >= D
        assert precision[d] == pytest.approx((inside & rel).sum() / max(inside.sum(), 1))
        assert recall[d] == pytest.approx((inside & rel).sum() / rel.sum())
    report = metrics.evaluate(q, yq, b, yb, n_bits=8)
    assert report.map == pytest.approx(metrics.mean_average_precision(q, yq, b, yb))
    assert report.precision_within_2 == pytest.approx(per_query.mean())
    assert report.empty_balls == pytest.approx((ball.sum(1) == 0).mean())
    assert report.curve_recall[-1] == 1.0
    assert len(report.curve_recall) == 9


def test_an_empty_ball_counts_zero():
    q, b = np.array([[0], [255]], np.uint8), np.array([[0], [1]], np.uint8)
    assert metrics.precision_within_radius(q, [1, 1], b, [1, 1]) == 0.5


def test_a_column_of_labels_is_classes():
    q, yq, b, yb = make()
    assert metrics.evaluate(q, yq[:, None], b, yb[:, None]).map == metrics.evaluate(q, yq, b, yb).map


def test_sparse_labels_are_dense_labels():
    q, yq, b, yb = make(multi=True)
    dense = metrics.mean_average_precision(q, yq, b, yb)
    assert metrics.mean_average_precision(q, sp.csr_array(yq), b, sp.csr_array(yb)) == dense


def test_l2_ranking_equals_scikit_learn(digits):
    X, y, Xq, yq = digits
    X, y, Xq, yq = X[:200], y[:200], Xq[:5], yq[:5]
    scores = -((Xq[:, None] - X[None]) ** 2).sum(2) - 1e-6 * np.arange(200)  # stable order where distances tie
    expected = np.mean([average_precision_score(y == c, s) for c, s in zip(yq, scores, strict=True)])
    assert metrics.l2_mean_average_precision(Xq, yq, X, y) == pytest.approx(expected)


@pytest.mark.parametrize("multi", [False, True])
def test_product_ranking_equals_scikit_learn(multi):
    rng = np.random.default_rng(0)
    P, Pq = rng.random((150, 5)), rng.random((70, 5))  # more queries than are ranked at a time
    y, yq = ((rng.random((n, 3)) < 0.4).astype(int) if multi else rng.integers(3, size=n) for n in (150, 70))
    relevant = (yq @ y.T > 0) if multi else yq[:, None] == y
    expected = [average_precision_score(r, s) if r.any() else 0 for r, s in zip(relevant, Pq @ P.T, strict=True)]
    assert metrics.product_mean_average_precision(Pq, yq, P, y) == pytest.approx(np.mean(expected))


def test_product_ranking_cut_after_k_places():
    P, y = np.array([[3.0], [2.0], [2.0], [1.0]]), [0, 1, 0, 0]
    found = metrics.product_mean_average_precision([[1.0]], [0], P, y, k=3)
    assert found == pytest.approx((1 + 2 / 3) / 2)  # relevant at places 1 and 3; equal ones in database order


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.int32, np.float16, np.float32, bool])
def test_l2_ranking_does_not_overflow_the_type_of_the_rows(digits, dtype):
    """Squares of 255 do not fit in uint8, their sums not in int16 or float16."""
    X, y, Xq, yq = digits
    scale = {np.uint8: 15, np.int8: 7, np.int16: 2000, np.float16: 100}.get(dtype, 1)
    X, Xq = ((A * scale).astype(dtype) for A in (X, Xq))
    expected = metrics.l2_mean_average_precision(Xq.astype(np.float64), yq, X.astype(np.float64), y)
    assert metrics.l2_mean_average_precision(Xq, yq, X, y) == pytest.approx(expected, abs=1e-4)


def test_l2_ranking_refuses_what_is_no_number():
    with pytest.raises(ValueError, match="rows must be numbers"):
        metrics.l2_mean_average_precision([["a"]], [0], [["b"]], [0])


@pytest.mark.parametrize("multi", [False, True])
def test_the_torch_form_counts_the_same(multi):
    q, yq, b, yb = make(nq=13, nb=500, r=24, multi=multi)
    expected = metrics.histograms(q, yq, b, yb)
    y = match_labels(yq, yb, len(q), len(b))
    for cells in (2**28, 3000):  # one block of rows, and many
        counts = _histograms_torch(q, b, y, "cpu", cells)
        np.testing.assert_array_equal(counts.sum(2), expected.all_)
        np.testing.assert_array_equal(counts[:, :, 1], expected.relevant)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("r", [64, 2048, 2056, 4096])
def test_the_torch_form_holds_every_product_exactly(r, device):
    """A product of ±1 codes is any whole number of −r … r; half precision has no 2,049."""
    import torch

    numbers = torch.arange(-r, r + 1)
    assert (numbers.to(_exact_dtype(r, device)).long() == numbers).all()


@pytest.mark.gpu
def test_long_codes_are_counted_exactly_on_a_gpu():
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    q, yq, b, yb = make(nq=7, nb=300, r=4096)
    expected, found = (metrics.histograms(q, yq, b, yb, device=device) for device in ("cpu", "cuda"))
    np.testing.assert_array_equal(found.all_, expected.all_)
    np.testing.assert_array_equal(found.relevant, expected.relevant)


@pytest.mark.parametrize("k", [None, 10])
def test_asymmetric_ranking_is_the_inner_product(k):
    _, yq, b, yb = make(r=12)
    F = RNG.standard_normal((9, 12))
    scores = F @ codes.unpack(b, 12).T
    rel = relevance(yq, yb)
    expected = np.mean([sorted_ap(np.argsort(-s, kind="stable"), r, k) for s, r in zip(scores, rel, strict=True)])
    assert metrics.asymmetric_mean_average_precision(F, yq, b, yb, k=k) == pytest.approx(expected)


def test_asymmetric_ranking_of_signs_is_the_hamming_ranking():
    q, yq, b, yb = make(r=16)
    found = metrics.asymmetric_mean_average_precision(codes.unpack(q, 16), yq, b, yb)
    assert found == pytest.approx(metrics.mean_average_precision(q, yq, b, yb, ties="stable"))


def test_bad_input_is_named():
    q, yq, b, yb = make()
    with pytest.raises(ValueError, match="q_labels has 3 labels for 9 codes"):
        metrics.evaluate(q, yq[:3], b, yb)
    with pytest.raises(ValueError, match="differ in kind"):
        metrics.evaluate(q, np.eye(3)[yq], b, yb)
    with pytest.raises(ValueError, match="bytes per row"):
        metrics.evaluate(q, yq, b[:, :1], yb)
    with pytest.raises(ValueError, match="ties"):
        metrics.mean_average_precision(q, yq, b, yb, ties="random")
    with pytest.raises(ValueError, match="k must be"):
        metrics.mean_average_precision(q, yq, b, yb, k=1000)
    with pytest.raises(ValueError, match="nothing to score"):
        metrics.evaluate(q[:0], yq[:0], b, yb)
    for k in (0, -5, 1000):
        with pytest.raises(ValueError, match="k must be"):
            metrics.evaluate(q, yq, b, yb, k=k)
    with pytest.raises(ValueError, match="n_bits=2"):
        metrics.evaluate(q, yq, b, yb, n_bits=2)
    with pytest.raises(ValueError, match="differ in kind"):
        metrics.evaluate(q, yq.astype(str), b, yb)
    with pytest.raises(ValueError, match="differ in kind: bool and int64"):
        metrics.evaluate(q, yq > 0, b, yb)
    with pytest.raises(ValueError, match="radius"):
        metrics.precision_within_radius(q, yq, b, yb, radius=-1)


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
