"""`dish photos` on the command line."""

import json
import logging

import numpy as np
import pytest
from PIL import Image

import dish
from dish import HammingIndex
from dish.io import images
from dish.photos import PhotoOptions, reopen
from dish.web import server
from helpers.photos import draw


def test_no_page_updates_the_library(photo_folder, tmp_path, feature_network, cli):
    (photo_folder / "broken.jpg").write_bytes(b"no picture")
    code, out, _ = cli("photos", photo_folder, "--cache", tmp_path / "home", "--no-page")
    assert code == 0
    assert "13 new of 13 photos" in out
    assert "12 photos (13 new, 0 gone)" in out
    assert "1 photos cannot be read and are skipped" in out
    code, out, _ = cli("photos", photo_folder, "--cache", tmp_path / "home", "--no-page")
    assert (code, "12 photos (0 new, 0 gone)" in out, "computing" in out) == (0, True, False)


def test_the_page_accepts_whole_photos(photo_folder, tmp_path, feature_network, cli, monkeypatch):
    served = {}

    def serve(found, limits, **options):
        served.update(found=found, limits=limits, **options)
        found.close()

    monkeypatch.setattr(server, "serve", serve)
    code, _, errors = cli("photos", photo_folder, "--cache", tmp_path / "home", "--writable", "--port", "0")
    assert code == 0, errors
    assert served["found"].title == "Summer 2024"
    assert served["found"].writer is not None
    assert served["limits"].max_body > 30e6
    assert served["show"] is False  # no terminal, no browser
    assert not logging.getLogger("dish.web").isEnabledFor(logging.INFO)  # no line per thumbnail


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--train"], "--train needs labels"),
        (["--labels"], "--labels uses sub-folders as labels, but 12 photos are not in a sub-folder"),
        (["--epochs", "2"], "--epochs needs --train"),
        (["--token", " "], "--token must not be empty"),
        (["--bits", "0"], "--bits"),
    ],
)
def test_errors_are_one_line(photo_folder, tmp_path, feature_network, cli, options, says):
    code, out, errors = cli("photos", photo_folder, "--cache", tmp_path / "home", "--no-page", *options)
    assert code == 2
    assert says in errors
    assert len(errors.strip().splitlines()) == 1
    assert "computing" not in out  # before any work


def test_unreadable_photos_need_no_label(photo_folder, tmp_path, feature_network, cli):
    for name in ("a", "b"):
        (photo_folder / name).mkdir()
    for i, path in enumerate(sorted(path for path in photo_folder.iterdir() if path.is_file())):
        path.rename(photo_folder / "ab"[i % 2] / path.name)
    (photo_folder / "broken.jpg").write_bytes(b"not an image")
    code, _, errors = cli("photos", photo_folder, "--cache", tmp_path / "home", "--no-page", "--labels")
    assert code == 0, errors


def test_missing_extras_are_named_in_one_line(photo_folder, cli, monkeypatch):
    monkeypatch.setattr("dish.cli.photos.find_spec", lambda name: None)
    code, _, errors = cli("photos", photo_folder, "--no-page")
    assert (code, errors.strip()) == (
        2,
        "dish: dish photos needs its extras: pip install 'dish-hash[serve,efficientnet]'",
    )


def test_files_that_need_a_plug_in_are_reported(photo_folder, tmp_path, feature_network, cli, monkeypatch):
    (photo_folder / "a.heic").write_bytes(b"")
    monkeypatch.setattr(images, "suffixes", lambda: frozenset(images.SUFFIXES))
    _, out, _ = cli("photos", photo_folder, "--cache", tmp_path / "home", "--no-page")
    assert "1 .heic files are skipped; to read them, run pip install pillow-heif" in out


def test_a_cache_belongs_to_one_folder(photo_folder, tmp_path, feature_network, cli):
    for i in range(3):
        draw(tmp_path / "others" / f"IMG_00{i}.png", 50 + i)
    home = ("--cache", tmp_path / "home", "--no-page")
    assert cli("photos", photo_folder, *home)[0] == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "home").iterdir()}
    code, _, errors = cli("photos", tmp_path / "others", *home)
    assert (code, "give every folder a --cache of its own" in errors, str(photo_folder) in errors) == (2, True, True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "home").iterdir()} == before
    (tmp_path / "home" / "folder.json").write_text("?")
    code, _, errors = cli("photos", photo_folder, *home)
    assert (code, "folder.json is damaged" in errors) == (2, True)


def test_from_a_folder_to_codes_search_and_duplicates(tmp_path, feature_network, cli):
    folder, home = tmp_path / "pictures", tmp_path / "home"
    for i in range(8):
        draw(folder / f"{i}.png", i)
    with Image.open(folder / "3.png") as picture:
        picture.resize((64, 64)).save(folder / "copy of 3.jpg", quality=90)
    code, _, errors = cli("photos", folder, "--cache", home, "--bits", 32, "--no-page")
    assert code == 0, errors
    ix = HammingIndex.load(home / "index.dish")
    assert (len(ix), ix.n_bits) == (9, 32)
    np.save(tmp_path / "q.npy", ix.get(["3.png"]))
    code, out, errors = cli("search", home / "index.dish", "--codes", tmp_path / "q.npy", "-k", 2, "--json")
    assert code == 0, errors
    assert {hit["id"] for hit in json.loads(out)["hits"]} == {"3.png", "copy of 3.jpg"}
    code, out, errors = cli("info", home / "model.dish")
    assert (code, "PCAITQ" in out) == (0, True), errors
    library = reopen(folder, PhotoOptions(bits=32), home, dish.load, print)
    assert library.duplicates() == [["3.png", "copy of 3.jpg"]]
    (folder / "copy of 3.jpg").unlink()
    draw(folder / "new.png", 99)
    code, out, errors = cli("photos", folder, "--cache", home, "--bits", 32, "--no-page")
    assert (code, "9 photos (1 new, 1 gone)" in out) == (0, True), errors
    assert reopen(folder, PhotoOptions(bits=32), home, dish.load, print).duplicates() == []
