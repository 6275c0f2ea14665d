"""The cache of image features: what it keeps, and when it is emptied."""

import os

import numpy as np
import pytest

from dish.errors import DataFileError
from dish.io.feature_cache import FeatureCache, Stamp

ROWS = {"a.jpg": np.arange(4, dtype=np.float32), "b.jpg": np.ones(4, np.float32)}
STAMPS = {"a.jpg": Stamp(10, 100), "b.jpg": Stamp(20, 200), "bad.jpg": Stamp(30, 300)}


@pytest.fixture
def path(tmp_path):
    with FeatureCache(tmp_path / "new" / "features.db", "net 1") as cache:
        cache.put(STAMPS, ROWS, {"bad.jpg": "not an image"})
    return tmp_path / "new" / "features.db"


def test_features_problems_and_stamps_are_kept(path):
    with FeatureCache(path, "net 1") as cache:
        assert cache.stamps() == STAMPS
        assert cache.problems() == {"bad.jpg": "not an image"}
        np.testing.assert_array_equal(cache.read(["b.jpg", "a.jpg"]), [ROWS["b.jpg"], ROWS["a.jpg"]])
        assert cache.read([]).shape == (0, 0)


def test_put_replaces_and_forget_deletes(path):
    with FeatureCache(path, "net 1") as cache:
        cache.put({"bad.jpg": Stamp(31, 301)}, {"bad.jpg": ROWS["a.jpg"]}, {})
        cache.forget(["a.jpg", "unknown.jpg"])
        assert cache.problems() == {}
        assert sorted(cache.stamps()) == ["b.jpg", "bad.jpg"]


def test_features_of_another_network_are_deleted(path):
    with FeatureCache(path, "net 2") as cache:
        assert cache.stamps() == {}
    with FeatureCache(path, "net 2") as cache:
        cache.put(STAMPS, ROWS, {})
    with FeatureCache(path, "net 2") as cache:
        assert sorted(cache.stamps()) == ["a.jpg", "b.jpg"]


def test_a_damaged_cache_says_what_to_do(path):
    path.write_bytes(b"not a database, but long enough to be read as one")
    with pytest.raises(DataFileError, match=r"features\.db cannot be used .*: remove it"):
        FeatureCache(path, "net 1")


def test_stamps_change_with_the_file(tmp_path):
    file = tmp_path / "a.jpg"
    file.write_bytes(b"1")
    before = Stamp.of(file)
    assert Stamp.of(file) == before
    os.utime(file, ns=(0, before.changed + 1))
    assert Stamp.of(file) != before
    file.write_bytes(b"12")
    assert Stamp.of(file).size == 2
