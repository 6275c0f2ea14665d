"""Photo libraries as collections of the web service."""

from dish.photos import PhotoOptions
from dish.web.journal import count_pending
from dish.web.photos import open_photos
from helpers.photos import draw


def test_writes_of_a_killed_server_are_not_lost(photo_folder, tmp_path, feature_network):
    home = tmp_path / "home"
    found, _ = open_photos(photo_folder, PhotoOptions(), home, writable=True, say=lambda line: None)
    found.remove("IMG_004.png")
    added = found.add_picture(draw(tmp_path / "new.png", 50).read_bytes(), None, "new.png", None, 10_000)
    found.writer.release()  # as if killed: the index file has none of it
    assert count_pending(home / "index.dish") == 2
    found, library = open_photos(photo_folder, PhotoOptions(), home, writable=False, say=lambda line: None)
    ids = found.index.ids.tolist()
    assert (added in ids, "IMG_004.png" in ids, len(ids)) == (True, False, 12)
    assert library.new == 1
