"""Grouped codes and inverted lists: when they are built, what they hold, and that results stay exact."""

import numpy as np
import pytest

from dish import HammingIndex
from dish.index import accelerators, scan
from helpers.codes import (
    KINDS,
    accelerator_of,
    all_distances,
    assert_radius,
    assert_same,
    brute_nearest,
    make_codes,
    make_queries,
    searched_index,
)

# --- grouped codes ---


def test_repeated_codes_are_grouped_and_distinct_ones_are_not():
    grouped = searched_index(make_codes("duplicates", 6000, 64), 64)
    flat = searched_index(make_codes("random", 6000, 64), 64)
    assert len(accelerator_of(grouped).codes) == 60
    assert accelerator_of(flat).members is None


@pytest.mark.parametrize("kind", ["random", "duplicates", "a fifth distinct"])
@pytest.mark.parametrize("n_bits", [64, 128])
def test_memory_is_at_most_twice_the_codes_plus_the_ids(kind, n_bits):
    n = 50_000
    B = make_codes(kind, n, n_bits)
    if kind == "a fifth distinct":  # close to the largest share that is still grouped
        B = B[np.random.default_rng(0).integers(0, n * 23 // 100, n)]
    ix = searched_index(B, n_bits)
    assert (accelerator_of(ix).members is None) == (kind == "random")
    held = ix.nbytes()
    assert held["search"] > 0
    assert held["codes"] + held["search"] <= 2 * n * n_bits // 8
    assert held["ids"] == 8 * n
    assert held["labels"] == 0


def test_small_additions_do_not_regroup():
    B = make_codes("duplicates", 20_000, 64)
    ix = searched_index(B, 64)
    before = accelerator_of(ix)
    for i in range(200):
        ix.add(B[i : i + 1])
        ix.search(B[:1], 1)
    assert accelerator_of(ix) is before
    ix.search(B[:6000], 1)  # scanning the new rows has now cost more than grouping
    assert accelerator_of(ix).n == 20_200


def test_an_older_snapshot_does_not_use_groups_of_later_rows():
    B = make_codes("duplicates", 9000, 64)
    ix = HammingIndex(64)
    ix.add(B[:5000])
    older = ix.snapshot()
    ix.add(B[5000:])
    ix.search(B[:200], 1)
    assert accelerator_of(ix).n == 9000
    assert_same(older.search(B[:20], 50), brute_nearest(B[:20], B[:5000], 50))


def test_only_one_thread_builds_groups():
    codes = np.zeros((accelerators.LEAST_ROWS, 1), np.uint64)
    built = []

    def make(rows):
        built.append(cache.covering(rows, 10**6))  # another search meanwhile
        return accelerators.GroupedCodes.of(rows, 64)

    cache = accelerators.AcceleratorCache(make)
    assert cache.covering(codes, 10**6).n == len(codes)
    assert built == [None]


def test_few_rows_are_never_grouped(monkeypatch):
    monkeypatch.setattr(accelerators, "SCANS", 0)
    ix = searched_index(make_codes("duplicates", accelerators.LEAST_ROWS - 1, 64), 64)
    assert accelerator_of(ix) is None


@pytest.mark.parametrize("kind", KINDS)
def test_limited_radius_searches_and_counts(kind):
    B = make_codes(kind, 6000, 64)
    Q = make_queries(B, 40, 64)
    ix = searched_index(B[:5500], 64)
    ix.add(B[5500:])  # not covered
    for removed in ([], [1, 7, 5700]):
        ix.remove(removed)
        for some in (None, np.arange(0, 6000, 3)):
            for radius in (0, 3, 20):
                lims, D, N = ix.radius_search(Q, radius, some)
                np.testing.assert_array_equal(ix.radius_count(Q, radius, some), np.diff(lims))
                for limit in (1, 5, 6000):
                    first = np.arange(len(D)) - np.repeat(lims[:-1], np.diff(lims)) < limit
                    cut = ix.radius_search(Q, radius, some, limit=limit)
                    np.testing.assert_array_equal(np.diff(cut[0]), np.minimum(np.diff(lims), limit))
                    np.testing.assert_array_equal(cut[1], D[first])
                    np.testing.assert_array_equal(cut[2], N[first])


# --- multi-index hashing ---


@pytest.mark.parametrize("n_bits", [64, 128, 256])
@pytest.mark.parametrize("kind", ["random", "clustered"])
def test_radius_search_by_buckets(kind, n_bits):
    """The radii lie on both sides of the point where a scan is cheaper."""
    B = make_codes(kind, 20_000, n_bits)
    Q = make_queries(B, 80, n_bits)
    ix = searched_index(B, n_bits)
    assert accelerator_of(ix).tables
    for radius in (0, 1, 2, 4, 5, 9, n_bits):
        some = Q if radius < n_bits else Q[:2]
        assert_radius(ix.radius_search(some, radius), some, B, radius)


def test_buckets_replace_the_scan(monkeypatch):
    ix = searched_index(make_codes("random", 60_000, 64), 64)
    Q = make_queries(ix.get(ix.ids), 10, 64)
    wanted = ix.radius_search(Q, 2)
    monkeypatch.setattr(scan, "within", None)
    assert_same(ix.radius_search(Q, 2), wanted)


# --- inverted lists ---


def test_approximate_mode():
    B = make_codes("clustered", 8000, 64)
    Q = make_queries(B, 100, 64)
    ix = HammingIndex(64, mode="approximate", n_lists=40, n_probe=3)
    ix.add(B[:7000])
    ix.search(Q, 10)  # fills the lists
    assert accelerator_of(ix).n == 7000
    assert ix.nbytes()["search"] == 7000 * 16
    ix.add(B[7000:])
    recall = ix.measure_recall(Q, 10)
    D, N = ix.search(Q, 10)
    exact = brute_nearest(Q, B, 10)[0]
    assert recall == pytest.approx((exact[:, -1:] >= D).mean())
    assert 0.4 < recall < 1
    W = all_distances(Q, B)
    assert (np.take_along_axis(W, N, 1) == D).all()
    D, N = ix.search(Q, 3000)  # more rows than three lists hold: a scan completes them
    assert (N >= 0).all()
    assert D.shape == (100, 3000)
    assert_radius(ix.radius_search(Q, 5), Q, B, 5)  # exact in this mode too
    F = np.random.default_rng(0).standard_normal((3, 64))
    exact_ix = HammingIndex(64)
    exact_ix.add(B)
    assert_same(ix.search(F, 5, method="asymmetric"), exact_ix.search(F, 5, method="asymmetric"))


def test_probing_all_lists_is_exact():
    B = make_codes("clustered", 8000, 64)
    Q = make_queries(B, 100, 64)
    ix = HammingIndex(64, mode="approximate", n_lists=40, n_probe=40)
    ix.add(B)
    ix.search(Q, 10)
    assert accelerator_of(ix) is not None
    assert ix.measure_recall(Q, 10) == 1
    np.testing.assert_array_equal(ix.search(Q, 10)[0], brute_nearest(Q, B, 10)[0])


def test_approximate_mode_without_faiss(monkeypatch):
    monkeypatch.setattr(accelerators.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'dish-hash\[faiss\]'"):
        HammingIndex(64, mode="approximate")
    HammingIndex(64)
