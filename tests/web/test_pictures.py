"""Uploaded pictures, and the pictures of items."""

import threading
import time
import warnings

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from dish.deep.dish_d import DISHD
from dish.index.hamming import HammingIndex
from dish.web import pictures
from dish.web.app import create_app
from dish.web.collection import Collection
from helpers.web import bomb, make_client, png, upload


def test_gist_equals_the_rows_of_the_dataset():
    from dish.datasets.gist import gist

    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
    prepare = pictures.PREPARATIONS["gist32"]
    row = prepare.to_row(pictures.decode(png(image), 10_000, prepare.side))
    np.testing.assert_allclose(row, gist(image[None], normalize=True), atol=1e-6)
    wide = np.repeat(np.repeat(image, 4, axis=0), 4, axis=1)
    near = prepare.to_row(pictures.decode(png(wide), 100_000, prepare.side))
    assert float((near @ row.T)[0, 0]) > 0.95


def test_transparent_pixels_become_white():
    clear = np.zeros((4, 4, 4), np.uint8)
    assert (pictures.decode(png(clear), 100) == 255).all()


def test_vector_model_rejects_pictures(learned):
    assert upload(make_client(learned, takes="vector"), png(np.zeros((8, 8), np.uint8))).status_code == 415


@pytest.mark.parametrize("side", [5_000, 60_000, 2**31 - 1])
def test_decompression_bombs_are_not_decoded(client, side):
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
def test_rejects_broken_pictures(client, name, data):
    answer = upload(client, data)
    assert answer.status_code == 422, (name, answer.text)
    assert "not a readable picture" in answer.json()["error"]


def test_pictures_come_only_from_the_folder(learned, tmp_path):
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
    assert found.n_rejected == 1
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


def test_no_pictures(client):
    assert client.get("/images/1000").status_code == 404
    with pytest.raises(NotADirectoryError, match="not a folder"):
        pictures.FolderPictures("/nowhere")


def odd_pictures(folder):
    """Write pictures of kinds that decoders may treat differently."""
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[:48, :96]
    colour = np.stack([rows * 5, columns * 2, (rows + columns) * 2], axis=2) + rng.integers(0, 20, (48, 96, 3))
    colour = colour.clip(0, 255).astype(np.uint8)
    sixteen_bit = (columns * 680).astype(np.uint16)  # up to 64,600 of 65,535
    picture = Image.fromarray(colour)
    clear = np.dstack([colour, np.where(columns < 40, 0, 255).astype(np.uint8)])
    turned = Image.Exif()
    turned[0x0112] = 6  # rotate by 90 degrees
    kinds = {
        "wide.png": lambda file: picture.save(file),
        "tall.png": lambda file: picture.rotate(90, expand=True).save(file),
        "deep.png": lambda file: Image.fromarray(sixteen_bit).save(file),
        "cmyk.jpg": lambda file: picture.convert("CMYK").save(file),
        "exif.jpg": lambda file: picture.save(file, exif=turned),
        "palette.png": lambda file: picture.quantize(16).save(file),
        "palette.gif": lambda file: picture.quantize(16).save(file, transparency=0),
        "clear.png": lambda file: Image.fromarray(clear).save(file),
        "clear.webp": lambda file: Image.fromarray(clear).save(file, lossless=True),
        "grey.png": lambda file: picture.convert("L").save(file),
    }
    folder.mkdir()
    for name, write in kinds.items():
        write(folder / name)
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def deep_model(tmp_path_factory):
    """A network trained on a folder of photographs that are not square."""
    folder = tmp_path_factory.mktemp("deep")
    rng = np.random.default_rng(0)
    for c in range(3):
        (folder / "photos" / f"c{c}").mkdir(parents=True)
        for i in range(4):
            pixels = rng.integers(0, 256, (24, 48, 3), dtype=np.uint8)
            pixels[:, :, c] //= 4
            Image.fromarray(pixels).save(folder / "photos" / f"c{c}" / f"{i}.png")
    hasher = DISHD(n_bits=32, n_iter=1, epochs=1, image_size=32, device="cpu").fit(folder / "photos")
    hasher.save(folder / "m.dish")
    return hasher, folder / "m.dish"


def test_service_and_encode_give_a_file_the_same_code(deep_model, tmp_path, cli):
    hasher, model = deep_model
    files = odd_pictures(tmp_path / "odd")
    code, _, err = cli("encode", model, tmp_path / "odd", "-o", tmp_path / "codes.npy")
    assert code == 0, err
    encoded, ids = np.load(tmp_path / "codes.npy"), np.load(tmp_path / "codes.ids.npy").tolist()
    index = HammingIndex(32)
    index.add(encoded, ids=[f"{i}: {id}" for i, id in enumerate(ids)])
    client = TestClient(create_app(Collection(hasher, index)))
    assert len({row.tobytes() for row in encoded}) > len(files) // 2  # the pictures have different codes
    for file, expected in zip(files, encoded, strict=True):
        for path in ("/search/image", "/search"):
            answer = upload(client, file.read_bytes(), path, k="1").json()
            assert (answer["code"], answer["distances"]) == (expected.tobytes().hex(), [0]), (file.name, path)
        for path in ("/encode/image", "/encode"):
            assert upload(client, file.read_bytes(), path).json()["codes"] == [expected.tobytes().hex()]


def test_uploads_do_not_change_warning_filters(deep_model):
    """``catch_warnings`` is not thread-safe: two that overlap can leave a filter behind that ignores everything."""
    hasher, _ = deep_model
    index = HammingIndex(32)
    client = TestClient(create_app(Collection(hasher, index)))
    data = png(np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8))
    before = list(warnings.filters)
    threads = [threading.Thread(target=lambda: [upload(client, data) for _ in range(5)]) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert warnings.filters == before
