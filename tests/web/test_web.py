"""The service: through the app, and as a real process that is killed."""

import io
import json
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import time
import zlib
from contextlib import closing

import httpx
import hypothesis
import numpy as np
import pytest
import schemathesis
from PIL import Image
from starlette.testclient import TestClient

from dish import DISH, codes
from dish.index.hamming import HammingIndex
from dish.web import collection as collections
from dish.web import guard, pictures
from dish.web.app import create_app
from dish.web.collection import Collection
from dish.web.errors import Refused
from dish.web.journal import Journal, JournalError

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def learned(digits):
    """A hasher, rows, labels and the ids they have in the index."""
    X, y, _, _ = digits
    return (
        DISH(n_bits=32, n_anchors=60, random_state=0).fit(X[:600], y[:600]),
        X[:600],
        y[:600],
        np.arange(1000, 1600),
    )


def make_index(learned):
    hasher, X, y, ids = learned
    index = HammingIndex(32)
    index.add(hasher.transform(X), ids=ids, labels=[f"digit {v}" for v in y])
    return index


def make_client(learned, limits=None, **options):
    options.setdefault("takes", "digits8")
    app = create_app(Collection(learned[0], make_index(learned), **options), limits)
    return TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)


@pytest.fixture(scope="module")
def client(learned):
    return make_client(learned)


def png(pixels, kind="PNG"):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def ink(row):
    """A row of digits as the picture the page shows: dark on white."""
    return (255 - row.reshape(8, 8) * 255 / 16).astype(np.uint8)


def upload(client, data, path="/search", **fields):
    return client.post(path, files={"image": ("x.png", data)}, data=fields)


# --- searching ---


def test_search_by_vector_is_the_exact_search(client, learned, digits):
    hasher, X, y, ids = learned
    base = hasher.transform(X)
    for row in digits[2][:5]:
        answer = client.post("/search", json={"vector": row.tolist(), "k": 12}).json()
        code = hasher.transform(row[None])
        D = codes.hamming(code, base)[0]
        assert answer["code"] == code.tobytes().hex()
        assert answer["distances"] == np.sort(D)[:12].tolist()
        at = [int(np.flatnonzero(ids == i)[0]) for i in answer["ids"]]
        assert D[at].tolist() == answer["distances"]
        assert answer["labels"] == [f"digit {y[i]}" for i in at]
        assert answer["codes"] == [base[i].tobytes().hex() for i in at]
        assert answer["n_bits"] == 32
        assert answer["time_ms"].keys() == {"encode", "search"}


def test_radius_takes_all_that_are_near_and_says_what_was_cut_off(learned):
    hasher, X, _, ids = learned
    base = hasher.transform(X)
    client = make_client(learned, guard.Limits(max_k=5))
    D = codes.hamming(base[:1], base)[0]
    n = int((D <= 3).sum())
    assert n > 5
    answer = client.post("/search", json={"id": 1000, "radius": 3}).json()
    assert answer["found"] == n
    assert answer["distances"] == np.sort(D)[:5].tolist()
    wide = make_client(learned).post("/search", json={"id": 1000, "radius": 3}).json()
    assert sorted(wide["ids"]) == ids[D <= 3].tolist()
    assert wide["distances"] == sorted(wide["distances"])
    alone = hasher.transform(np.zeros((1, 64)) + 7)
    gap = int(codes.hamming(alone, base).min())
    if gap:
        nothing = make_client(learned).post("/search", json={"vector": [7] * 64, "radius": gap - 1}).json()
        assert (nothing["ids"], nothing["found"]) == ([], 0)


def test_search_by_id_and_by_picture_give_the_code_of_the_row(client, learned):
    hasher, X, _, _ = learned
    code = hasher.transform(X[7:8]).tobytes().hex()
    assert client.post("/search", json={"id": 1007}).json()["code"] == code
    assert len(client.post("/search", json={"id": 1007}).json()["ids"]) == 10
    by_picture = upload(client, png(ink(X[7])), k="3")
    assert by_picture.status_code == 200
    assert by_picture.json()["code"] == code
    assert len(by_picture.json()["ids"]) == 3
    assert upload(client, png(255 - ink(X[7]))).json()["code"] == code  # light on dark
    assert upload(client, png(ink(X[7])), "/encode").json()["codes"] == [code]


