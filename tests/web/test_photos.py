"""Photo libraries as collections of the web service."""

import numpy as np
import pytest

from dish import load
from dish.errors import FileInUseError
from dish.photos import PhotoOptions
from dish.photos.library import open_library
from dish.photos.reopen import LazyHasher
from dish.web.journal import count_pending
from dish.web.photos import open_or_update, open_photos
from helpers.photos import draw


def test_writes_of_a_killed_server_are_not_lost(photo_folder, tmp_path, feature_network):
    home = tmp_path / "home"
    found, _ = open_photos(photo_folder, PhotoOptions(), home, writable=True, say=lambda line: None)
    found.remove("IMG_004.png")
    added, _ = found.add_picture(draw(tmp_path / "new.png", 50).read_bytes(), None, "new.png", None, 10_000)
    found.writer.release()  # as if killed: the index file has none of it
    assert count_pending(home / "index.dish") == 2
    found, library = open_photos(photo_folder, PhotoOptions(), home, writable=False, say=lambda line: None)
    ids = found.index.ids.tolist()
    assert (added in ids, "IMG_004.png" in ids, len(ids)) == (True, False, 12)
    assert library.new == 1


@pytest.mark.parametrize("update", [open_or_update, open_library])
def test_library_stays_whole_beside_a_server_that_writes(photo_folder, tmp_path, feature_network, update):
    home = tmp_path / "home"
    found, _ = open_photos(photo_folder, PhotoOptions(), home, writable=True, say=lambda line: None)
    found.remove("IMG_004.png")
    before = {path.name: path.read_bytes() for path in home.glob("*.dish")}
    with pytest.raises(FileInUseError, match="is in use"):
        update(photo_folder, PhotoOptions(bits=32), home, lambda line: None)
    assert {path.name: path.read_bytes() for path in home.glob("*.dish")} == before
    found.writer.release()  # as if killed
    found, _ = open_photos(photo_folder, PhotoOptions(), home, writable=False, say=lambda line: None)
    assert (len(found), "IMG_004.png" in found.index) == (11, False)


def test_update_without_the_page_replays_the_journal(photo_folder, tmp_path, feature_network):
    home = tmp_path / "home"
    found, _ = open_photos(photo_folder, PhotoOptions(), home, writable=True, say=lambda line: None)
    found.remove("IMG_004.png")
    found.writer.release()  # as if killed
    library = open_or_update(photo_folder, PhotoOptions(bits=32), home, lambda line: None)
    assert (library.hasher.n_bits, len(library.index), "IMG_004.png" in library.index) == (32, 11, False)


def test_added_photos_get_the_codes_of_labels_that_the_library_knows(tmp_path, feature_network):
    folder, home = tmp_path / "p", tmp_path / "home"
    for label in ("cats", "dogs"):
        for i in range(5):
            draw(folder / label / f"{i}.png", 10 * len(label) + i + 7 * (label == "dogs"))
    open_library(folder, PhotoOptions(bits=32), home, lambda line: None)
    found, library = open_photos(folder, PhotoOptions(), home, writable=True, say=lambda line: None)
    assert isinstance(library.hasher, LazyHasher)  # nothing has changed: the model is loaded by the first upload
    data = draw(tmp_path / "new.png", 50).read_bytes()
    from_x = found.encode_picture(data, 10_000)
    for label, n in (("cats", 1), ("dogs", 1), ("owls", 0), (None, 0)):
        id, known = found.add_picture(data, None, "new.png", label, 10_000)
        assert known == n
        expected = load(home / "model.dish").with_labels(from_x, [label]) if n else from_x
        np.testing.assert_array_equal(found.index.get([id]), expected)
    assert (found.index.get(["cats/new.png"]) != found.index.get(["dogs/new.png"])).any()
    found.close()
