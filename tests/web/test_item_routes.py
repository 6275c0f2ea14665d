"""Adding and removing items and pictures, ids, and requests from other web sites."""

import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from urllib.parse import quote

import httpx
import numpy as np
import pytest
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

from dish import DISH, DISHK
from dish.errors import JournalError
from dish.index.hamming import HammingIndex
from dish.web import pictures
from dish.web.app import create_app
from dish.web.collection import Collection
from dish.web.index_writer import IndexWriter
from dish.web.journal import count_pending
from helpers.web import ink, png, serving, upload, writable

BASE = "http://127.0.0.1:8000"


@pytest.fixture
def photos(learned, tmp_path):
    """A client of a writable collection of pictures, its folder, and the collection."""
    hasher, X, _, _ = learned
    folder = tmp_path / "album"
    for i in range(6):
        path = folder / ("odd" if i % 2 else "even") / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(ink(X[i])))
    index = HammingIndex(32)
    index.add(hasher.transform(X[:6]), ids=[f"{'odd' if i % 2 else 'even'}/{i}.png" for i in range(6)])
    index.save(tmp_path / "ix.dish")
    writer = IndexWriter(tmp_path / "ix.dish")
    found = Collection(
        hasher,
        writer.index,
        takes="digits8",
        pictures=pictures.FolderPictures(folder),
        writer=writer,
        title="album",
    )
    with closing(found):
        yield TestClient(create_app(found), base_url=BASE), folder, found


def test_added_picture_is_stored_and_found(photos, learned):
    client, folder, found = photos
    data = png(ink(learned[1][10]))
    assert upload(client, data, "/items", name="mine.png").json() == {
        "saved": 1,
        "size": 7,
        "label_codes": 0,
        "id": "mine.png",
    }
    assert (folder / "mine.png").read_bytes() == data
    assert client.get("/images/mine.png").content == data
    hits = client.post("/search", json={"id": "mine.png", "k": 1}).json()
    assert (hits["ids"], hits["distances"]) == (["mine.png"], [0])
    assert upload(client, data, "/items", name="mine.png").json()["id"] == "mine-2.png"  # nothing is replaced
    assert upload(client, data, "/items/image", id="a name", label="odd").json()["id"] == "odd/a name.png"
    assert found.index.labels_of(["odd/a name.png"]).tolist() == ["odd"]
    assert found.writer.journal.size > 0


@pytest.mark.parametrize(
    "name", ["../../etc/passwd.png", "/etc/x.png", "a\\..\\b.png", "..", ".hidden", "\0x", "é ü.jpg"]
)
def test_upload_names_stay_in_the_folder(photos, learned, name):
    client, folder, _ = photos
    before = set(folder.parent.rglob("*"))
    answer = upload(client, png(ink(learned[1][3])), "/items", id=name)
    if answer.status_code == 200:
        new = [p for p in set(folder.parent.rglob("*")) - before if p.is_file() and "journal" not in p.name]
        assert [p.parent for p in new] == [folder]
        assert new[0].suffix == ".png"
        assert not new[0].name.startswith(".")
    else:
        assert answer.status_code == 422


def test_failed_upload_leaves_no_file(photos, learned, monkeypatch):
    client, folder, found = photos
    before = sorted(folder.rglob("*"))
    assert upload(client, b"no picture", "/items").status_code == 422
    assert client.post("/items", data={"id": "x"}, files={"other": ("a", b"")}).status_code == 422
    monkeypatch.setattr(found.writer.journal, "append", lambda record: (_ for _ in ()).throw(OSError("full")))
    assert upload(client, png(ink(learned[1][3])), "/items").status_code == 503
    assert sorted(folder.rglob("*")) == before
    assert client.get("/info").json()["size"] == 6


def test_picture_without_a_folder_needs_an_id(learned, tmp_path):
    with closing(writable(learned, tmp_path)) as found:
        found.takes = "digits8"
        client = TestClient(create_app(found))
        data = png(ink(learned[1][0]))
        assert "give the picture an id" in upload(client, data, "/items").json()["error"]
        assert upload(client, data, "/items", id="7").json() == {"saved": 1, "size": 601, "label_codes": 0, "id": 7}
        assert upload(client, data, "/items", id="7").status_code == 409
        assert upload(client, data, "/items", id="seven").status_code == 422


