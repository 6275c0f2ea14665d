"""Multi-index hashing against a scan."""

import numpy as np
import pytest

from dish import codes
from dish.index import multiindex, scan
from helpers.codes import assert_same, make_codes, make_queries


def test_buckets_hold_the_rows_with_their_bits():
    B = codes.to_words(make_codes("clustered", 300, 128), 128)
    starts, order = multiindex.list_by_bits(B, 2, 5)
    for j in range(2):
        low = B[:, j] & np.uint64(31)
        for x in range(32):
            assert order[j, starts[j, x] : starts[j, x + 1]].tolist() == np.flatnonzero(low == x).tolist()


def test_near_patterns_are_all_masks_with_few_ones():
    patterns = multiindex.near_patterns(6, 2, most=22)
    assert sorted(patterns.tolist()) == [x for x in range(64) if x.bit_count() <= 2]
    assert multiindex.near_patterns(6, 2, most=21) is None


@pytest.mark.parametrize("n_bits", [64, 128, 256])
@pytest.mark.parametrize("kind", ["random", "clustered", "duplicates"])
def test_radius_search_equals_a_scan(kind, n_bits):
    B = make_codes(kind, 1500, n_bits)
    b, q = codes.to_words(B, n_bits), codes.to_words(make_queries(B, 20, n_bits), n_bits)
    m, t = n_bits // 64, 7
    starts, order = multiindex.list_by_bits(b, m, t)
    for radius in (0, 1, 4, 9):
        flips = radius // m
        patterns = multiindex.near_patterns(t, flips, most=10**6)
        found = multiindex.within_by_bits(q, b, radius, starts, order, patterns, flips)
        assert_same(found, scan.within(q, b, radius))
        assert (multiindex.count_by_bits(q, starts, patterns) >= found[0]).all()