def test_encode_gives_the_codes_of_the_hasher(client, learned):
    hasher, X, _, _ = learned
    answer = client.post("/encode", json={"vectors": X[:9].tolist()}).json()
    assert answer["codes"] == [c.tobytes().hex() for c in hasher.transform(X[:9])]


def test_k_beyond_the_index_gives_all_of_it(learned):
    client = make_client(learned, guard.Limits(max_k=10_000))
    answer = client.post("/search", json={"id": 1000, "k": 10_000}).json()
    assert sorted(answer["ids"]) == list(range(1000, 1600))


def test_an_empty_index_answers(learned):
    client = TestClient(create_app(Collection(learned[0], HammingIndex(32))))
    answer = client.post("/search", json={"vector": [0.0] * 64}).json()
    assert (answer["ids"], answer["found"]) == ([], 0)
    assert client.post("/search", json={"vector": [0.0] * 64, "radius": 32}).json()["ids"] == []
    assert client.post("/search", json={"id": 1}).status_code == 404
    assert client.get("/samples").json() == []
    assert client.get("/info").json()["size"] == 0


def test_labels_may_be_missing(learned):
    index = HammingIndex(32)
    index.add(learned[0].transform(learned[1]))
    client = TestClient(create_app(Collection(learned[0], index)))
    assert client.post("/search", json={"id": 3, "k": 2}).json()["labels"] == [None, None]
    assert {s["label"] for s in client.get("/samples").json()} == {None}


def test_gist_of_a_photograph_is_the_row_of_the_dataset():
    from dish.datasets.gist import gist

    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
    row = pictures.PREPARE["gist32"](pictures.decode(png(image), 10_000))
    np.testing.assert_allclose(row, gist(image[None], normalize=True), atol=1e-6)
    wide = np.repeat(np.repeat(image, 4, axis=0), 4, axis=1)
    near = pictures.PREPARE["gist32"](pictures.decode(png(wide), 100_000))
    assert float((near @ row.T)[0, 0]) > 0.95


def test_a_hasher_of_pictures_gets_the_picture(learned):
    class Brightness:
        takes_images, n_bits = True, 8

        def transform(self, images):
            assert images.dtype == np.uint8
            return images.mean(axis=(1, 2, 3)).astype(np.uint8)[:, None]  # (n, 1)

    index = HammingIndex(8)
    index.add(np.array([[200], [3]], np.uint8), ids=["bright", "dark"])
    client = TestClient(create_app(Collection(Brightness(), index)))
    answer = upload(client, png(np.full((5, 9, 3), 200, np.uint8)), k="1").json()
    assert (answer["code"], answer["ids"], answer["distances"]) == ("c8", ["bright"], [0])
    assert client.post("/search", json={"vector": [1.0]}).status_code == 422
    with pytest.raises(ValueError, match="takes pictures"):
        Collection(Brightness(), index, takes="gist32")


def test_transparent_pixels_are_paper():
    clear = np.zeros((4, 4, 4), np.uint8)
    assert (pictures.decode(png(clear), 100) == 255).all()


# --- refusals ---


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"vector": [1.0] * 63}, 422, "64 numbers, got 63"),
        ({"vector": []}, 422, "64 numbers, got 0"),
        ({"vector": [1e300] * 64}, 422, "float32"),
        ({"vector": ["1"] * 64}, 422, "vector"),
        ({"vector": [[1.0]] * 64}, 422, "vector"),
        ({"vector": [0.0] * 64, "id": 1000}, 422, "either vector or id"),
        ({}, 422, "either vector or id"),
        ({"id": 1000, "k": 0}, 422, "k"),
        ({"id": 1000, "k": 1001}, 422, "from 1 to 1000"),
        ({"id": 1000, "k": 2.5}, 422, "k"),
        ({"id": 1000, "k": True}, 422, "k"),
        ({"id": 1000, "k": 1, "radius": 1}, 422, "either k or radius"),
        ({"id": 1000, "radius": -1}, 422, "radius"),
        ({"id": 1000, "radius": 33}, 422, "32 bits"),
        ({"id": 1000, "colour": "red"}, 422, "colour"),
        ({"id": 2**70}, 422, "id"),
        ({"id": 5}, 404, "no item 5"),
        ({"id": "1000"}, 404, "no item"),
        ({"id": "../../etc/passwd"}, 404, "no item"),
        ([1], 422, ""),
    ],
)
def test_bad_searches_are_one_sentence(client, body, status, says):
    answer = client.post("/search", json=body)
    assert answer.status_code == status, answer.text
    assert answer.json().keys() == {"error"}
    assert says in answer.json()["error"]
    assert "Traceback" not in answer.text


