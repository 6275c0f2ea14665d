"""Scans, compiled and in NumPy, against a sort of all distances."""

import numpy as np
import pytest

from dish import codes, threads
from dish.index import scan
from helpers.codes import KINDS, assert_same, brute_nearest, brute_within, make_codes, make_queries

WIDTHS = [1, 7, 16, 30, 64, 70, 130, 256]  # every word type; one, two and more words


def words_of(kind, n, n_bits):
    B = make_codes(kind, n, n_bits)
    Q = make_queries(B, 9, n_bits)
    return Q, B, codes.to_words(Q, n_bits), codes.to_words(B, n_bits)


@pytest.mark.parametrize("nearest", [scan.nearest, scan.nearest_numpy], ids=["compiled", "numpy"])
@pytest.mark.parametrize("n_bits", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_nearest(kind, n_bits, nearest):
    Q, B, q, b = words_of(kind, 1300, n_bits)  # three blocks, the last one partial
    for some in (9, 2):  # codes are read by column for more than three queries
        for k in (1, 11, 1300):
            D, rows = brute_nearest(Q[:some], B, k)
            assert_same(nearest(q[:some], b, k), (D, rows))


@pytest.mark.parametrize("within", [scan.within, scan.within_numpy], ids=["compiled", "numpy"])
@pytest.mark.parametrize("n_bits", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_within(kind, n_bits, within):
    Q, B, q, b = words_of(kind, 1300, n_bits)
    for some in (9, 2, 0):
        for radius in (0, 2, n_bits):
            lims, D, rows = brute_within(Q[:some], B, radius)
            assert_same(within(q[:some], b, radius), (np.diff(lims), D.astype(np.int32), rows))


@pytest.mark.parametrize("n_bits", [9, 64, 100])
def test_best_scores(n_bits):
    B = make_codes("duplicates", 700, n_bits)
    F = np.random.default_rng(0).standard_normal((5, n_bits))
    S = F @ codes.unpack(B, n_bits).T.astype(float)
    for k in (1, 20, 700):
        D, rows = scan.best_scores(F, codes.to_words(B, n_bits), k)
        np.testing.assert_allclose(-D, -np.sort(-S, axis=1)[:, :k])
        np.testing.assert_allclose(np.take_along_axis(S, rows, 1), -D)
        ties = (B[rows[:, 1:]] == B[rows[:, :-1]]).all(axis=2)
        assert (rows[:, 1:] > rows[:, :-1])[ties].all()


@pytest.mark.parametrize("n", [0, 1, 5, 1000])
def test_over_queries_returns_consecutive_parts_in_order(n, monkeypatch):
    monkeypatch.setattr(threads, "size", lambda most: max(1, min(3, most)))
    parts = scan.over_queries(lambda Q, add: Q + add, np.arange(n), 7)
    np.testing.assert_array_equal(np.concatenate([[], *parts]), np.arange(n) + 7)
    assert all(len(part) <= scan.QUERIES for part in parts)
    assert all(len(part) == 1 for part in scan.over_queries(lambda Q: Q, np.arange(n), k=2**23))


def test_errors_in_threads_reach_the_caller(monkeypatch):
    monkeypatch.setattr(threads, "size", lambda most: max(1, min(3, most)))
    with pytest.raises(ZeroDivisionError):
        scan.map_threads(lambda x: 1 / x, [3, 2, 1, 0])
