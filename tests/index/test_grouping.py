"""Groups of equal codes, and their expansion to rows in each of its ways."""

import itertools

import numpy as np
import pytest

from dish.index import grouping, hashtable


def grouped(member):
    """Return (first, member_of, starts, members) of rows whose codes are given."""
    B = np.asarray(member, np.uint64)[:, None]
    first, member_of = grouping.group(hashtable.empty_slots(len(B) + 1), B, len(B))
    return first, member_of, *grouping.list_members(member_of, len(first))


def test_groups_are_numbered_by_first_appearance():
    first, member_of, starts, members = grouped([9, 4, 9, 9, 1, 4])
    assert first.tolist() == [0, 1, 4]
    assert member_of.tolist() == [0, 1, 0, 0, 2, 1]
    assert [members[a:b].tolist() for a, b in itertools.pairwise(starts)] == [[0, 2, 3], [1, 5], [4]]


def test_too_many_groups_are_not_grouped():
    B = np.arange(10, dtype=np.uint64)[:, None]
    assert len(grouping.group(hashtable.empty_slots(10), B, 9)[0]) == 0
    assert len(grouping.group(hashtable.empty_slots(11), B, 10)[0]) == 10


def reference(keys, groups, member_of):
    """Return the keys and rows of the groups, by key, then by row."""
    key_of = dict(zip(groups.tolist(), keys.tolist(), strict=True))
    return sorted((key_of[g], row) for row, g in enumerate(member_of.tolist()) if g in key_of)


WAYS = {  # (rows, groups, different keys, rows wanted): which way the rows of equal keys are collected
    "one group per key": (300, 20, 20, 40),
    "heap": (4000, 20, 2, 30),
    "sort": (5000, 2500, 2500, 5000),
    "bitmap": (3000, 60, 3, 3000),
}


@pytest.mark.parametrize("way", WAYS)
def test_expansion_returns_rows_by_key_then_by_row(way):
    n, u, n_keys, k = WAYS[way]
    rng = np.random.default_rng(0)
    _, member_of, starts, members = grouped(rng.integers(0, u, n))
    u = len(starts) - 1
    D = np.sort(rng.integers(0, n_keys, (3, u)).astype(np.int32), axis=1)
    G = np.stack([rng.permutation(u) for _ in range(3)])
    keys, rows = grouping.expand(D, G, starts, members, k)
    for i in range(3):
        assert list(zip(keys[i].tolist(), rows[i].tolist(), strict=True)) == reference(D[i], G[i], member_of)[:k]


def test_expansion_of_radius_results_stops_at_the_number_of_rows_given():
    _, member_of, starts, members = grouped(np.random.default_rng(0).integers(0, 30, 500))
    found, D, G = np.array([3, 0, 2]), np.array([0, 1, 1, 0, 0], np.int32), np.array([4, 7, 2, 9, 7])
    counts = grouping.count_rows(found, G, starts)
    sizes = np.bincount(member_of)
    assert counts.tolist() == [sizes[4] + sizes[7] + sizes[2], 0, sizes[9] + sizes[7]]
    n_rows = np.minimum(counts, 25)
    keys, rows = np.empty(n_rows.sum(), np.int32), np.empty(n_rows.sum(), np.int64)
    grouping.expand_all(found, D, G, n_rows, starts, members, keys, rows)
    wanted = reference(D[:3], G[:3], member_of)[: n_rows[0]] + reference(D[3:], G[3:], member_of)[: n_rows[2]]
    assert list(zip(keys.tolist(), rows.tolist(), strict=True)) == wanted
