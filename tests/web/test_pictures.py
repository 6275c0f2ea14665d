"""Uploaded pictures, and the pictures that are shown."""

import time

import numpy as np
import pytest

from dish.web import pictures
from helpers.web import bomb, make_client, png, upload


def test_gist_of_a_photograph_is_the_row_of_the_dataset():
    from dish.datasets.gist import gist

    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
    prepare = pictures.PREPARE["gist32"]
    row = prepare.row(pictures.decode(png(image), 10_000, prepare.side))
    np.testing.assert_allclose(row, gist(image[None], normalize=True), atol=1e-6)
    wide = np.repeat(np.repeat(image, 4, axis=0), 4, axis=1)
    near = prepare.row(pictures.decode(png(wide), 100_000, prepare.side))
    assert float((near @ row.T)[0, 0]) > 0.95


def test_transparent_pixels_are_paper():
    clear = np.zeros((4, 4, 4), np.uint8)
    assert (pictures.decode(png(clear), 100) == 255).all()


def test_a_model_of_vectors_takes_no_pictures(learned):
    assert upload(make_client(learned, takes="vector"), png(np.zeros((8, 8), np.uint8))).status_code == 415


@pytest.mark.parametrize("side", [5_000, 60_000, 2**31 - 1])
def test_decompression_bombs_are_refused_unopened(client, side):
    start = time.perf_counter()
    answer = upload(client, bomb(side))
    assert answer.status_code == 413
    assert "pixels" in answer.json()["error"]
    assert time.perf_counter() - start < 2


def broken_pictures():
    whole = png(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    jpeg = png(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8), "JPEG")
    yield from {
        "cut PNG": whole[: len(whole) // 2],
        "cut JPEG": jpeg[: len(jpeg) // 2],
        "PNG header only": whole[:40],
        "flipped bytes": whole[:100] + bytes(255 - b for b in whole[100:300]) + whole[300:],
        "empty": b"",
        "text": b"not a picture",
        "SVG": b'<svg xmlns="http://www.w3.org/2000/svg"/>',
        "TIFF": png(np.zeros((4, 4), np.uint8), "TIFF"),
        "no pixels": bomb(0),
    }.items()


@pytest.mark.parametrize(("name", "data"), list(broken_pictures()))
def test_broken_pictures_are_refused(client, name, data):
    answer = upload(client, data)
    assert answer.status_code == 422, (name, answer.text)
    assert "not a readable picture" in answer.json()["error"]


def test_pictures_come_from_the_folder_only(learned, tmp_path):
    folder, outside = tmp_path / "in", tmp_path / "secret.png"
    (folder / "sub").mkdir(parents=True)
    content = png(np.zeros((3, 3), np.uint8))
    outside.write_bytes(content)
    for name in ("1000.png", "sub/a b.jpg", "x.svg", "notes.txt"):
        (folder / name).write_bytes(content)
    (folder / "out.png").symlink_to(outside)
    (folder / "dir").symlink_to(tmp_path)
    (folder / "within.png").symlink_to(folder / "1000.png")
    found = pictures.FolderPictures(folder)
    assert found.refused == 1
    client = make_client(learned, pictures=found)
    for key in ("1000", "1000.png", "sub/a%20b", "sub/a b.jpg", "within"):
        answer = client.get(f"/images/{key}")
        assert (answer.status_code, answer.content) == (200, content), key
        assert answer.headers["content-type"].startswith("image/")
        assert answer.headers["x-content-type-options"] == "nosniff"
    paths = ["out", "out.png", "dir/secret", "dir/secret.png", "x", "x.svg", "notes", "notes.txt", "", "."]
    paths += ["../secret.png", "..%2fsecret.png", "%2e%2e/secret.png", "sub/../../secret.png", "%00", "1000.png%00"]
    paths += ["//etc/passwd", "%2fetc%2fpasswd", str(outside), "..\\secret.png", "a" * 5000]
    for key in paths:
        assert client.get(f"/images/{key}").status_code == 404, key
    (folder / "1000.png").unlink()
    (folder / "1000.png").symlink_to(outside)  # after the table was made
    assert client.get("/images/1000").status_code == 404
    assert client.get("/info").json()["pictures"] is True


def test_without_pictures_there_are_none(client):
    assert client.get("/images/1000").status_code == 404
    with pytest.raises(NotADirectoryError, match="not a folder"):
        pictures.FolderPictures("/nowhere")
