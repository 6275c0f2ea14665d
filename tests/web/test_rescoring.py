"""Filters and rescoring over HTTP, compared with the plain formulas."""

import io
import json

import numpy as np
import pytest
from starlette.testclient import TestClient

from dish import codes
from dish.alias import CollectionFiles
from dish.index.hamming import HammingIndex
from dish.web import server
from dish.web.app import create_app
from dish.web.collection import Collection, SearchRange
from dish.web.limits import Limits
from helpers.web import ink, png, upload

BINARY = {"content-type": "application/octet-stream"}


@pytest.fixture(scope="module")
def base(learned):
    """Codes, labels (every fifth row has none) and the collection of 600 items, with float vectors."""
    hasher, X, y, ids = learned
    labels = [None if i % 5 == 0 else int(v) for i, v in enumerate(y)]
    index = HammingIndex(32)
    index.add(hasher.transform(X), ids=ids, labels=labels)
    index.attach_vectors(X, ids)
    return hasher, hasher.transform(X), labels, Collection(hasher, index, takes="digits8")


@pytest.fixture(scope="module")
def client(base):
    return TestClient(create_app(base[3]), base_url="http://127.0.0.1", raise_server_exceptions=False)


def search(client, status=200, **body):
    answer = client.post("/search", json=body)
    assert answer.status_code == status, answer.text
    return answer.json() if status == 200 else answer.json()["error"]


def shortlist(query, B, rows, n):
    """The n rows of least distance, ties in row order."""
    D = codes.hamming(query, B[rows])[0]
    return rows[np.argsort(D, kind="stable")[:n]]


@pytest.mark.parametrize("by", [{"k": 7}, {"radius": 9}])
@pytest.mark.parametrize(
    ("filters", "keeps"),
    [
        ({"labels": [3, 4]}, lambda i, label: label in (3, 4)),
        ({"labels": [None]}, lambda i, label: label is None),
        ({"labels": ["3"]}, lambda i, label: False),  # a string is no integer
        ({"ids": [1003, 1100, 5, 1200]}, lambda i, label: i in (3, 100, 200)),
        ({"ids": []}, lambda i, label: False),
        ({"ids": list(range(1000, 1300)), "labels": [3, None]}, lambda i, label: i < 300 and label in (3, None)),
    ],
)
def test_filters_agree_with_brute_force(client, base, learned, by, filters, keeps):
    hasher, B, labels, _ = base
    query = hasher.transform(learned[1][50:51])
    rows = np.array([i for i, label in enumerate(labels) if keeps(i, label)], int)
    D = codes.hamming(query, B[rows])[0] if len(rows) else np.empty(0, int)
    order = np.argsort(D, kind="stable")
    expected = rows[order][: by["k"]] if "k" in by else rows[order][np.sort(D) <= by["radius"]]
    found = search(client, vector=learned[1][50].tolist(), **by, **filters)
    assert found["ids"] == (1000 + expected).tolist()
    assert found["found"] == len(expected)
    assert found["scores"] is None


def test_labels_of_every_type_serve_as_filters(base):
    hasher, B, *_ = base
    kinds = [1, 1.0, True, "1", 2.5]
    index = HammingIndex(32)
    index.add(B[:50], labels=kinds * 10)
    collection = Collection(hasher, index, takes="vector")
    some = TestClient(create_app(collection), base_url="http://127.0.0.1", raise_server_exceptions=False)
    for i, label in enumerate(kinds):
        found = search(some, id=0, k=50, labels=[label])
        assert sorted(found["ids"]) == list(range(i, 50, 5))
        assert {(type(one), one) for one in found["labels"]} == {(type(label), label)}
    together = collection.search_many(B[:5], [SearchRange(50, labels=(one,)) for one in kinds], 50, index.snapshot())
    assert [hits.ids[0] % 5 for hits in together] == list(range(5))  # also in one call