@pytest.mark.parametrize("text", ["", "{", "NaN", '{"vector": [NaN]}', "[" * 100_000, '{"k": 1e999}', "\x00"])
def test_broken_json_is_refused(client, text):
    answer = client.post("/search", content=text, headers=JSON)
    assert answer.status_code == 422
    assert answer.json().keys() == {"error"}


def test_other_kinds_of_requests_are_refused(client):
    assert client.post("/search", content="{}", headers={"content-type": "text/plain"}).status_code == 415
    assert client.get("/search").status_code == 405
    assert client.get("/search").json().keys() == {"error"}
    assert client.get("/nothing").status_code == 404
    assert client.get("/nothing").json().keys() == {"error"}
    assert client.get("/samples?n=x").status_code == 422
    assert client.get("/samples?n=1000").json().keys() == {"error"}
    assert client.post("/search", content=b"--x", headers={"content-type": "multipart/form-data"}).status_code == 400
    assert client.post("/search", data={"k": "1"}, files={"other": b"x"}).status_code == 422
    assert upload(client, png(np.zeros((8, 8), np.uint8)), k="x").status_code == 422
    assert upload(client, png(np.zeros((8, 8), np.uint8)), k="0").status_code == 422
    assert upload(client, png(np.zeros((8, 8), np.uint8)), knob="1").status_code == 422


def test_a_model_of_vectors_takes_no_pictures(learned):
    assert upload(make_client(learned, takes="vector"), png(np.zeros((8, 8), np.uint8))).status_code == 415


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(side):
    """A PNG that says it is side × side and is a few kB: all zeros, well compressed."""
    lines = zlib.compress(b"\0" * 1_000_000, 9)
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", lines) + chunk(b"IEND", b"")


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


def test_bodies_are_limited_announced_or_not(learned):
    client = make_client(learned, guard.Limits(max_body=2000))
    assert client.post("/search", json={"vector": [0.0] * 64}).status_code == 200
    assert client.post("/search", content=b" " * 2001, headers=JSON).status_code == 413
    chunks = (b" " * 500 for _ in range(10))  # no Content-Length
    answer = client.post("/search", content=chunks, headers=JSON)
    assert answer.status_code == 413
    assert "2,000 bytes" in answer.json()["error"]
    many = make_client(learned, guard.Limits(max_rows=2)).post("/encode", json={"vectors": [[0.0] * 64] * 3})
    assert many.status_code == 413


def test_token(learned):
    client = make_client(learned, guard.Limits(token="open sesame"))
    for path in ("/info", "/metrics", "/samples", "/images/1", "/search"):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), path
    for wrong in ("Bearer open", "Bearer open sesame!", "open sesame", "Basic b3Blbg==", "Bearer ", ""):
        assert client.get("/info", headers={"authorization": wrong}).status_code == 401, wrong
    assert client.get("/info", headers={"authorization": "Bearer open sesame"}).status_code == 200
    for path in ("/", "/health", "/docs", "/openapi.json", "/static/app.js"):
        assert client.get(path).status_code == 200
    for path in ("http://127.0.0.1//info", "/static/../info", "/static/%2e%2e/info", "/health/../info"):
        assert client.get(path).status_code in (401, 404), path


