"""Pictures that are added, items that are removed, thumbnails, and pages of other sites that would write."""

import io
import shutil
from contextlib import closing

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from dish.index.hamming import HammingIndex
from dish.web import pictures
from dish.web.app import create_app
from dish.web.collection import Collection
from dish.web.journal import Journal, pending
from dish.web.middleware import Limits
from dish.web.thumbnails import Thumbnails
from helpers.web import ink, make_client, png, upload, writable

BASE = "http://127.0.0.1:8000"


@pytest.fixture
def photos(learned, tmp_path):
    """A writable collection over a folder of pictures of digits, and a client of it."""
    hasher, X, _, _ = learned
    folder = tmp_path / "album"
    for i in range(6):
        path = folder / ("odd" if i % 2 else "even") / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(ink(X[i])))
    index = HammingIndex(32)
    index.add(hasher.transform(X[:6]), ids=[f"{'odd' if i % 2 else 'even'}/{i}.png" for i in range(6)])
    index.save(tmp_path / "ix.dish")
    found = Collection(
        hasher,
        HammingIndex.load(tmp_path / "ix.dish"),
        takes="digits8",
        pictures=pictures.FolderPictures(folder),
        journal=Journal(tmp_path / "ix.dish.journal.db"),
        path=tmp_path / "ix.dish",
        title="album",
    )
    with closing(found):
        yield TestClient(create_app(found), base_url=BASE), folder, found


def add(client, data, path="/items", name="x.png", **fields):
    return client.post(path, files={"image": (name, data)}, data=fields)


def test_a_picture_is_added_kept_and_found(photos, learned):
    client, folder, found = photos
    data = png(ink(learned[1][10]))
    assert add(client, data, name="mine.png").json() == {"saved": 1, "size": 7, "id": "mine.png"}
    assert (folder / "mine.png").read_bytes() == data
    assert client.get("/images/mine.png").content == data
    hits = client.post("/search", json={"id": "mine.png", "k": 1}).json()
    assert (hits["ids"], hits["distances"]) == (["mine.png"], [0])
    assert add(client, data, name="mine.png").json()["id"] == "mine-2.png"  # nothing is replaced
    assert add(client, data, path="/items/image", id="a name", label="odd").json()["id"] == "odd/a name.png"
    assert found.index.labels_of(["odd/a name.png"]).tolist() == ["odd"]
    assert found.journal.size > 0


@pytest.mark.parametrize(
    "name", ["../../etc/passwd.png", "/etc/x.png", "a\\..\\b.png", "..", ".hidden", "\0x", "é ü.jpg"]
)
def test_names_of_uploads_stay_in_the_folder(photos, learned, name):
    client, folder, _ = photos
    before = set(folder.parent.rglob("*"))
    answer = add(client, png(ink(learned[1][3])), id=name, name="x.png")
    if answer.status_code == 200:
        new = [p for p in set(folder.parent.rglob("*")) - before if p.is_file() and "journal" not in p.name]
        assert [p.parent for p in new] == [folder]
        assert new[0].suffix == ".png"
        assert not new[0].name.startswith(".")
    else:
        assert answer.status_code == 422


def test_bad_pictures_leave_nothing(photos, learned, monkeypatch):
    client, folder, found = photos
    before = sorted(folder.rglob("*"))
    assert add(client, b"no picture").status_code == 422
    assert client.post("/items", data={"id": "x"}, files={"other": ("a", b"")}).status_code == 422
    monkeypatch.setattr(found.journal, "append", lambda record: (_ for _ in ()).throw(OSError("full")))
    assert add(client, png(ink(learned[1][3]))).status_code == 503
    assert sorted(folder.rglob("*")) == before
    assert client.get("/info").json()["size"] == 6


def test_a_picture_for_an_index_without_a_folder_needs_an_id(learned, tmp_path):
    with closing(writable(learned, tmp_path)) as found:
        found.takes = "digits8"
        client = TestClient(create_app(found))
        data = png(ink(learned[1][0]))
        assert "give the picture an id" in add(client, data).json()["error"]
        assert add(client, data, id="7").json() == {"saved": 1, "size": 601, "id": 7}
        assert add(client, data, id="7").status_code == 409
        assert add(client, data, id="seven").status_code == 422


