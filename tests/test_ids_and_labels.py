"""Ids and labels as the index and the stores accept them."""

import math

import numpy as np
import pytest

from dish.ids_and_labels import as_ids, as_labels, label_array


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (range(3), [0, 1, 2]),
        ([np.int8(4), -1, 2**63 - 1], [4, -1, 2**63 - 1]),
        (np.array([3, 1], np.uint64), [3, 1]),
        ([], []),
    ],
)
def test_integer_ids_become_int64(given, wanted):
    ids = as_ids(given)
    assert ids.dtype == np.int64
    assert ids.tolist() == wanted


def test_string_ids_become_objects():
    for given in (["a", "bé"], np.array(["a", "bé"]), {"a": 1, "bé": 2}):
        ids = as_ids(given, 2)
        assert ids.dtype == object
        assert ids.tolist() == ["a", "bé"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("abc", "a list of ids, got 'abc'"),
        (7, "a list of ids, got 7"),
        (np.zeros((2, 2), int), r"shape \(2, 2\)"),
        ([1, 2, 3], "3 entries for 2 codes"),
        ([1.5, 2.0], "got float"),
        ([True, False], "got bool"),
        ([1, "a"], "got int, str"),
        ([2**63, 0], "64-bit signed"),
        (np.array([2**63, 0], np.uint64), "64-bit signed"),
    ],
)
def test_invalid_ids_are_rejected(given, message):
    with pytest.raises(ValueError, match=message):
        as_ids(given, 2)


def test_labels_keep_their_types_and_missing_ones_become_none():
    given = [None, math.nan, np.datetime64("NaT"), np.float32(0.5), np.str_("a"), 1, True]
    found = as_labels(given, 7)
    assert found == [None, None, None, 0.5, "a", 1, True]
    assert [type(value) for value in found[3:]] == [float, str, int, bool]
    assert as_labels(None, 7) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([b"bytes", 1], "numbers or strings .* got bytes"),
        ([(1, 2), 1j], "got complex, tuple"),
        ([1], r"one label per row, 2 in all; got shape \(1,\)"),
        (np.zeros((2, 1)), r"got shape \(2, 1\)"),
    ],
)
def test_invalid_labels_are_rejected(given, message):
    with pytest.raises(ValueError, match=message):
        as_labels(given, 2)


def test_label_arrays_have_a_type_that_changes_no_label():
    assert label_array([1, 2]).dtype.kind == "i"
    assert label_array(["a", "bc"]).dtype.kind == "U"
    for mixed in ([1, "1"], [1, None], [2**70, 1], ["a\0", "a"]):
        assert label_array(mixed).dtype == object
        assert label_array(mixed).tolist() == mixed