def test_names_of_other_hosts_are_refused(learned):
    client = make_client(learned, guard.Limits(hosts=guard.LOOPBACK))
    for name in ("localhost", "127.0.0.1", "127.0.0.1:8000", "[::1]:8000", "LOCALHOST"):
        assert client.get("/health", headers={"host": name}).status_code == 200, name
    for name in ("evil.example", "127.0.0.1.evil.example", "localhost@evil.example", ""):
        assert client.get("/health", headers={"host": name}).status_code == 403, name


def test_a_bug_is_answered_without_its_traceback(learned, monkeypatch, caplog):
    client = make_client(learned)
    monkeypatch.setattr(Collection, "search", lambda *_, **__: 1 / 0)
    answer = client.post("/search", json={"id": 1000})
    assert answer.status_code == 500
    assert "ZeroDivision" not in answer.text
    assert any("ZeroDivisionError" in str(record.exc_info) for record in caplog.records)


class Slow:
    """A hasher that waits until it is let go."""

    def __init__(self, hasher):
        self.hasher, self.n_bits, self.n_features_in_ = hasher, hasher.n_bits, hasher.n_features_in_
        self.go, self.started = threading.Event(), threading.Semaphore(0)

    def transform(self, X):
        self.started.release()
        assert self.go.wait(20)
        return self.hasher.transform(X)


def test_too_many_at_once_get_503_and_health_answers_meanwhile(learned):
    slow = Slow(learned[0])
    app = create_app(Collection(slow, make_index(learned)), guard.Limits(concurrency=2))
    answers = []
    with TestClient(app) as client:
        ask = lambda: answers.append(client.post("/search", json={"vector": [0.0] * 64}).status_code)  # noqa: E731
        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert slow.started.acquire(timeout=10)
        busy = client.post("/search", json={"vector": [0.0] * 64})
        assert busy.status_code == 503
        assert busy.headers["retry-after"] == "1"
        assert 'route="/search",status="503"} 1' in client.get("/metrics").text
        assert client.get("/health").json()["status"] == "ok"
        assert "dish_in_flight 3" in client.get("/metrics").text  # two searches and this
        slow.go.set()
        for thread in threads:
            thread.join(10)
        assert answers == [200, 200]
        assert client.post("/search", json={"vector": [0.0] * 64}).status_code == 200


def test_a_slow_body_is_given_up(learned):
    import asyncio

    app = create_app(Collection(learned[0], make_index(learned)), guard.Limits(body_seconds=0.05))
    sent = []

    async def receive():
        await asyncio.sleep(5)

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/search", "raw_path": b"/search", "query_string": b""}
    scope |= {"headers": [(b"content-length", b"10")], "client": ("c", 1), "http_version": "1.1", "scheme": "http"}
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 408


# --- pictures ---


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


# --- the page, the schema, the metrics ---


def test_the_page_needs_nothing_from_elsewhere(client):
    for path in ("/", "/docs", "/static/app.js", "/static/docs.js", "/static/theme.js", "/static/style.css"):
        answer = client.get(path)
        assert answer.status_code == 200
        text = answer.text.replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"(https?:)?//[a-z0-9]+\.", text), path
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    for name in ("nothing.js", "..%2fapp.py", "%2e%2e%2fapp.py"):
        assert client.get(f"/static/{name}").status_code == 404


def test_metrics_count_requests_by_route_and_status(learned):
    client = make_client(learned)
    for body in ({"id": 1000}, {"id": 1001}, {"id": 5}):
        client.post("/search", json=body)
    client.get("/surely/not/a/route")
    client.request("BREW", "/health")
    text = client.get("/metrics").text
    assert 'dish_requests_total{method="POST",route="/search",status="200"} 2' in text
    assert 'dish_requests_total{method="POST",route="/search",status="404"} 1' in text
    assert 'route="other",status="404"} 1' in text
    assert 'method="other"' in text
    assert "surely" not in text
    assert 'dish_request_seconds_count{route="/search"} 3' in text
    assert 'dish_request_seconds_bucket{route="/search",le="+Inf"} 3' in text
    assert "dish_index_rows 600" in text
    assert "dish_in_flight 1" in text
    for line in text.splitlines():
        assert re.fullmatch(r'# (HELP|TYPE) .+|[a-z_]+(\{([a-z]+="[^"]*",?)+\})? [0-9.e+-]+', line), line


