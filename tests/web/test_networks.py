"""The same file through `dish encode` and through the service; networks that are served."""

import threading
import warnings

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from dish import DeepDISH
from dish.index.hamming import HammingIndex
from dish.web import server
from dish.web.app import create_app
from dish.web.collection import Collection
from helpers.web import png, upload


def odd_pictures(folder):
    """Files of the kinds in which two decoders differ; 96 × 48 unless the kind says otherwise."""
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[:48, :96]
    colour = np.stack([rows * 5, columns * 2, (rows + columns) * 2], axis=2) + rng.integers(0, 20, (48, 96, 3))
    colour = colour.clip(0, 255).astype(np.uint8)
    deep = (columns * 680).astype(np.uint16)  # up to 64,600 of 65,535
    picture = Image.fromarray(colour)
    clear = np.dstack([colour, np.where(columns < 40, 0, 255).astype(np.uint8)])
    turned = Image.Exif()
    turned[0x0112] = 6  # "turn me by 90 degrees"
    kinds = {
        "wide.png": lambda file: picture.save(file),
        "tall.png": lambda file: picture.rotate(90, expand=True).save(file),
        "deep.png": lambda file: Image.fromarray(deep).save(file),
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
    """A network that learned from a folder of photographs that are not square."""
    folder = tmp_path_factory.mktemp("deep")
    rng = np.random.default_rng(0)
    for c in range(3):
        (folder / "photos" / f"c{c}").mkdir(parents=True)
        for i in range(8):
            pixels = rng.integers(0, 256, (24, 48, 3), dtype=np.uint8)
            pixels[:, :, c] //= 4
            Image.fromarray(pixels).save(folder / "photos" / f"c{c}" / f"{i}.png")
    params = {"head": "paper", "n_iter": 1, "epochs": 2}  # its codes differ by more than the class
    hasher = DeepDISH(n_bits=32, **params, image_size=32, device="cpu").fit(folder / "photos")
    hasher.save(folder / "m.dish")
    return hasher, folder / "m.dish"


def test_a_file_gets_the_same_code_from_the_service_as_from_encode(deep_model, tmp_path, cli):
    hasher, model = deep_model
    files = odd_pictures(tmp_path / "odd")
    code, _, err = cli("encode", model, tmp_path / "odd", "-o", tmp_path / "codes.npy")
    assert code == 0, err
    encoded, ids = np.load(tmp_path / "codes.npy"), np.load(tmp_path / "codes.ids.npy").tolist()
    index = HammingIndex(32)
    index.add(encoded, ids=[f"{i}: {id}" for i, id in enumerate(ids)])
    client = TestClient(create_app(Collection(hasher, index)))
    assert len({row.tobytes() for row in encoded}) > len(files) // 2  # the codes do tell the pictures apart
    for file, expected in zip(files, encoded, strict=True):
        for path in ("/search/image", "/search"):
            answer = upload(client, file.read_bytes(), path, k="1").json()
            assert (answer["code"], answer["distances"]) == (expected.tobytes().hex(), [0]), (file.name, path)
        for path in ("/encode/image", "/encode"):
            assert upload(client, file.read_bytes(), path).json()["codes"] == [expected.tobytes().hex()]


def test_uploads_touch_no_warning_filter(deep_model):
    """catch_warnings is not for threads: one that interleaves with another leaves "ignore everything" behind."""
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


def test_a_network_of_vectors_is_served_as_one(learned):
    _, X, y, _ = learned
    hasher = DeepDISH(n_bits=16, net="mlp", n_iter=1, epochs=2, device="cpu").fit(X.astype(np.float32), y)
    index = HammingIndex(16)
    index.add(hasher.transform(X.astype(np.float32)), labels=[str(v) for v in y])
    found = Collection(hasher, index)
    assert (found.takes, found.n_features) == ("vector", 64)
    server.warm_up(found)
    client = TestClient(create_app(found))
    answer = client.post("/search", json={"vector": X[3].tolist(), "k": 3}).json()
    assert answer["code"] == hasher.transform(X[3:4].astype(np.float32)).tobytes().hex()
    assert answer["distances"][0] == 0
    assert client.get("/info").json()["takes"] == "vector"
    assert upload(client, png(np.zeros((8, 8), np.uint8))).status_code == 415
    with pytest.raises(ValueError, match="takes vectors"):
        Collection(hasher, index, takes="image")