def test_removal_is_durable(learned, tmp_path):
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
    assert count_pending(tmp_path / "ix.dish") == 0
    index = HammingIndex.load(tmp_path / "ix.dish")
    assert (1003 in index, 1004 in index, 5 in index, len(index)) == (False, False, True, 599)
    with closing(writable(learned, tmp_path / "crash")) as replayed:  # from the journal alone
        assert sorted(replayed.index.ids.tolist()) == sorted(index.ids.tolist())


def test_read_only_server_rejects_removal_and_pictures(client, learned):
    assert client.delete("/items/1003").status_code == 403
    assert upload(client, png(ink(learned[1][0])), "/items", id="1").status_code == 403


def test_ids_that_start_with_the_text_come_first(client):
    found = client.get("/ids?like=150&n=12").json()
    assert found[:10] == list(range(1500, 1510))
    assert found[10:] == [1150]
    assert client.get("/ids?like=nothing").json() == []
    assert client.get("/ids").status_code == 422


def test_thumbnail_route(photos):
    client, _, _ = photos
    answer = client.get("/thumbnails/odd/1.png")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
    assert client.get("/thumbnails/odd/1.png?side=5").status_code == 422
    assert client.get("/thumbnails/nothing").status_code == 404
    assert client.get("/duplicates").status_code == 404


@pytest.mark.parametrize(
    "id", ["a", "a\n", "b\nc", "..", ".", "a/b", "a%2Fb", "/lead", "a//b", "é", "n\0", "007", "+", "&id=a", ""]
)
@pytest.mark.parametrize("form", ["/items/{}", "/items?id={}"])
def test_removal_hits_exactly_the_id(learned, tmp_path, id, form):
    hasher, X, _, _ = learned
    others = [other for other in ("a", "\ufffd", "a\n\n", "7", " ", "b") if other != id]
    index = HammingIndex(32)
    index.add(hasher.transform(X[: len(others) + 1]), ids=[id, *others])
    index.save(tmp_path / "ix.dish")
    with closing(writable(learned, tmp_path)) as found:
        client = TestClient(create_app(found))
        if (id, form) in ((".", "/items/{}"), ("..", "/items/{}")):  # clients turn these into other paths
            assert client.delete(form.format(quote(id, safe=""))).status_code in (404, 405, 422)
            return
        assert client.delete(form.format("%FF")).status_code == 422  # not UTF-8
        assert client.delete(form.format(quote(id, safe=""))).status_code == 200
        assert sorted(found.index.ids) == sorted(others)


@pytest.mark.parametrize("id", [2**63 - 1, -(2**63), 10**18, -(10**18), 0, -5])
def test_integer_ids_are_removed_by_their_digits_only(learned, tmp_path, id):
    hasher, X, _, _ = learned
    index = HammingIndex(32)
    index.add(hasher.transform(X[:3]), ids=[id, 3, 4])
    index.save(tmp_path / "ix.dish")
    with closing(writable(learned, tmp_path)) as found:
        client = TestClient(create_app(found))
        for wrong in ("٣", "0000000004", "4\n", " 4", "+4", "4.0", "4_0", "-04", "", "9" * 19, "9" * 5000):
            assert client.delete(f"/items/{quote(wrong, safe='')}").status_code == 404, wrong
            assert client.delete(f"/items?id={quote(wrong, safe='')}").status_code == 404, wrong
        assert client.delete(f"/items/{id}").status_code == 200
        assert sorted(found.index.ids.tolist()) == [3, 4]


def test_many_items_are_removed_in_one_step(learned, tmp_path):
    with closing(writable(learned, tmp_path)) as found:
        client = TestClient(create_app(found), base_url=BASE)
        written = found.writer.journal.last
        ids = [*range(1000, 1300), 1000, 5, "1301", 2**63 - 1]
        answer = client.post("/items/delete", json={"ids": ids})
        assert answer.json() == {"removed": 300, "size": 300, "not_found": [5, "1301", 2**63 - 1]}
        assert found.index.ids.tolist() == list(range(1300, 1600))
        assert found.writer.journal.last == written + 1  # one record: all of them or none
        assert client.post("/items/delete", json={"ids": [1000]}).json()["not_found"] == [1000]
        shutil.copytree(tmp_path, tmp_path / "crash", ignore=shutil.ignore_patterns("crash"))
    with closing(writable(learned, tmp_path / "crash")) as replayed:  # what a killed server had acknowledged
        replayed.writer.compact()
        assert replayed.index.ids.tolist() == list(range(1300, 1600))


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"ids": []}, 422, "ids"),
        ({"ids": [1.5]}, 422, "ids"),
        ({"ids": [True]}, 422, "ids"),
        ({"ids": "1000"}, 422, "ids"),
        ({"id": 1000}, 422, "ids"),
        ({"ids": list(range(10_001))}, 413, "at most 10,000"),
    ],
)
def test_rejects_invalid_removals(learned, tmp_path, body, status, says):
    with closing(writable(learned, tmp_path)) as found:
        answer = TestClient(create_app(found), base_url=BASE).post("/items/delete", json=body)
        assert (answer.status_code, says in answer.json()["error"], len(found)) == (status, True, 600), answer.text


