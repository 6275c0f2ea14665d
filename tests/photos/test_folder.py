import pytest

from dish.io import images
from dish.photos.folder import find_photos, report_unsupported, subfolder_labels
from helpers.photos import draw


def test_hidden_files_and_links_that_lead_outside_are_skipped(photo_folder, tmp_path):
    (photo_folder / ".hidden.png").write_bytes(b"")
    draw(photo_folder / ".git" / "a.png", 1)
    (photo_folder / "notes.txt").write_text("")
    draw(photo_folder / "deeper" / "b.png", 2)
    (photo_folder / "outside.png").symlink_to(draw(tmp_path / "secret.png", 5))
    (photo_folder / "inside.png").symlink_to(photo_folder / "IMG_000.png")
    found = find_photos(photo_folder)
    assert sorted(found) == sorted(["deeper/b.png", "inside.png", *(f"IMG_{i:03}.png" for i in range(12))])
    assert found["deeper/b.png"] == photo_folder.resolve() / "deeper" / "b.png"


def test_two_photos_are_needed(tmp_path):
    with pytest.raises(ValueError, match=r"must have at least two photos .*found 0"):
        find_photos(tmp_path)
    with pytest.raises(NotADirectoryError, match="is not a folder"):
        find_photos(draw(tmp_path / "a.png", 1))


def test_files_that_need_a_plug_in_are_reported(photo_folder, monkeypatch):
    (photo_folder / "a.heic").write_bytes(b"")
    monkeypatch.setattr(images, "suffixes", lambda: frozenset(images.SUFFIXES))
    lines = []
    report_unsupported(photo_folder, lines.append)
    assert lines == ["1 .heic files are skipped; to read them, run pip install pillow-heif"]


def test_when_subfolders_are_labels():
    assert subfolder_labels(["a/1", "a/2", "a/3", "b/1", "b/2", "b/3/4"], None).tolist() == ["a"] * 3 + ["b"] * 3
    assert subfolder_labels(["a/1", "a/2", "top"], None) is None
    assert subfolder_labels(["a/1", "b/1", "c/1"], None) is None  # too few photos per sub-folder
    assert subfolder_labels(["a/1", "b/1"], True).tolist() == ["a", "b"]
    assert subfolder_labels(["a/1", "a/2", "a/3", "b/1", "b/2", "b/3"], False) is None
    for names, problem in (
        (["a/1", "top"], "1 photos are not in a sub-folder"),
        (["a/1", "a/2"], "there are fewer than two sub-folders"),
    ):
        with pytest.raises(ValueError, match=problem):
            subfolder_labels(names, True)
