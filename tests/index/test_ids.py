"""Rows by id, as any snapshot of a generation sees them; string ids as text."""

import numpy as np
import pytest

from dish.index.ids import IntegerLookup, StringLookup, from_text, to_text
from dish.labels import object_array


def integers(values):
    return np.array(values, np.int64)


def strings(values):
    return object_array([f"id {value}" for value in values])


@pytest.mark.parametrize(("lookup", "ids_of"), [(IntegerLookup, integers), (StringLookup, strings)])
def test_a_replaced_row_is_still_found_by_older_snapshots(lookup, ids_of):
    rows = lookup()
    assert rows.find(ids_of([7]), 0).tolist() == [-1]
    values = [7, -3, 5, 7, 9, 7]
    rows.add(ids_of(values), 0, 3)
    rows.add(ids_of(values), 3, 6)
    for n in range(7):
        last = {value: row for row, value in enumerate(values[:n])}
        wanted = [last.get(value, -1) for value in (7, -3, 5, 9, 8)]
        assert rows.find(ids_of([7, -3, 5, 9, 8]), n).tolist() == wanted
    assert rows.nbytes > 0


def test_the_table_of_integers_grows():
    ids = np.random.default_rng(0).permutation(5000)
    rows = IntegerLookup()
    for start in range(0, 5000, 100):
        rows.add(ids, start, start + 100)
    np.testing.assert_array_equal(rows.find(ids, 5000), np.arange(5000))
    assert 2 * 5000 * 4 <= rows.nbytes <= 8 * 5000 * 4


def test_string_ids_survive_as_text():
    for values in ([], ["a", "", "é\0\n", "\ud800", "日本"]):
        ids = object_array(values)
        assert from_text(*to_text(ids)).tolist() == values
