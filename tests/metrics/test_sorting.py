"""Rankings by real numbers against scikit-learn and against sorting."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from dish import codes, metrics
from helpers.rankings import RNG, make_codes, relevance, sorted_ap


@pytest.mark.parametrize("k", [None, 10])
def test_asymmetric_map_ranks_by_the_inner_product(k):
    _, yq, b, yb = make_codes(r=12)
    F = RNG.standard_normal((9, 12))
    scores = F @ codes.unpack(b, 12).T
    rel = relevance(yq, yb)
    expected = np.mean([sorted_ap(np.argsort(-s, kind="stable"), r, k) for s, r in zip(scores, rel, strict=True)])
    assert metrics.asymmetric_mean_average_precision(F, yq, b, yb, k=k) == pytest.approx(expected)


def test_asymmetric_map_of_signs_is_that_of_the_hamming_ranking():
    q, yq, b, yb = make_codes(r=16)
    found = metrics.asymmetric_mean_average_precision(codes.unpack(q, 16), yq, b, yb)
    assert found == pytest.approx(metrics.mean_average_precision(q, yq, b, yb, ties="stable"))


def test_l2_map_equals_scikit_learns(digits):
    X, y, Xq, yq = digits
    X, y, Xq, yq = X[:200], y[:200], Xq[:5], yq[:5]
    scores = -((Xq[:, None] - X[None]) ** 2).sum(2) - 1e-6 * np.arange(200)  # ties in database order
    expected = np.mean([average_precision_score(y == c, s) for c, s in zip(yq, scores, strict=True)])
    assert metrics.l2_mean_average_precision(Xq, yq, X, y) == pytest.approx(expected)


@pytest.mark.parametrize("multi", [False, True])
def test_product_map_equals_scikit_learns(multi):
    rng = np.random.default_rng(0)
    P, Pq = rng.random((150, 5)), rng.random((70, 5))  # more than one block of queries
    y, yq = ((rng.random((n, 3)) < 0.4).astype(int) if multi else rng.integers(3, size=n) for n in (150, 70))
    relevant = (yq @ y.T > 0) if multi else yq[:, None] == y
    expected = [average_precision_score(r, s) if r.any() else 0 for r, s in zip(relevant, Pq @ P.T, strict=True)]
    assert metrics.product_mean_average_precision(Pq, yq, P, y) == pytest.approx(np.mean(expected))


def test_product_map_at_k():
    P, y = np.array([[3.0], [2.0], [2.0], [1.0]]), [0, 1, 0, 0]
    found = metrics.product_mean_average_precision([[1.0]], [0], P, y, k=3)
    assert found == pytest.approx((1 + 2 / 3) / 2)  # relevant at places 1 and 3; ties in database order


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.int32, np.float16, np.float32, bool])
def test_l2_map_does_not_overflow_the_type_of_the_rows(digits, dtype):
    """The square of 255 overflows uint8, and a sum of such squares int16 and float16."""
    X, y, Xq, yq = digits
    scale = {np.uint8: 15, np.int8: 7, np.int16: 2000, np.float16: 100}.get(dtype, 1)
    X, Xq = ((A * scale).astype(dtype) for A in (X, Xq))
    expected = metrics.l2_mean_average_precision(Xq.astype(np.float64), yq, X.astype(np.float64), y)
    assert metrics.l2_mean_average_precision(Xq, yq, X, y) == pytest.approx(expected, abs=1e-4)


def test_rejects_rows_that_are_not_numbers():
    with pytest.raises(ValueError, match="rows must be numbers"):
        metrics.l2_mean_average_precision([["a"]], [0], [["b"]], [0])
