"""Values that go into stores and come out of them."""

import numpy as np
import pytest

from dish.errors import InputError
from dish.stores.rows import from_json, id_array, known_ids, make_filter, new_ids, to_json


def test_labels_of_different_types_have_different_texts():
    labels = [1, 1.0, True, "1", None, "é", -0.5, 2**70, 1e300, float("inf"), "\0"]
    texts = to_json(labels, len(labels))
    assert len(set(texts)) == len(texts)
    assert texts[:5] == ["1", "1.0", "true", '"1"', None]
    back = from_json(texts)
    assert back == labels
    assert [type(a) for a in back] == [type(a) for a in labels]
    assert all(text.isprintable() and text.isascii() for text in texts if text)
    assert to_json(None, 2) == [None, None]
    assert len(set(to_json([0.0, -0.0], 2))) == 1
    with pytest.raises(InputError, match="labels must hold one label per row"):
        to_json([1], 2)


def test_new_ids_are_of_the_type_of_the_table():
    assert new_ids(np.array([3, 1], np.int32), 2, "integer") == [3, 1]
    assert new_ids(np.array(["a", "b"]), 2, "string") == ["a", "b"]
    assert new_ids([], 0, "string") == []
    for ids, kind, message in (
        (["a"], "integer", "must be of type 'integer', got 'a'"),
        ([1], "string", "must be of type 'string', got 1"),
        (["a\0b"], "string", "ids must be text"),
        (["\ud800"], "string", "ids must be text"),
        ([4, 2, 4], "integer", "4 occurs twice"),
    ):
        with pytest.raises(InputError, match=message):
            new_ids(ids, len(ids), kind)


def test_ids_of_another_type_are_unknown():
    assert known_ids(np.array([1, 2]), "integer") == [1, 2]
    assert known_ids(np.array([1, 2]), "string") == []
    strings = id_array(["a", "b\0"], "string")
    assert known_ids(strings, "string") == ["a"]
    assert known_ids(strings, "integer") == []
    assert id_array([], "integer").dtype == np.int64


def test_a_filter_without_conditions_is_none():
    assert make_filter("integer", None, None, None) is None
    found = make_filter("integer", ["a"], [None, 2, np.nan, "b"], "x = 1")
    assert (found.ids, found.labels, found.no_label, found.where) == ([], ["2", '"b"'], True, "x = 1")
    assert not make_filter("integer", [1], [2], None).no_label
    with pytest.raises(InputError, match="labels must be a list"):
        make_filter("integer", None, "b", None)