def test_read_only_server_removes_nothing(client):
    answer = client.post("/items/delete", json={"ids": [1000]})
    assert (answer.status_code, "--writable" in answer.json()["error"]) == (403, True)


def test_failed_write_removes_nothing(learned, tmp_path, monkeypatch):
    with closing(writable(learned, tmp_path)) as found:

        def full(record):
            raise JournalError("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(found.writer.journal, "append", full)
            client = TestClient(create_app(found), base_url=BASE)
            answer = client.post("/items/delete", json={"ids": [1000, 1001]})
        assert (answer.status_code, len(found)) == (503, 600)


def at_once(n, function):
    """The results of n calls at the same time."""
    barrier = threading.Barrier(n)

    def call(i):
        barrier.wait()
        return function(i)

    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(call, range(n)))


def test_new_item_is_created_once(learned, tmp_path, monkeypatch):
    """The check and the write are one step, however the threads take turns."""
    with closing(writable(learned, tmp_path)) as found:
        found.takes = "digits8"
        data = [png(ink(learned[1][i])) for i in range(4)]
        contains = HammingIndex.__contains__

        def slow(self, id):
            answer = contains(self, id)
            time.sleep(0.05)
            return answer

        monkeypatch.setattr(HammingIndex, "__contains__", slow)

        def add(i):
            try:
                return found.add_picture(data[i], "77", "x.png", None, 10**6)[0]
            except HTTPException as error:
                return error.status_code

        assert sorted(at_once(4, add)) == [77, 409, 409, 409]

        def remove(_):
            try:
                return found.remove(77)
            except HTTPException as error:
                return error.status_code

        assert sorted(at_once(3, remove)) == [404, 404, 600]


def test_picture_does_not_replace_an_item_of_the_same_name(photos, learned):
    """Ids without suffix: a.jpg would be the item "a", which belongs to a.png."""
    _, folder, found = photos
    index = HammingIndex(32)
    index.add(learned[0].transform(learned[1][:2]), ids=["a", "b"])
    found.index = index
    (folder / "a.png").write_bytes(png(ink(learned[1][0])))
    assert found.add_picture(png(ink(learned[1][9]), "WEBP"), None, "a.webp", None, 10**6) == ("a-2", 0)
    assert index.get(["a"]).tolist() == learned[0].transform(learned[1][:1]).tolist()


def test_pictures_are_stored_after_the_last_item_was_removed(photos, learned):
    client, folder, found = photos
    found.writer.change({"ids": found.index.ids.tolist()})
    assert client.get("/info").json()["ids"] == "string"
    data = png(ink(learned[1][3]))
    for fields, id in (({}, "x.png"), ({"id": "2024"}, "2024.png"), ({"id": "cat"}, "cat.png")):
        answer = upload(client, data, "/items", **fields)
        assert (answer.status_code, answer.json().get("id")) == (200, id), answer.text
        assert (folder / id).read_bytes() == data
        assert client.get(f"/images/{id}").content == data
        found.remove(id)  # the index is empty for the next one too


def test_form_id_is_an_integer_only_if_the_ids_are(learned, tmp_path):
    with closing(writable(learned, tmp_path)) as found:
        found.takes = "digits8"
        data = png(ink(learned[1][3]))
        assert found.add_picture(data, "2024", "", None, 10**6) == (2024, 0)
        found.writer.change({"ids": found.index.ids.tolist()})
        assert found.add_picture(data, "2024", "", None, 10**6) == ("2024", 0)
        assert found.add_picture(data, "dog", "", None, 10**6) == ("dog", 0)


def test_uploads_at_once_get_names_of_their_own(photos, learned):
    client, folder, _ = photos
    data = png(ink(learned[1][3]))
    answers = at_once(8, lambda i: upload(client, data, "/items", name="same.png", label="odd").json())
    assert len({answer["id"] for answer in answers}) == 8
    assert len(list(folder.rglob("same*"))) == 8


