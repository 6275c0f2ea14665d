"""Files of a HammingIndex: damaged, foreign, memory-mapped, and interrupted while being written."""

import subprocess
import sys
import time

import numpy as np
import pytest

from dish import HammingIndex
from dish.errors import ModelFileError
from dish.index import files
from dish.io import modelfile
from helpers.codes import make_codes


@pytest.fixture
def saved(tmp_path):
    ix = HammingIndex(40)
    ix.add(make_codes("clustered", 700, 40), ids=[f"é{i}" for i in range(700)], labels=np.arange(700) % 5)
    ix.save(tmp_path / "ix.dish")
    return tmp_path / "ix.dish"


def test_truncated_and_corrupted_files_are_rejected(saved):
    whole = saved.read_bytes()
    rng = np.random.default_rng(0)
    for length in [0, 1, 8, 50, *rng.integers(60, len(whole), 20)]:
        saved.write_bytes(whole[:length])
        for mmap in (False, True):
            with pytest.raises(ModelFileError, match=r"ix\.dish"):
                HammingIndex.load(saved, mmap=mmap)
    for place in rng.integers(0, len(whole), 60):
        broken = bytearray(whole)
        broken[place] ^= 1 << int(rng.integers(0, 8))
        saved.write_bytes(broken)
        for mmap in (False, True):
            with pytest.raises(ModelFileError, match=r"ix\.dish"):
                HammingIndex.load(saved, mmap=mmap, verify=True)


def test_a_mapped_file_is_verified_only_on_request(saved):
    broken = bytearray(saved.read_bytes())
    broken[-2000] ^= 1  # in the codes or ids
    saved.write_bytes(broken)
    assert len(HammingIndex.load(saved, mmap=True)) == 700
    with pytest.raises(ModelFileError, match="checksum"):
        HammingIndex.load(saved)


def test_other_files_are_rejected(tmp_path, blobs):
    from dish import DISH, load

    X, y = blobs
    DISH(n_bits=8, n_anchors=20).fit(X, y).save(tmp_path / "m.dish")
    with pytest.raises(ModelFileError, match=r"m\.dish holds a DISH, not an index"):
        HammingIndex.load(tmp_path / "m.dish")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ModelFileError, match="text"):
        HammingIndex.load(tmp_path / "text")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        HammingIndex.load(tmp_path / "nowhere")
    modelfile.save(tmp_path / "odd.dish", "HammingIndex", {"init": {"n_bits": 8}}, {"codes": np.zeros((2, 3))})
    with pytest.raises(ModelFileError, match=r"odd\.dish"):
        HammingIndex.load(tmp_path / "odd.dish")
    HammingIndex(8).save(tmp_path / "ix.dish")
    with pytest.raises(ModelFileError, match="HammingIndex"):
        load(tmp_path / "ix.dish")


def test_a_mapped_index_reads_codes_from_the_file_until_it_is_written_to(saved):
    ix = HammingIndex.load(saved, mmap=True)
    assert isinstance(ix.snapshot().codes, np.memmap)
    B = make_codes("clustered", 700, 40)
    np.testing.assert_array_equal(ix.get([f"é{i}" for i in range(700)]), B)
    ix.add(B[:1], ["new"])
    ix.save(saved)  # over its own file
    assert HammingIndex.load(saved).search(B[:1], 700)[1][0, -1] != "new"
    assert "new" in HammingIndex.load(saved)


WRITER = """
import sys, numpy as np
from dish import HammingIndex
from dish.errors import ModelFileError
ix = HammingIndex(64)
ix.add(np.zeros((1_000_000, 8), np.uint8))
print("ready", flush=True)
for i in range(10**6):
    ix.save(sys.argv[1])
"""


@pytest.mark.slow
def test_a_killed_save_leaves_the_previous_file(tmp_path):
    path = tmp_path / "ix.dish"
    HammingIndex(64).save(path)
    left = set()
    for attempt in range(40):  # until one is killed while writing
        if left and attempt > 3:
            break
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
        assert writer.stdout.readline() == b"ready\n"
        time.sleep(0.03 + 0.06 * (attempt % 4) + 0.003 * attempt)
        writer.kill()
        writer.wait()
        assert len(HammingIndex.load(path)) in (0, 1_000_000)
        left.update(tmp_path.glob(".*.tmp"))
    assert left  # a save was interrupted
    HammingIndex(64).save(path)
    assert list(tmp_path.iterdir()) == [path]  # the next save removes its temporary file


def arrays(**changes):
    ix = HammingIndex(16)
    ix.add(make_codes("random", 3, 16), ids=[4, 2, 9], labels=["a", None, "b"])
    return {**files.to_arrays(ix.snapshot()), **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"codes": np.zeros((3, 1), np.uint8)}, "cannot be uint8"),
        ({"codes": np.zeros((2, 1), np.uint16)}, r"shape \(2, 1\)"),
        ({"ids": np.arange(4)}, "different number of ids"),
        ({"ids": np.arange(3.0)}, "wrong type"),
        ({"labels": np.zeros(2, np.int32)}, "different number of ids or labels"),
        ({"labels": np.zeros(3, np.int64)}, "wrong type"),
        ({"labels": np.array([0, 2, 1], np.int32)}, "not in its list of labels"),
        ({"labels": np.array([0, -2, 1], np.int32)}, "not in its list of labels"),
    ],
)
def test_arrays_that_do_not_fit_together_are_rejected(changes, message):
    with pytest.raises(ValueError, match=message):
        files.from_arrays(arrays(**changes), 3, 16, None)


def test_arrays_survive_a_round_trip():
    rows = files.from_arrays(arrays(), 3, 16, None)
    assert rows.ids.tolist() == [4, 2, 9]
    assert rows.labels_of([9, 2, 4]).tolist() == ["b", None, "a"]
    np.testing.assert_array_equal(rows.get([4, 2, 9]), make_codes("random", 3, 16))
