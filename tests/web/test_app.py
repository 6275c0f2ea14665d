"""Search, encoding, the page and the API schema through the app."""

import io
import json
import re

import hypothesis
import numpy as np
import pytest
import schemathesis
from starlette.testclient import TestClient

from dish import DISH, codes
from dish.index.hamming import HammingIndex
from dish.web.app import STATIC, create_app
from dish.web.collection import Collection
from dish.web.limits import Limits
from helpers.web import JSON, ink, make_client, png, upload, writable

BINARY = {"content-type": "application/octet-stream"}


def test_search_by_vector_is_exact(client, learned, digits):
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


def test_radius_search_counts_the_hits_beyond_the_limit(learned):
    hasher, X, _, ids = learned
    base = hasher.transform(X)
    client = make_client(learned, Limits(max_k=5))
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


def test_search_by_id_and_by_picture_use_the_code_of_the_row(client, learned):
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


def test_search_by_code(client, learned):
    by_id = client.post("/search", json={"id": 1003, "k": 5}).json()
    by_code = client.post("/search", json={"code": by_id["code"], "k": 5}).json()
    assert (by_code["ids"], by_code["code"]) == (by_id["ids"], by_id["code"])


def test_encode_equals_transform(client, learned):
    hasher, X, _, _ = learned
    answer = client.post("/encode", json={"vectors": X[:9].tolist()}).json()
    assert answer["codes"] == [c.tobytes().hex() for c in hasher.transform(X[:9])]


def test_large_k_returns_all_items(learned):
    client = make_client(learned, Limits(max_k=10_000))
    answer = client.post("/search", json={"id": 1000, "k": 10_000}).json()
    assert sorted(answer["ids"]) == list(range(1000, 1600))


def test_empty_index(learned):
    client = TestClient(create_app(Collection(learned[0], HammingIndex(32))))
    answer = client.post("/search", json={"vector": [0.0] * 64}).json()
    assert (answer["ids"], answer["found"]) == ([], 0)
    assert client.post("/search", json={"vector": [0.0] * 64, "radius": 32}).json()["ids"] == []
    assert client.post("/search", json={"id": 1}).status_code == 404
    assert client.get("/samples").json() == []
    assert client.get("/info").json()["size"] == 0


def test_index_without_labels(learned):
    index = HammingIndex(32)
    index.add(learned[0].transform(learned[1]))
    client = TestClient(create_app(Collection(learned[0], index)))
    assert client.post("/search", json={"id": 3, "k": 2}).json()["labels"] == [None, None]
    assert {s["label"] for s in client.get("/samples").json()} == {None}


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_missing_label_is_null(learned, tmp_path, missing):
    hasher, X, _, _ = learned
    index = HammingIndex(32)
    index.add(hasher.transform(X[:50]), labels=[missing if i % 5 == 0 else float(i) for i in range(50)])
    index.save(tmp_path / "ix.dish")
    for served in (index, HammingIndex.load(tmp_path / "ix.dish")):
        client = TestClient(create_app(Collection(hasher, served)))
        answer = client.post("/search", json={"id": 0, "k": 50})
        assert answer.status_code == 200
        expected = {i: None if i % 5 == 0 else float(i) for i in range(50)}
        assert dict(zip(answer.json()["ids"], answer.json()["labels"], strict=True)) == expected
        samples = client.get("/samples?n=50").json()
        assert {s["id"]: s["label"] for s in samples} == expected


def ids_in(found):
    """The ids (n, k) of a response of /search/codes."""
    if "names" not in found:
        return found["ids"].tolist()
    names = json.loads(found["names"].tobytes())
    return [[names[place] for place in row] for row in found["ids"].tolist()]


@pytest.mark.parametrize("id", ["zed\0", "\0", "a\n", "é\u2028", "x" * 500])
def test_search_codes_returns_ids_unchanged(learned, id):
    hasher, X, _, _ = learned
    index = HammingIndex(32)
    index.add(hasher.transform(X[:2]), ids=[id, "other"])
    client = TestClient(create_app(Collection(hasher, index)))
    answer = client.post("/search/codes?k=2", content=hasher.transform(X[:1]).tobytes(), headers=BINARY)
    assert ids_in(np.load(io.BytesIO(answer.content))) == [[id, "other"]]
    assert client.get("/ids", params={"like": id[:100]}).json() == [id]


def test_one_long_id_does_not_blow_up_the_response(learned):
    hasher, X, _, _ = learned
    index = HammingIndex(32)
    index.add(hasher.transform(X), ids=["x" * 500, *map(str, range(1, len(X)))])
    client = TestClient(create_app(Collection(hasher, index)))
    queries = np.repeat(hasher.transform(X[:1]), 200, axis=0).tobytes()
    answer = client.post("/search/codes?k=600", content=queries, headers=BINARY)
    assert answer.status_code == 200
    assert len(answer.content) < 13 * 200 * 600  # 12 bytes per hit, and the names once


