"""Scans over all queries, and merged partial results."""

import itertools

import numpy as np
import pytest

from dish import codes, threads
from dish.index import merge, scan
from helpers.codes import KINDS, assert_same, brute_nearest, brute_within, make_codes, make_queries


@pytest.fixture
def three_threads(monkeypatch):
    monkeypatch.setattr(threads, "size", lambda most: max(1, min(3, most)))


@pytest.mark.parametrize("n_bits", [7, 64, 130])
def test_k_best_and_all_within(n_bits, kernels, three_threads):
    B = make_codes("clustered", 900, n_bits)
    Q = make_queries(B, 300, n_bits)  # more than two tasks
    q, b = codes.to_words(Q, n_bits), codes.to_words(B, n_bits)
    for k in (0, 1, 900):
        assert_same(merge.k_best(scan.nearest, q, b, k), brute_nearest(Q, B, k))
    for some in (Q, Q[:0]):
        lims, D, rows = brute_within(some, B, 3)
        assert_same(merge.all_within(q[: len(some)], b, 3), (np.diff(lims), D.astype(np.int32), rows))


@pytest.mark.parametrize("kernels", ["compiled"], indirect=True)
@pytest.mark.parametrize("n_bits", [16, 64, 128, 192])
@pytest.mark.parametrize("kind", KINDS)
def test_threads_split_the_rows_of_a_single_query(kind, n_bits, kernels, three_threads, monkeypatch):
    monkeypatch.setattr(merge, "ROWS", 500)
    split = []
    whole = merge._split_rows
    monkeypatch.setattr(merge, "_split_rows", lambda *given: split.append(1) or whole(*given))
    B = make_codes(kind, 3001, n_bits)
    Q = make_queries(B, 6, n_bits)
    q, b = codes.to_words(Q, n_bits), codes.to_words(B, n_bits)
    for k in (1, 10, 1700):  # 1700: more rows than each thread has
        D, rows = brute_nearest(Q, B, k)
        for i in range(len(Q)):
            assert_same(merge.k_best(scan.nearest, q[i : i + 1], b, k), (D[i : i + 1], rows[i : i + 1]))
    assert len(split) == 18


def test_merge_keeps_ties_in_row_order():
    first = np.array([[0, 2]]), np.array([[1, 0]])
    second = np.array([[0, 1]]), np.array([[5, 4]])
    assert_same(merge.merge([first, second], 1, 3), (np.array([[0, 0, 1]]), np.array([[1, 5, 4]])))
    assert merge.merge([], 2, 3)[0].shape == (2, 0)


@pytest.mark.parametrize("limit", [None, 1, 2])
def test_merge_within_drops_deleted_rows_and_keeps_the_nearest(limit):
    parts = [  # hits per query; distances and rows by query
        (np.array([2, 1]), np.array([0, 1]).repeat([1, 2]), np.array([3, 0, 2])),
        (np.array([2, 0]), np.array([0, 1]), np.array([7, 8])),
    ]
    lims, D, rows = merge.merge_within(parts, 2, np.array([7]), limit)
    wanted = [[(0, 3), (1, 0), (1, 8)][:limit], [(1, 2)]]
    found = list(zip(D.tolist(), rows.tolist(), strict=True))
    assert [found[a:b] for a, b in itertools.pairwise(lims)] == wanted


def test_drop_deleted_keeps_the_first_k():
    D, R = np.array([[1, 2, 3], [4, 5, 6]]), np.array([[7, 8, 9], [8, 7, 5]])
    assert_same(merge.drop_deleted(np.array([7]), D, R, 2), (np.array([[2, 3], [4, 6]]), np.array([[8, 9], [8, 5]])))
    assert merge.drop_deleted(np.empty(0, np.int64), D, R, 2)[1] is R
