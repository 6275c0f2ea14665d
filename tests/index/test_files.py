"""Files of a HammingIndex, damaged and mapped ones too; the approximate mode."""

import subprocess
import sys
import time

import numpy as np
import pytest

from dish import HammingIndex, codes
from dish.errors import ModelFileError
from dish.index import accelerators
from dish.io import modelfile
from helpers.codes import assert_radius, brute_nearest, make, queries_of, view_of

# --- files ------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    ix = HammingIndex(40)
    ix.add(make("clustered", 700, 40), ids=[f"é{i}" for i in range(700)], labels=np.arange(700) % 5)
    ix.save(tmp_path / "ix.dish")
    return tmp_path / "ix.dish"


def test_every_cut_and_every_flipped_byte_is_noticed(saved):
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


def test_a_mapped_index_is_not_verified_unless_asked(saved):
    broken = bytearray(saved.read_bytes())
    broken[-2000] ^= 1  # among the codes or ids
    saved.write_bytes(broken)
    assert len(HammingIndex.load(saved, mmap=True)) == 700
    with pytest.raises(ModelFileError, match="checksum"):
        HammingIndex.load(saved)


@pytest.mark.slow
def test_foreign_files(tmp_path, blobs):
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


def test_a_mapped_index_reads_its_codes_from_the_file(saved):
    ix = HammingIndex.load(saved, mmap=True)
    assert isinstance(ix.snapshot().codes, np.memmap)
    B = make("clustered", 700, 40)
    np.testing.assert_array_equal(ix.get([f"é{i}" for i in range(700)]), B)
    ix.add(B[:1], ["new"])
    ix.save(saved)  # over the file it came from
    assert HammingIndex.load(saved).search(B[:1], 700)[1][0, -1] != "new"
    assert "new" in HammingIndex.load(saved)


WRITER = """
import sys, numpy as np
from dish import HammingIndex
ix = HammingIndex(64)
ix.add(np.zeros((1_000_000, 8), np.uint8))
print("ready", flush=True)
for i in range(10**6):
    ix.save(sys.argv[1])
"""


@pytest.mark.slow
def test_kill_during_save_leaves_a_whole_file(tmp_path):
    path = tmp_path / "ix.dish"
    HammingIndex(64).save(path)
    left = set()
    for attempt in range(40):  # until one is killed in the middle
        if left and attempt > 3:
            break
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
        assert writer.stdout.readline() == b"ready\n"
        time.sleep(0.03 + 0.06 * (attempt % 4) + 0.003 * attempt)
        writer.kill()
        writer.wait()
        assert len(HammingIndex.load(path)) in (0, 1_000_000)
        left.update(tmp_path.glob(".*.tmp"))
    assert left  # a save was cut off in the middle
    HammingIndex(64).save(path)
    assert list(tmp_path.iterdir()) == [path]  # and what it left is gone with the next


# --- approximate mode -------------------------------------------------------------------------------------


def test_approximate_mode():
    B = make("clustered", 8000, 64)
    Q = queries_of(B, 100, 64)
    ix = HammingIndex(64, mode="approximate", n_lists=40, n_probe=3)
    ix.add(B[:7000])
    ix.search(Q, 10)  # fills the lists
    assert view_of(ix).n == 7000
    ix.add(B[7000:])
    recall = ix.measure_recall(Q, 10)
    D, N = ix.search(Q, 10)
    exact = brute_nearest(Q, B, 10)[0]
    assert recall == pytest.approx((exact[:, -1:] >= D).mean())
    assert 0.4 < recall < 1
    assert (np.take_along_axis(codes.hamming(Q, B), N, 1) == D).all()
    D, N = ix.search(Q, 3000)  # more than three lists hold: nothing is padded
    assert (N >= 0).all()
    assert D.shape == (100, 3000)
    assert_radius(ix.radius_search(Q, 5), Q, B, 5)  # stays exact
    all_lists = HammingIndex(64, mode="approximate", n_lists=40, n_probe=40)
    all_lists.add(B)
    all_lists.search(Q, 10)
    assert view_of(all_lists) is not None
    assert all_lists.measure_recall(Q, 10) == 1
    np.testing.assert_array_equal(all_lists.search(Q, 10)[0], exact)


def test_the_approximate_mode_says_what_it_needs(monkeypatch):
    monkeypatch.setattr(accelerators.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'dish-hash\[faiss\]'"):
        HammingIndex(64, mode="approximate")
    HammingIndex(64)