def test_rescoring_by_outputs_agrees_with_brute_force(client, base, learned):
    hasher, B, _, _ = base
    x = learned[1][50:51]
    F = hasher.decision_function(x)[0].astype(np.float64)
    rows = shortlist(codes.pack(F[None]), B, np.arange(600), 120)
    S = codes.unpack(B[rows], 32).astype(np.float64) @ F
    best = rows[np.lexsort((rows, -S))][:20]
    found = search(client, vector=x[0].tolist(), k=20, rescore="asymmetric", shortlist=120)
    np.testing.assert_allclose(found["scores"], np.sort(S)[::-1][:20], rtol=1e-5)
    assert found["ids"] == (1000 + best).tolist()
    assert found["distances"] == codes.hamming(codes.pack(F[None]), B[best])[0].tolist()
    assert found["codes"] == [B[i].tobytes().hex() for i in best]


@pytest.mark.parametrize("start", ["vector", "id", "picture"])
def test_rescoring_by_vectors_agrees_with_brute_force(client, base, learned, start):
    hasher, B, labels, _ = base
    X, x = learned[1], learned[1][50]
    wanted = np.array([i for i, label in enumerate(labels) if label in (1, 2, 3)])
    rows = shortlist(hasher.transform(x[None]), B, wanted, 60)
    S = X[rows] @ x / np.linalg.norm(X[rows], axis=1) / np.linalg.norm(x)
    options = {"k": 9, "rescore": "float", "shortlist": 60, "labels": [1, 2, 3]}
    if start == "picture":
        fields = {name: json.dumps(value) if name == "labels" else str(value) for name, value in options.items()}
        answer = upload(client, png(ink(x)), **fields)
        assert answer.status_code == 200, answer.text
        found = answer.json()
    else:
        found = search(client, **({"id": 1050} if start == "id" else {"vector": x.tolist()}), **options)
    np.testing.assert_allclose(found["scores"], np.sort(S)[::-1][:9], rtol=1e-4)
    at = np.array(found["ids"]) - 1000
    assert set(at) <= set(rows.tolist())
    assert found["distances"] == codes.hamming(hasher.transform(x[None]), B[at])[0].tolist()


def test_queries_of_all_kinds_share_a_batch(client, base, learned):
    """As when they wait for each other: each gets the answer that it gets alone."""
    from dish.web.batches import Query, search_batch
    from dish.web.collection import SearchRange

    X, one = learned[1].astype(np.float32), base[3]
    queries = [
        Query(SearchRange(5), vector=X[1]),
        Query(SearchRange(5, rescore="float"), vector=X[2]),
        Query(SearchRange(5, rescore="float"), id=1003),
        Query(SearchRange(5, rescore="float"), id=7),  # unknown
        Query(SearchRange(5, rescore="asymmetric", labels=(1,)), vector=X[4]),
        Query(SearchRange(None, 4, ids=(1001, 1002)), id=1002),
        Query(SearchRange(5, rescore="asymmetric"), vector=X[6]),
    ]
    together = search_batch(one, Limits(), queries)
    alone = [search_batch(one, Limits(), [query])[0] for query in queries]
    assert [getattr(answer, "status_code", 200) for answer in together] == [200, 200, 200, 404, 200, 200, 200]
    for a, b in zip(together, alone, strict=True):
        if isinstance(a, bytes):
            assert {**json.loads(a), "time_ms": 0} == {**json.loads(b), "time_ms": 0}


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"id": 1000, "rescore": "asymmetric"}, 422, "no outputs of items"),
        ({"code": "00000000", "rescore": "float"}, 422, "a code alone"),
        ({"id": 1000, "rescore": "exact"}, 422, "rescore"),
        ({"id": 1000, "rescore": "float", "radius": 3}, 422, "k instead of radius"),
        ({"id": 1000, "shortlist": 30}, 422, "give rescore, too"),
        ({"id": 1000, "rescore": "float", "shortlist": 5}, 422, "between k, 10, and 10,000"),
        ({"id": 1000, "rescore": "float", "shortlist": 10_001}, 422, "between k, 10, and 10,000"),
        ({"id": 1000, "rescore": "float", "shortlist": 2.5}, 422, "shortlist"),
        ({"id": 1000, "labels": [[1]]}, 422, "labels"),
        ({"id": 1000, "labels": [{}]}, 422, "labels"),
        ({"id": 1000, "labels": "cat"}, 422, "labels"),
        ({"id": 1000, "ids": [1000, "a"]}, 422, "all integers or all strings"),
        ({"id": 1000, "ids": [None]}, 422, "ids"),
        ({"id": 1000, "ids": list(range(10_001))}, 413, "at most 10,000"),
        ({"id": 1000, "labels": list(range(10_001))}, 413, "at most 10,000"),
        ({"id": 1000, "ids": list(range(40_000))}, 413, "values"),
    ],
)
def test_rejects_invalid_filters_and_rescoring(client, body, status, says):
    assert says in search(client, status, **body)