@pytest.mark.parametrize(("path", "status"), [("/search/codes?k=600", 413), ("/search", 413), ("/encode", 413)])
def test_answers_are_measured_before_they_are_built(learned, path, status, monkeypatch):
    hasher, X, _, _ = learned
    index = HammingIndex(32)
    index.add(hasher.transform(X), ids=[f"{i}" * 30 for i in range(len(X))], labels=["label" * 50] * len(X))
    client = TestClient(create_app(Collection(hasher, index), Limits(max_answer=5000)))
    monkeypatch.setattr("dish.web.app.to_json", None)  # must not be called
    if path.startswith("/search/codes"):
        answer = client.post(path, content=hasher.transform(X[:1]).tobytes(), headers=BINARY)
    else:
        body = {"code": "00000000", "k": 600} if path == "/search" else {"vectors": X.tolist()}
        answer = client.post(path, json=body)
    assert answer.status_code == status
    assert "5,000 bytes are allowed" in answer.json()["error"]


@pytest.mark.parametrize("named", [False, True])
def test_search_codes_returns_arrays(learned, named):
    hasher, X, _, ids = learned
    index = HammingIndex(32)
    index.add(hasher.transform(X), ids=[f"digit {i}" for i in ids] if named else ids)
    client = TestClient(create_app(Collection(hasher, index)))
    queries = hasher.transform(X[:9])
    answer = client.post("/search/codes?k=4", content=queries.tobytes(), headers=BINARY)
    assert answer.headers["content-type"] == "application/octet-stream"
    found = np.load(io.BytesIO(answer.content))
    D, own = index.search(queries, k=4)
    np.testing.assert_array_equal(found["distances"], D)
    assert ids_in(found) == own.tolist()
    answer = client.post("/search/codes", content=queries[:1].tobytes(), headers=BINARY)
    assert np.load(io.BytesIO(answer.content))["ids"].shape == (1, 10)


@pytest.mark.parametrize(
    ("query", "content", "headers", "status", "says"),
    [
        ("k=4", b"", BINARY, 422, "4 bytes"),
        ("k=4", b"12345", BINARY, 422, "got 5 bytes"),
        ("k=0", b"1234", BINARY, 422, "between 1 and 1000"),
        ("k=1001", b"1234", BINARY, 422, "between 1 and 1000"),
        ("k=x", b"1234", BINARY, 422, "k"),
        ("k=4", b"1234", JSON, 415, "application/octet-stream"),
        ("k=4", b"1234" * 10_001, BINARY, 413, "10,000 rows"),
        ("k=1000", b"1234" * 1_001, BINARY, 413, "fewer codes or a smaller k"),
    ],
)
def test_search_codes_rejects_bad_bodies(client, query, content, headers, status, says):
    answer = client.post(f"/search/codes?{query}", content=content, headers=headers)
    assert answer.status_code == status, answer.text
    assert says in answer.json()["error"]


def test_search_codes_rejects_padding_bits(learned, digits):
    X, y, _, _ = digits
    hasher = DISH(n_bits=12, n_anchors=30, random_state=0).fit(X[:200], y[:200])
    index = HammingIndex(12)
    index.add(hasher.transform(X[:200]))
    client = TestClient(create_app(Collection(hasher, index)))
    assert client.post("/search/codes?k=1", content=b"\xff\xf0", headers=BINARY).status_code == 200
    answer = client.post("/search/codes?k=1", content=b"\xff\xff", headers=BINARY)
    assert answer.status_code == 422
    assert "beyond the first 12" in answer.json()["error"]


def test_image_hasher_gets_the_picture(learned):
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


def test_page_refers_to_no_other_site(client):
    for path in ("/", "/docs", *(f"/static/{file.name}" for file in STATIC.iterdir())):
        answer = client.get(path)
        assert answer.status_code == 200
        text = answer.text.replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"(https?:)?//[a-z0-9]+\.", text), path
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    for name in ("nothing.js", "..%2fapp.py", "%2e%2e%2fapp.py"):
        assert client.get(f"/static/{name}").status_code == 404


def test_schema_describes_filters_and_bulk_changes(client):
    paths = client.get("/openapi.json").json()["paths"]

    def fields(path, media_type="application/json"):
        return paths[path]["post"]["requestBody"]["content"][media_type]["schema"]["properties"]

    assert {"ids", "labels"} <= fields("/search").keys()
    assert {"ids", "labels"} <= fields("/search", "multipart/form-data").keys()
    assert {"ids", "labels", "k"} == {one["name"] for one in paths["/search/codes"]["post"]["parameters"]}
    for path in ("/items", "/items/delete"):
        assert fields(path)["ids"]["maxItems"] == 10_000


@pytest.fixture(scope="module")
def api_schema(learned, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    found = writable(learned, folder, takes="digits8")
    yield schemathesis.openapi.from_asgi("/openapi.json", create_app(found))
    found.close()


VALID, INVALID = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE


GENERATED = [
    (path, mode)
    for path in (
        "/search",
        "/search/image",
        "/encode",
        "/encode/image",
        "/items",
        "/items/delete",
        "/items/image",
        "/samples",
        "/ids",
    )
    for mode in (VALID, INVALID)
]


GENERATED += [("/images/{key}", VALID)]  # any text is valid


@pytest.mark.slow
@pytest.mark.parametrize(("path", "mode"), GENERATED)
def test_generated_requests_never_fail_with_500(api_schema, path, mode):
    """Valid and invalid requests, generated from the schema."""
    operation = next(iter(api_schema[path].values()))
    statuses = set()

    # only the first request is slow
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
    if mode is INVALID:
        assert statuses & {400, 422}
