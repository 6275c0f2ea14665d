"""Labels: kept as they are given, missing where they are missing, forgotten when nobody has them."""

import json
import math

import numpy as np
import pytest

from dish import HammingIndex
from dish.io import modelfile

B = np.random.default_rng(0).integers(0, 256, (8, 2), dtype=np.uint8)
NAT = np.datetime64("NaT")


def reloaded(ix, tmp_path, **options):
    ix.save(tmp_path / "ix.dish")
    return HammingIndex.load(tmp_path / "ix.dish", **options)


GAPS = {
    "NaN in floats": (np.array([np.nan, 1, np.nan, 2, 3, np.nan, 4, 5]), [None, 1, None, 2, 3, None, 4, 5]),
    "None among words": (["a", None, "b", None, "a", "c", None, "d"], ["a", None, "b", None, "a", "c", None, "d"]),
    "all kinds": ([None, math.nan, NAT, np.float32("nan"), 1, "x", None, 2.5], [None] * 4 + [1, "x", None, 2.5]),
    "nothing else": ([math.nan] * 8, [None] * 8),
}


@pytest.mark.parametrize("kind", GAPS)
@pytest.mark.parametrize("mmap", [False, True])
def test_missing_labels_stay_missing_and_the_others_in_their_rows(kind, mmap, tmp_path):
    given, wanted = GAPS[kind]
    ix = HammingIndex(16)
    ix.add(B, labels=given)
    for one in (ix, reloaded(ix, tmp_path, mmap=mmap), ix.snapshot()):
        assert one.labels_of(one.ids).tolist() == wanted
    ix.upsert(B[:2], [1, 6], labels=[math.nan, 9])
    wanted = [wanted[i] for i in (0, 2, 3, 4, 5, 7)] + [None, 9]
    for one in (ix, reloaded(ix, tmp_path, mmap=mmap)):
        assert one.labels_of(one.ids).tolist() == wanted


def test_a_file_of_an_early_version_with_nan_among_its_labels(tmp_path):
    """Every NaN was a label of its own there; the rows were right until the file was read."""
    values = [math.nan, 1.0, math.nan, 2.0, 3.0, math.nan, 4.0, 5.0]
    arrays = {
        "codes": B.view(np.uint16),
        "ids": np.arange(8),
        "labels": np.arange(8, dtype=np.int32),
        "label_values": np.frombuffer(json.dumps(values).encode(), np.uint8),
    }
    init = {"n_bits": 16, "mode": "exact", "n_lists": None, "n_probe": None}
    content = {"init": init, "fitted": {"rows": 8, "next_id": 8}}
    modelfile.save(tmp_path / "old.dish", "HammingIndex", content, arrays)
    ix = HammingIndex.load(tmp_path / "old.dish")
    assert ix.labels_of(ix.ids).tolist() == [None, 1, None, 2, 3, None, 4, 5]


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


def test_labels_that_no_row_has_are_forgotten(tmp_path):
    ix = HammingIndex(16)
    ix.add(B, labels=[f"first {i}" for i in range(8)])
    for i in range(300):
        ix.upsert(B, range(8), labels=[f"label {i} {j}" for j in range(8)])
    assert len(ix.snapshot().generation.vocabulary.values) < 200  # of 2,408 that there were
    again = reloaded(ix, tmp_path)
    assert again.snapshot().generation.vocabulary.values == [f"label 299 {j}" for j in range(8)]
    assert b"first" not in (tmp_path / "ix.dish").read_bytes()


def test_labels_must_be_numbers_or_strings():
    ix = HammingIndex(16)
    for bad, name in ((b"bytes", "bytes"), ((1, 2), "tuple"), (1j, "complex")):
        with pytest.raises(ValueError, match=f"numbers or strings .* got {name}"):
            ix.add(B, labels=[bad, *range(7)])
    with pytest.raises(ValueError, match="one per row"):
        ix.add(B, labels=np.zeros((8, 1)))
    assert len(ix) == 0
