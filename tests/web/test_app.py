"""Searching and encoding through the app: the answers, and what is refused."""

import io
import re

import hypothesis
import numpy as np
import pytest
import schemathesis
from starlette.testclient import TestClient

from dish import DISH, codes
from dish.index.hamming import HammingIndex
from dish.web import middleware
from dish.web.app import STATIC, create_app
from dish.web.collection import Collection
from dish.web.journal import Journal
from helpers.web import JSON, ink, make_client, make_index, png, upload


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


@pytest.mark.parametrize(
    "body",
    [
        b'{"vector": [%s], "k": 3}' % b",".join([b"1"] * 64),
        b'{"id": 1003, "radius": 4}',
        b'{"id": "nobody"}',
        b'{"code": "00ff00ff"}',
        b'{"code": "00FF00ff"}',
        b'{"vector": [1], "k": 3}',
        b'{"vector": [NaN]}',
        b'{"id": 1003, "k": 0}',
        b'{"id": 1003, "k": 2, "radius": 2}',
        b'{"id": 1003, "more": 1}',
        b"[1]",
        b"{",
        b"",
    ],
)
def test_the_short_way_to_a_search_answers_as_the_long_way_does(client, body):
    """What is plainly JSON does not go through FastAPI; with a parameter of its kind it does."""
    answers = [
        client.post("/search", content=body, headers={"content-type": "application/json" + more})
        for more in ("", "; charset=utf-8")
    ]
    assert answers[0].status_code == answers[1].status_code
    short, long = (answer.json() for answer in answers)
    assert {**short, "time_ms": 0} == {**long, "time_ms": 0}
    assert answers[0].headers["content-type"] == answers[1].headers["content-type"]


def test_radius_takes_all_that_are_near_and_says_what_was_cut_off(learned):
    hasher, X, _, ids = learned
    base = hasher.transform(X)
    client = make_client(learned, middleware.Limits(max_k=5))
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


def test_search_by_a_code_is_the_search_that_gave_it(client, learned):
    by_id = client.post("/search", json={"id": 1003, "k": 5}).json()
    by_code = client.post("/search", json={"code": by_id["code"], "k": 5}).json()
    assert (by_code["ids"], by_code["code"]) == (by_id["ids"], by_id["code"])


def test_ids_are_suggested_those_that_begin_so_first(client):
    found = client.get("/ids?like=150&n=12").json()
    assert found[:10] == list(range(1500, 1510))
    assert found[10:] == [1150]
    assert client.get("/ids?like=nothing").json() == []
    assert client.get("/ids").status_code == 422


def test_encode_gives_the_codes_of_the_hasher(client, learned):
    hasher, X, _, _ = learned
    answer = client.post("/encode", json={"vectors": X[:9].tolist()}).json()
    assert answer["codes"] == [c.tobytes().hex() for c in hasher.transform(X[:9])]


def test_k_beyond_the_index_gives_all_of_it(learned):
    client = make_client(learned, middleware.Limits(max_k=10_000))
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


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_a_missing_label_is_null(learned, tmp_path, missing):
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


BINARY = {"content-type": "application/octet-stream"}


@pytest.mark.parametrize("named", [False, True])
def test_packed_codes_in_arrays_out(learned, named):
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
    assert found["ids"].tolist() == own.tolist()
    answer = client.post("/search/codes", content=queries[:1].tobytes(), headers=BINARY)
    assert np.load(io.BytesIO(answer.content))["ids"].shape == (1, 10)


@pytest.mark.parametrize(
    ("query", "content", "headers", "status", "says"),
    [
        ("k=4", b"", BINARY, 422, "4 bytes"),
        ("k=4", b"12345", BINARY, 422, "got 5 bytes"),
        ("k=0", b"1234", BINARY, 422, "from 1 to 1000"),
        ("k=1001", b"1234", BINARY, 422, "from 1 to 1000"),
        ("k=x", b"1234", BINARY, 422, "k"),
        ("k=4", b"1234", JSON, 415, "application/octet-stream"),
        ("k=4", b"1234" * 10_001, BINARY, 413, "10,000 rows"),
        ("k=1000", b"1234" * 1_001, BINARY, 413, "fewer codes or a smaller k"),
    ],
)
def test_bad_packed_codes_are_refused(client, query, content, headers, status, says):
    answer = client.post(f"/search/codes?{query}", content=content, headers=headers)
    assert answer.status_code == status, answer.text
    assert says in answer.json()["error"]


def test_bits_beyond_the_code_are_refused(learned, digits):
    X, y, _, _ = digits
    hasher = DISH(n_bits=12, n_anchors=30, random_state=0).fit(X[:200], y[:200])
    index = HammingIndex(12)
    index.add(hasher.transform(X[:200]))
    client = TestClient(create_app(Collection(hasher, index)))
    assert client.post("/search/codes?k=1", content=b"\xff\xf0", headers=BINARY).status_code == 200
    answer = client.post("/search/codes?k=1", content=b"\xff\xff", headers=BINARY)
    assert answer.status_code == 422
    assert "beyond the first 12" in answer.json()["error"]


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


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"vector": [1.0] * 63}, 422, "64 numbers, got 63"),
        ({"vector": []}, 422, "64 numbers, got 0"),
        ({"vector": [1e300] * 64}, 422, "float32"),
        ({"vector": ["1"] * 64}, 422, "vector"),
        ({"vector": [[1.0]] * 64}, 422, "vector"),
        ({"vector": [0.0] * 64, "id": 1000}, 422, "one of vector, id and code"),
        ({}, 422, "one of vector, id and code"),
        ({"code": "00"}, 422, "the 8 hexadecimal digits of 32 bits"),
        ({"code": "GG000000"}, 422, "hexadecimal"),
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


def test_the_page_needs_nothing_from_elsewhere(client):
    for path in ("/", "/docs", *(f"/static/{file.name}" for file in STATIC.iterdir())):
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
    assert 'dish_request_seconds_bucket{le="+Inf",route="/search"} 3' in text
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
MADE_UP = [
    (path, mode)
    for path in ("/search", "/search/image", "/encode", "/encode/image", "/items", "/items/image", "/samples", "/ids")
    for mode in (FITTING, UNFIT)
]
MADE_UP += [("/images/{key}", FITTING)]  # any text fits


@pytest.mark.slow
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
