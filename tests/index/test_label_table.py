"""Labels of an index: values and types are kept, missing ones stay missing, unused ones are dropped."""

import json
import math

import numpy as np
import pytest

from dish import HammingIndex
from dish.index.label_table import LabelTable

B = np.random.default_rng(0).integers(0, 256, (8, 2), dtype=np.uint8)
NAT = np.datetime64("NaT")


def reloaded(ix, tmp_path, **options):
    ix.save(tmp_path / "ix.dish")
    return HammingIndex.load(tmp_path / "ix.dish", **options)


def test_labels_of_different_types_have_different_indices():
    table = LabelTable()
    assert table.indices_of([1, "1", None, 1.0, True, 1]).tolist() == [0, 1, -1, 2, 3, 0]
    assert table.indices_of(["new", "1"]).tolist() == [4, 1]


def test_a_mask_keeps_types_apart_and_ignores_unknown_labels():
    table = LabelTable([1, "1", 1.0, True])
    assert table.mask([1.0, "other", True]).tolist() == [False, False, True, True, False]
    assert table.mask([None, "1"]).tolist() == [False, True, False, False, True]
    assert table.values == [1, "1", 1.0, True]


def test_compaction_renumbers_the_labels_in_use():
    table, indices = LabelTable("abcd").compacted(np.array([3, -1, 1, 3], np.int32))
    assert table.values == ["b", "d"]
    assert indices.tolist() == [1, -1, 0, 1]


def test_json_round_trip():
    values = [1, "1", 1.0, True, math.inf, 2**70, "é", ""]
    found = LabelTable.from_json(LabelTable(values).to_json()).values
    assert [(type(value), value) for value in found] == [(type(value), value) for value in values]


@pytest.mark.parametrize("values", [{"a": 1}, ["a", ["b"]], ["a", None], ["a", "b", "a"]])
def test_invalid_label_lists_are_rejected(values):
    with pytest.raises(ValueError, match="its list of labels"):
        LabelTable.from_json(np.frombuffer(json.dumps(values).encode(), np.uint8))


GAPS = {
    "NaN in floats": (np.array([np.nan, 1, np.nan, 2, 3, np.nan, 4, 5]), [None, 1, None, 2, 3, None, 4, 5]),
    "None among strings": (["a", None, "b", None, "a", "c", None, "d"], ["a", None, "b", None, "a", "c", None, "d"]),
    "all kinds": ([None, math.nan, NAT, np.float32("nan"), 1, "x", None, 2.5], [None] * 4 + [1, "x", None, 2.5]),
    "only missing": ([math.nan] * 8, [None] * 8),
}


@pytest.mark.parametrize("kind", GAPS)
@pytest.mark.parametrize("mmap", [False, True])
def test_missing_labels_stay_missing(kind, mmap, tmp_path):
    given, wanted = GAPS[kind]
    ix = HammingIndex(16)
    ix.add(B, labels=given)
    for one in (ix, reloaded(ix, tmp_path, mmap=mmap), ix.snapshot()):
        assert one.labels_of(one.ids).tolist() == wanted
    ix.upsert(B[:2], [1, 6], labels=[math.nan, 9])
    wanted = [wanted[i] for i in (0, 2, 3, 4, 5, 7)] + [None, 9]
    for one in (ix, reloaded(ix, tmp_path, mmap=mmap)):
        assert one.labels_of(one.ids).tolist() == wanted


@pytest.mark.parametrize(
    "given",
    [
        [1, "1", 1.0, True, "True", "a\0", "a", ""],
        [2**53, 2**53 + 1, -1, 2**63, 2**70, 0, 1, 2],
        [True, False] * 4,
        ["001", "01", "1", "1.0", "nan", "None", "é", " "],
        [0.1, 1e300, -0.5, math.inf, 2.0, 3.0, 4.0, 5.0],
    ],
)
def test_labels_keep_value_and_type(given, tmp_path):
    ix = HammingIndex(16)
    ix.add(B, labels=given)
    for one in (ix, reloaded(ix, tmp_path)):
        found = one.labels_of(one.ids).tolist()
        assert found == given
        assert [type(value) for value in found] == [type(value) for value in given]


def test_unused_labels_are_dropped(tmp_path):
    ix = HammingIndex(16)
    ix.add(B, labels=[f"first {i}" for i in range(8)])
    for i in range(300):
        ix.upsert(B, range(8), labels=[f"label {i} {j}" for j in range(8)])
    assert len(ix.snapshot().generation.label_table.values) < 200  # of 2,408 in all
    again = reloaded(ix, tmp_path)
    assert again.snapshot().generation.label_table.values == [f"label 299 {j}" for j in range(8)]
    assert b"first" not in (tmp_path / "ix.dish").read_bytes()