@pytest.fixture(scope="module")
def api_schema(learned, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    make_index(learned).save(folder / "ix.dish")
    options = {"takes": "digits8", "journal": Journal(folder / "j"), "path": folder / "ix.dish"}
    return schemathesis.openapi.from_asgi(
        "/openapi.json", create_app(Collection(learned[0], make_index(learned), **options))
    )


FITTING, UNFIT = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
MADE_UP = [(path, mode) for path in ("/search", "/encode", "/items", "/samples") for mode in (FITTING, UNFIT)]
MADE_UP += [("/images/{key}", FITTING)]  # any text fits


@pytest.mark.parametrize(("path", "mode"), MADE_UP)
def test_no_request_of_the_schema_breaks_the_server(api_schema, path, mode):
    """Requests made up from the schema, fitting it and not."""
    operation = next(iter(api_schema[path].values()))
    statuses = set()

    # what is slow here is the first request of all, not what is made up
    @hypothesis.settings(
        suppress_health_check=list(hypothesis.HealthCheck), max_examples=25, deadline=None, database=None
    )
    @hypothesis.seed(0)
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def check(case):
        answer = case.call()
        assert answer.status_code < 500, answer.content
        if answer.status_code >= 400:
            assert answer.json().keys() == {"error"}
        statuses.add(answer.status_code)

    check()
    if mode is UNFIT:
        assert statuses & {400, 422}


# --- writing ---


def writable(learned, folder):
    path = folder / "ix.dish"
    if not path.exists():
        make_index(learned).save(path)
    return Collection(learned[0], HammingIndex.load(path), journal=Journal(folder / "ix.dish.journal"), path=path)


def test_items_are_added_replaced_and_kept(learned, tmp_path):
    hasher, X, _, _ = learned
    with closing(writable(learned, tmp_path)) as found:
        client = TestClient(create_app(found))
        new = {"ids": [1, 1000], "vectors": X[[5, 6]].tolist(), "labels": ["one", "new"]}
        assert client.post("/items", json=new).json() == {"saved": 2, "size": 601}
        code = hasher.transform(X[6:7]).tobytes().hex()
        assert client.post("/search", json={"id": 1000}).json()["code"] == code
        assert "dish_journal_bytes" in client.get("/metrics").text
        assert (tmp_path / "ix.dish.journal").stat().st_size > 0
    assert (tmp_path / "ix.dish.journal").stat().st_size == 0  # a graceful end writes the index
    late = client.post("/items", json={"ids": [2], "vectors": X[:1].tolist()})
    assert late.status_code == 503
    assert "none was saved" in late.json()["error"]
    index = HammingIndex.load(tmp_path / "ix.dish")
    assert len(index) == 601
    assert index.get([1000]).tobytes().hex() == code
    assert list(index.labels_of([1, 1000])) == ["one", "new"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"ids": [1], "vectors": [[0.0] * 64, [0.0] * 64]}, 422),
        ({"ids": [1, 1], "vectors": [[0.0] * 64, [0.0] * 64]}, 422),
        ({"ids": [1], "vectors": [[0.0] * 64], "labels": []}, 422),
        ({"ids": ["a"], "vectors": [[0.0] * 64]}, 422),
        ({"ids": [], "vectors": []}, 422),
        ({"ids": [1], "vectors": [[0.0] * 63]}, 422),
        ({"ids": [2**63], "vectors": [[0.0] * 64]}, 422),
    ],
)
def test_bad_items_are_refused_and_leave_nothing(learned, tmp_path, body, status):
    with closing(writable(learned, tmp_path)) as found:
        client = TestClient(create_app(found))
        answer = client.post("/items", json=body)
        assert answer.status_code == status, answer.text
        assert client.get("/info").json()["size"] == 600
    assert (tmp_path / "ix.dish.journal").stat().st_size == 0