def test_items_are_removed_for_good(learned, tmp_path):
    with closing(writable(learned, tmp_path)) as found:
        client = TestClient(create_app(found))
        assert client.delete("/items/1003").json() == {"removed": 1, "size": 599}
        assert client.delete("/items/1003").status_code == 404
        assert client.post("/search", json={"id": 1003}).status_code == 404
        new = {"ids": [1004, 5], "vectors": learned[1][:2].tolist()}
        client.post("/items", json=new)
        client.delete("/items/1004")
        client.delete("/items/5")
        client.post("/items", json={"ids": [5], "vectors": learned[1][:1].tolist()})
        shutil.copytree(tmp_path, tmp_path / "crash", ignore=shutil.ignore_patterns("crash"))
    assert pending(tmp_path / "ix.dish.journal.db") == 0
    index = HammingIndex.load(tmp_path / "ix.dish")
    assert (1003 in index, 1004 in index, 5 in index, len(index)) == (False, False, True, 599)
    with closing(writable(learned, tmp_path / "crash")) as replayed:  # from the journal alone
        assert sorted(replayed.index.ids.tolist()) == sorted(index.ids.tolist())


def test_nothing_is_removed_or_added_where_nothing_may_be_written(client, learned):
    assert client.delete("/items/1003").status_code == 403
    assert upload(client, png(ink(learned[1][0])), path="/items", id="1").status_code == 403


def test_pages_of_other_sites_cannot_write(photos, learned):
    client, _, found = photos
    data = png(ink(learned[1][0]))
    for origin in ("http://evil.example", "http://127.0.0.1:9999", "null", "https://127.0.0.1:8000.evil.example"):
        answer = client.post("/items", files={"image": ("x.png", data)}, headers={"origin": origin})
        assert answer.status_code == 403, origin
        assert "another site" in answer.json()["error"]
        assert client.delete("/items/odd/1.png", headers={"origin": origin}).status_code == 403
    same = client.post("/items", files={"image": ("x.png", data)}, headers={"origin": BASE})
    assert same.status_code == 200
    proxied = TestClient(create_app(found, Limits(hosts=("127.0.0.1", "photos.example"))), base_url=BASE)
    ours = proxied.post("/items", files={"image": ("y.png", data)}, headers={"origin": "https://photos.example"})
    assert ours.status_code == 200


def test_thumbnails_are_small_and_in_shape(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (900, 1200, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "large.png")
    turned = Image.fromarray(noise)
    exif = turned.getexif()
    exif[0x0112] = 6  # to be turned by 90°
    turned.save(tmp_path / "turned.jpg", exif=exif, quality=95)
    Image.fromarray(noise[:40, :40]).save(tmp_path / "small.png")
    Image.fromarray(noise).save(tmp_path / "grey.tif")
    thumbnails = Thumbnails(pictures.FolderPictures(tmp_path))
    for key, size in (("large.png", (320, 240)), ("turned.jpg", (240, 320)), ("grey", (320, 240))):
        content, kind = thumbnails.read(key, 320)
        assert (Image.open(io.BytesIO(content)).size, kind) == (size, "image/jpeg")
        assert len(content) < 120_000
        assert thumbnails.read(key, 320)[0] is content  # kept
    assert thumbnails.read("small.png", 320) == ((tmp_path / "small.png").read_bytes(), "image/png")
    assert thumbnails.read("none.png", 320) is None


def test_thumbnails_forget_the_oldest(tmp_path, monkeypatch):
    noise = np.random.default_rng(0).integers(0, 256, (400, 400, 3), np.uint8)
    for i in range(4):
        Image.fromarray(noise).save(tmp_path / f"{i}.png")
    monkeypatch.setattr("dish.web.thumbnails.MEMORY", 100_000)
    thumbnails = Thumbnails(pictures.FolderPictures(tmp_path))
    for i in range(4):
        thumbnails.read(f"{i}.png", 320)
    assert 0 < len(thumbnails._kept) < 4
    assert thumbnails._bytes == sum(len(content) for content, _ in thumbnails._kept.values()) <= 100_000


def test_thumbnails_over_http(photos):
    client, _, _ = photos
    answer = client.get("/thumbnails/odd/1.png")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
    assert client.get("/thumbnails/odd/1.png?side=5").status_code == 422
    assert client.get("/thumbnails/nothing").status_code == 404
    assert client.get("/duplicates").status_code == 404


def test_what_close_means(learned):
    info = make_client(learned).get("/info").json()
    codes = np.unpackbits(learned[0].transform(learned[1]), axis=1).astype(int)
    rows, others = np.random.default_rng(1).integers(0, len(codes), (2, 8000))
    distances = np.abs(codes[rows] - codes[others]).sum(1)[rows != others]
    assert 0.02 < (distances < info["close_distance"] + 0.5).mean() < 0.12
    assert 0 <= info["close_distance"] < 10