def test_largest_filters_are_accepted(client):
    ids = list(range(900, 10_900))
    assert len(search(client, id=1000, k=1000, ids=ids, labels=[*ids[:-6], None, 1, 2, 3, 4, 5])["ids"]) > 100


def test_shortlist_takes_bounded_memory(base):
    small = TestClient(create_app(base[3], Limits(max_answer=100_000)), base_url="http://127.0.0.1")
    assert "ask for a smaller k" in search(small, 413, id=1000, rescore="float", shortlist=1000)
    assert len(search(small, id=1000, rescore="float", shortlist=50)["ids"]) == 10


def test_server_without_vectors_says_so(learned):
    hasher, X, _, _ = learned
    index = HammingIndex(32)
    index.add(hasher.transform(X))
    plain = TestClient(create_app(Collection(hasher, index)), base_url="http://127.0.0.1")
    assert "start it with --vectors" in search(plain, 422, id=0, rescore="float")
    assert len(search(plain, vector=X[0].tolist(), rescore="asymmetric")["scores"]) == 10


def test_filters_of_many_codes(client, base):
    _, B, labels, _ = base
    path = "/search/codes?k=4&labels=[1,null]&ids=" + json.dumps(list(range(1000, 1400)))
    answer = client.post(path, content=B[:3].tobytes(), headers=BINARY)
    assert answer.status_code == 200, answer.text
    found = np.load(io.BytesIO(answer.content))
    rows = np.array([i for i, label in enumerate(labels[:400]) if label in (1, None)])
    for i in range(3):
        assert found["ids"][i].tolist() == (1000 + shortlist(B[i : i + 1], B, rows, 4)).tolist()
    for bad in ("labels=1", "labels=[[1]]", "labels=[1e999]", "ids=[", 'ids=[1,"a"]'):
        assert client.post(f"/search/codes?{bad}", content=B[:1].tobytes(), headers=BINARY).status_code == 422


def test_vectors_are_mapped_from_their_file(learned, tmp_path):
    hasher, X, _, ids = learned
    hasher.save(tmp_path / "m.dish")
    index = HammingIndex(32)
    index.add(hasher.transform(X), ids=ids)
    index.save(tmp_path / "ix.dish")
    np.save(tmp_path / "x.npy", X[::-1])
    np.save(tmp_path / "ids.npy", ids[::-1])
    files = CollectionFiles(tmp_path / "m.dish", tmp_path / "ix.dish", tmp_path / "x.npy", tmp_path / "ids.npy")
    found = server.open_source(server.Source(files), files)
    assert isinstance(found.index.snapshot().vectors.rows, np.memmap)
    client = TestClient(create_app(found), base_url="http://127.0.0.1")
    best = search(client, vector=X[50].tolist(), k=1, rescore="float")
    assert best["scores"] == [pytest.approx(1.0)]