def test_a_server_that_is_not_writable_says_so(client):
    answer = client.post("/items", json={"ids": [1], "vectors": [[0.0] * 64]})
    assert answer.status_code == 403
    assert "--writable" in answer.json()["error"]


def test_a_full_journal_goes_into_the_index(learned, tmp_path, monkeypatch):
    monkeypatch.setattr(collections, "JOURNAL_LIMIT", 300)
    found = writable(learned, tmp_path)
    for i in range(20):
        found.upsert([i], learned[0].transform(learned[1][i : i + 1]), None)
    assert found.journal.size <= 300
    assert len(HammingIndex.load(tmp_path / "ix.dish")) > 610
    found.journal.close()
    again = writable(learned, tmp_path)
    assert len(again) == 620
    again.journal.close()


def test_of_an_item_written_twice_the_last_counts(learned, tmp_path):
    hasher, X, _, _ = learned
    found = writable(learned, tmp_path)
    for ids, labels in (([1, 2], ["a", "b"]), ([2, 3], None), ([1], ["c"]), ([4, 5], [7, "x"])):
        found.upsert(ids, hasher.transform(X[: len(ids)]), labels)
    found.journal.close()  # as a crash would leave it
    again = writable(learned, tmp_path)
    assert list(again.index.labels_of([1, 2, 3])) == ["c", None, None]
    assert again.index.labels_of([4]).tolist() == [7]  # a number stays one
    assert again.index.labels_of([5]).tolist() == ["x"]
    np.testing.assert_array_equal(again.index.get([1, 2, 3]), hasher.transform(X[[0, 0, 1]]))
    np.testing.assert_array_equal(again.index.ids, found.index.ids)  # so ties are in the same order
    again.close()


def test_the_journal_gives_back_what_it_took(tmp_path):
    records = [{"ids": [i, "ä"], "codes": "00ff" * i, "labels": None} for i in range(5)]
    journal = Journal(tmp_path / "j")
    for record in records:
        journal.append(record)
    with pytest.raises(JournalError, match="in use"):
        Journal(tmp_path / "j")
    journal.close()
    again = Journal(tmp_path / "j")
    assert again.records == records
    assert again.dropped == 0
    again.close()


def test_a_record_cut_off_anywhere_is_dropped_and_the_rest_kept(tmp_path):
    journal = Journal(tmp_path / "j")
    ends = []
    for i in range(3):
        journal.append({"n": i})
        ends.append(journal.size)
    journal.close()
    data = (tmp_path / "j").read_bytes()
    for cut in range(ends[1], len(data)):
        (tmp_path / "j").write_bytes(data[:cut])
        journal = Journal(tmp_path / "j")
        assert journal.records == [{"n": 0}, {"n": 1}]
        assert journal.dropped == cut - ends[1]
        journal.append({"n": "new"})
        journal.close()
        again = Journal(tmp_path / "j")
        assert again.records == [{"n": 0}, {"n": 1}, {"n": "new"}]
        again.close()
    (tmp_path / "j").write_bytes(data + b"\0" * 50)  # grown, but never written
    journal = Journal(tmp_path / "j")
    assert len(journal.records) == 3
    journal.close()


def test_damage_within_the_journal_is_an_error_not_a_loss(tmp_path):
    journal = Journal(tmp_path / "j")
    for i in range(3):
        journal.append({"n": i})
    end = journal.size
    journal.close()
    data = (tmp_path / "j").read_bytes()
    for at in range(2 * end // 3):  # every byte of the first two records
        (tmp_path / "j").write_bytes(data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :])
        with pytest.raises(JournalError, match="damaged"):
            Journal(tmp_path / "j")


def test_a_failed_write_is_refused_and_leaves_nothing(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "j")
    journal.append({"n": 0})
    size = journal.size
    pwrite = os.pwrite

    def fills_up(file, data, at):
        if at > size:
            raise OSError(28, "No space left on device")
        return pwrite(file, data[:7], at)  # a part of the record reaches the file

    monkeypatch.setattr(os, "pwrite", fills_up)
    with pytest.raises(OSError, match="No space"):
        journal.append({"n": 1})
    assert journal.size == (tmp_path / "j").stat().st_size == size
    monkeypatch.undo()
    journal.append({"n": 3})
    journal.close()
    again = Journal(tmp_path / "j")
    assert again.records == [{"n": 0}, {"n": 3}]
    again.close()