@pytest.mark.parametrize("name", ["写" * 80, "𠀀" * 80, "é" * 200, "x" * 300])
def test_long_names_are_cut(photos, learned, name):
    client, folder, _ = photos
    for _ in range(2):  # the second one gets a number
        answer = upload(client, png(ink(learned[1][3])), "/items", name=f"{name}.png")
        assert answer.status_code == 200, answer.text
        assert (folder / answer.json()["id"]).is_file()


# --- codes of labels ---


def test_items_get_the_codes_of_labels_that_the_model_knows(learned, tmp_path):
    hasher, X, y, _ = learned
    wrong = int(y[0] + 1) % 10  # so that the code of the label differs from that of the vector
    labels = [wrong, None, "7", 11, -1, 2**62, "", "a tag"]
    ids = list(range(len(labels)))
    from_x = hasher.transform(X[:8])
    of_label = hasher.transform(X[:1], labels=[wrong])
    assert (of_label != from_x[:1]).any()
    with closing(writable(learned, tmp_path)) as found, serving(found) as (host, port):
        url = f"http://{host}:{port}"
        body = {"ids": ids, "vectors": X[:8].tolist(), "labels": labels}
        answer = httpx.post(f"{url}/items", json=body)
        metrics = httpx.get(f"{url}/metrics").text
        for kind, n in (("known", 1), ("unknown", 6), ("none", 1)):
            assert f'dish_items_saved_total{{label="{kind}"}} {n}.0' in metrics
        assert answer.json() == {"saved": 8, "size": 608, "label_codes": 1}
        hit = httpx.post(f"{url}/search", json={"code": of_label.tobytes().hex(), "k": 608}).json()
        at = hit["ids"].index(0)
        assert (hit["distances"][at], hit["labels"][at]) == (0, wrong)
        assert httpx.post(f"{url}/items", json={**body, "labels": None}).json()["label_codes"] == 0
        np.testing.assert_array_equal(found.index.get(ids), from_x)  # without labels, vectors decide again
        httpx.post(f"{url}/items", json=body)
        shutil.copytree(tmp_path, tmp_path / "crash", ignore=shutil.ignore_patterns("crash"))
    with closing(writable(learned, tmp_path / "crash")) as replayed:
        np.testing.assert_array_equal(replayed.index.get(ids), np.concatenate([of_label, from_x[1:]]))
        assert replayed.index.labels_of(ids).tolist() == labels  # stored as they came


@pytest.mark.parametrize("kind", ["label sets", "without codes of labels"])
def test_labels_of_other_models_change_no_code(digits, tmp_path, kind):
    X, y, _, _ = digits
    tags = [[str(c), "even" if c % 2 == 0 else "odd"] for c in y[:300]]
    hasher = (
        DISH(n_bits=32, n_anchors=40).fit(X[:300], tags)
        if kind == "label sets"
        else DISHK(n_bits=32, n_anchors=40).fit(X[:300], y[:300].astype(str))
    )
    with closing(writable((hasher, X[:20], y[:20], np.arange(20)), tmp_path)) as found:
        body = {"ids": [1, 2], "vectors": X[:2].tolist(), "labels": ["3", "even"]}
        answer = TestClient(create_app(found)).post("/items", json=body)
        assert answer.json() == {"saved": 2, "size": 20, "label_codes": 0}
        np.testing.assert_array_equal(found.index.get([1, 2]), hasher.transform(X[:2]))


def test_labelled_pictures_get_the_codes_of_their_labels(digits, tmp_path):
    X, y, _, _ = digits
    hasher = DISH(n_bits=32, n_anchors=60).fit(X[:600], y[:600].astype(str))
    label = str((y[5] + 1) % 10)
    with closing(writable((hasher, X[:20], y[:20], np.arange(20)), tmp_path, takes="digits8")) as found:
        client = TestClient(create_app(found), base_url=BASE)
        for id, given, n in (("100", {"label": label}, 1), ("101", {"label": "cat"}, 0), ("102", {}, 0)):
            answer = upload(client, png(ink(X[5])), "/items", id=id, **given).json()
            assert (answer["id"], answer["label_codes"]) == (int(id), n)
        by_label, *others = found.index.get([100, 101, 102])
        from_x = client.post("/encode/image", files={"image": ("x.png", png(ink(X[5])))}).json()["codes"][0]
        assert [other.tobytes().hex() for other in others] == [from_x, from_x]
        row = np.frombuffer(bytes.fromhex(from_x), np.uint8)[None]
        np.testing.assert_array_equal(by_label, hasher.with_labels(row, [label])[0])
        assert by_label.tobytes().hex() != from_x
        assert found.index.labels_of([100, 101, 102]).tolist() == [label, "cat", None]