def test_searches_and_writes_at_once(learned, tmp_path):
    found = writable(learned, tmp_path)
    hasher, X, _, _ = learned
    code = hasher.transform(X[:1])
    problems = []

    def look():
        for _ in range(60):
            try:
                hits = found.search(code, k=20, radius=None, limit=100)
                assert len(hits.ids) == 20
                assert hits.distances == sorted(hits.distances)
            except Exception as error:
                problems.append(error)

    def write(start):
        for i in range(20):
            found.upsert([start + i], hasher.transform(X[i : i + 1]), [f"w{i}"])

    threads = [threading.Thread(target=look) for _ in range(3)]
    threads += [threading.Thread(target=write, args=(s,)) for s in (0, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not problems
    assert len(found) == 640
    found.close()


# --- a real process ---


class Server:
    """`dish serve` on a free port of this machine; stopped by its own process id."""

    def __init__(self, folder, *options, env=None):
        call = [sys.executable, "-m", "dish", "serve", "--model", folder / "m.dish", "--index", folder / "ix.dish"]
        self.log = open(folder / "log", "ab")  # noqa: SIM115
        self.process = subprocess.Popen(
            [*map(str, call), "--port", "0", *map(str, options)],
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={**os.environ, **(env or {})},
        )
        line = self.process.stdout.readline()
        assert "http://" in line, (folder / "log").read_text()
        self.url = re.search(r"http://[^/]+", line)[0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        self.process.stdout.close()
        self.log.close()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)


@pytest.fixture
def files(learned, tmp_path):
    learned[0].save(tmp_path / "m.dish")
    make_index(learned).save(tmp_path / "ix.dish")
    return tmp_path


def test_kill_during_writes_loses_nothing_that_was_acknowledged(files, learned):
    hasher, X, _, _ = learned
    acknowledged, stop = {}, threading.Event()

    def write(url, start):
        with httpx.Client(timeout=10) as client:
            for i in range(start, start + 10_000):
                row = i % len(X)
                try:
                    body = {"ids": [i], "vectors": [X[row].tolist()], "labels": [f"n{row}"]}
                    if client.post(url + "/items", json=body).status_code == 200:
                        acknowledged[i] = row
                except httpx.HTTPError:
                    return
                if stop.is_set():
                    return

    with Server(files, "--writable") as server:
        threads = [threading.Thread(target=write, args=(server.url, s)) for s in (100_000, 200_000, 300_000)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 20
        while len(acknowledged) < 60 and time.monotonic() < deadline:
            time.sleep(0.005)
        server.process.kill()  # SIGKILL, in the middle of writes
        stop.set()
        for thread in threads:
            thread.join(10)
    assert len(acknowledged) >= 60
    with open(files / "ix.dish.journal", "ab") as journal:
        journal.write(b"DJ1\n\x50")  # and as if a further record had been cut off

    with Server(files, "--writable", "--token", "s", env={"DISH_TOKEN": ""}) as server, httpx.Client() as client:
        client.headers["authorization"] = "Bearer s"
        assert client.get(server.url + "/info").json()["size"] >= 600 + len(acknowledged)
        assert server.stop() == 0
    assert (files / "ix.dish.journal").stat().st_size == 0
    log = [json.loads(line) for line in (files / "log").read_text().splitlines()]
    assert any(line.get("torn_bytes_dropped", 0) >= 5 for line in log)
    requests = [line for line in log if line["event"] == "request"]
    assert {"time", "level", "method", "path", "status", "ms", "client"} <= requests[0].keys()
    index = HammingIndex.load(files / "ix.dish")
    ids = list(acknowledged)
    np.testing.assert_array_equal(index.get(ids), hasher.transform(X[list(acknowledged.values())]))
    assert list(index.labels_of(ids)) == [f"n{row}" for row in acknowledged.values()]


def test_damaged_files_are_one_clear_line_and_exit_code_2(files, monkeypatch, capsys):
    from dish.cli import main

    def serve(*options):
        call = ["dish", "serve", "--model", files / "m.dish", "--index", files / "ix.dish", "--port", "0", *options]
        monkeypatch.setattr(sys, "argv", list(map(str, call)))
        with pytest.raises(SystemExit) as end:
            main()
        err = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("{")]
        assert end.value.code == 2, err
        assert len(err) == 1, err
        return err[0]

    whole = (files / "ix.dish").read_bytes()
    (files / "ix.dish").write_bytes(whole[: len(whole) // 2])
    assert "ix.dish" in serve()
    middle = len(whole) - 40
    (files / "ix.dish").write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    assert "ix.dish" in serve()
    (files / "ix.dish").unlink()
    assert "ix.dish" in serve()
    (files / "ix.dish").write_bytes(whole)
    (files / "ix.dish.journal").write_bytes(b"this is no journal at all")
    assert "damaged" in serve("--writable")
    assert "--writable" in serve()
    (files / "ix.dish.journal").unlink()
    assert "not a folder" in serve("--images", files / "nowhere")
    assert "--input" in serve("--input", "sound")
    assert "--token" in serve("--token", " ")
    assert "no such address" in serve("--host", "no.such.host.invalid")
    HammingIndex(16).save(files / "ix.dish")
    assert "16" in serve()


def test_other_machines_only_with_a_warning(learned, capsys):
    from dish.web import server

    for token, says in ((None, "ANYONE"), ("t", "token is required")):
        server._warn_open("0.0.0.0", guard.Limits(token=token))
        assert says in capsys.readouterr().err


def test_refused_keeps_its_status():
    assert Refused(418, "teapot").status == 418


def test_a_missing_package_is_named():
    program = "import sys; sys.modules['fastapi'] = None\nfrom dish.web import server"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "pip install 'dish[serve]'" in done.stderr


# --- the demonstrations ---


def test_the_demo_of_photographs_learns_once_and_finds_by_upload(monkeypatch, tmp_path):
    from dish import datasets
    from dish.datasets.gist import gist
    from dish.web import demo

    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(4), 30)
    stripes = np.sin(np.arange(32) * (1 + y[:, None]) / 2)[:, None, :, None]  # (120, 1, 32, 1)
    noise = rng.normal(0, 20, (120, 32, 32, 3))
    images = np.clip(128 + 60 * stripes + noise, 0, 255).astype(np.uint8)
    names = ("one", "two", "three", "four")
    photographs = datasets.Dataset("p", images, y, queries=5, label_names=names)
    rows = datasets.Dataset("g", gist(images, normalize=True), y, queries=5, label_names=names)
    monkeypatch.setattr(datasets, "load_cifar10", lambda: photographs)
    monkeypatch.setattr(datasets, "cifar10_gist", lambda: rows)
    monkeypatch.setenv("DISH_CACHE", str(tmp_path))
    found = demo.cifar10(n_train=80)
    assert len(found) == 100
    client = TestClient(create_app(found))
    right = 0
    for sample in client.get("/samples?n=20").json():
        picture = client.get(f"/images/{sample['picture']}").content
        right += upload(client, picture, k="5").json()["labels"].count(sample["label"])
    assert right >= 80  # of 100: stripes of four widths are easy
    monkeypatch.setattr(DISH, "fit", lambda *_: 1 / 0)
    assert len(demo.cifar10(n_train=80)) == 100  # the model comes from the cache
    for key in ("120", "sample-999", "sample-", "x", "-1", "²", "9" * 30):
        assert client.get(f"/images/{key}").status_code == 404, key


@pytest.mark.parametrize(
    ("options", "says"), [(["--serve", "--data", "cats"], "digits, cifar10"), (["--data", "cifar10"], "--serve")]
)
def test_a_demo_that_is_not_there(options, says, monkeypatch, capsys):
    from dish.cli import main

    monkeypatch.setattr(sys, "argv", ["dish", "demo", *options])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert says in capsys.readouterr().err
