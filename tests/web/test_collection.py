"""Writes to a collection: durability, replacement, validation, and searches at the same time."""

import sys
import threading
from contextlib import closing

import numpy as np
import pytest
from starlette.testclient import TestClient

from dish.index.hamming import HammingIndex
from dish.index.index_file import IndexFile
from dish.web import index_writer
from dish.web.app import create_app
from dish.web.collection import SearchRange
from dish.web.journal import count_pending
from helpers.web import make_client, writable


def search(collection, code, k):
    return collection.search_many(code, [SearchRange(k)], k, collection.index.snapshot())[0]


def test_items_are_added_replaced_and_kept(learned, tmp_path):
    hasher, X, _, _ = learned
    with closing(writable(learned, tmp_path)) as found:
        client = TestClient(create_app(found))
        new = {"ids": [1, 1000], "vectors": X[[5, 6]].tolist(), "labels": ["one", "new"]}
        assert client.post("/items", json=new).json() == {"saved": 2, "size": 601, "label_codes": 0}
        code = hasher.transform(X[6:7]).tobytes().hex()
        assert client.post("/search", json={"id": 1000}).json()["code"] == code
        assert "dish_journal_bytes" in client.get("/metrics").text
        assert found.writer.journal.size > 0
    assert count_pending(tmp_path / "ix.dish") == 0  # a graceful stop writes the index
    late = client.post("/items", json={"ids": [2], "vectors": X[:1].tolist()})
    assert late.status_code == 503
    assert "was not made" in late.json()["error"]
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
def test_rejects_bad_items_without_writing(learned, tmp_path, body, status):
    with closing(writable(learned, tmp_path)) as found:
        client = TestClient(create_app(found))
        answer = client.post("/items", json=body)
        assert answer.status_code == status, answer.text
        assert client.get("/info").json()["size"] == 600
    assert count_pending(tmp_path / "ix.dish") == 0


def test_read_only_server_rejects_items(client):
    answer = client.post("/items", json={"ids": [1], "vectors": [[0.0] * 64]})
    assert answer.status_code == 403
    assert "--writable" in answer.json()["error"]


def test_large_journal_is_written_to_the_index(learned, tmp_path, monkeypatch):
    monkeypatch.setattr(index_writer, "JOURNAL_LIMIT", 300)
    found = writable(learned, tmp_path)
    for i in range(20):
        found.upsert([i], learned[0].transform(learned[1][i : i + 1]), None)
        if found.writer._compacting is not None:
            found.writer._compacting.join(20)
    assert found.writer.journal.size <= 300
    assert len(HammingIndex.load(tmp_path / "ix.dish")) > 610
    found.writer.release()
    again = writable(learned, tmp_path)
    assert len(again) == 620
    again.writer.release()


def test_writes_and_searches_go_on_while_the_index_is_written(learned, tmp_path, monkeypatch):
    hasher, X, _, _ = learned
    monkeypatch.setattr(index_writer, "JOURNAL_LIMIT", 1)
    found = writable(learned, tmp_path)
    started, go, write = threading.Event(), threading.Event(), IndexFile.write

    def slow_write(file, *state):
        write(file, *state)
        started.set()
        assert go.wait(20)

    monkeypatch.setattr(IndexFile, "write", slow_write)
    found.upsert([1], hasher.transform(X[:1]), None)
    assert started.wait(20)
    assert found.upsert([2], hasher.transform(X[1:2]), ["late"]) == 602  # does not wait
    assert search(found, hasher.transform(X[:1]), 1).found == 1
    go.set()
    found.writer._compacting.join(20)
    found.writer.release()  # like a crash
    monkeypatch.undo()
    assert 2 not in HammingIndex.load(tmp_path / "ix.dish")
    with closing(writable(learned, tmp_path)) as again:
        assert len(again) == 602
        assert again.index.labels_of([2]).tolist() == ["late"]


def test_record_that_the_index_rejects_is_withdrawn(learned, tmp_path, monkeypatch):
    hasher, X, _, _ = learned
    found = writable(learned, tmp_path)
    found.upsert([1], hasher.transform(X[:1]), None)
    with monkeypatch.context() as broken:
        broken.setattr(HammingIndex, "upsert", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            found.upsert([2], hasher.transform(X[:1]), None)
    found.upsert([3], hasher.transform(X[:1]), None)
    found.writer.release()  # like a crash
    with closing(writable(learned, tmp_path)) as again:
        assert [id in again.index for id in (1, 2, 3)] == [True, False, True]


def test_full_disk_gives_503_and_loses_nothing(learned, tmp_path):
    X = learned[1]
    found = writable(learned, tmp_path)
    client = TestClient(create_app(found))
    assert client.post("/items", json={"ids": [1], "vectors": X[:1].tolist()}).status_code == 200
    (pages,) = found.writer.journal._connection.execute("PRAGMA page_count").fetchone()
    found.writer.journal._connection.execute(f"PRAGMA max_page_count = {pages}")  # the disk is full
    refused = client.post("/items", json={"ids": list(range(2, 602)), "vectors": X.tolist()})
    assert refused.status_code == 503
    assert "was not made" in refused.json()["error"]
    assert client.get("/info").json()["size"] == 601
    assert client.post("/search", json={"id": 1}).status_code == 200
    found.writer.journal._connection.execute("PRAGMA max_page_count = 1000000")
    assert client.post("/items", json={"ids": [2], "vectors": X[:1].tolist()}).status_code == 200
    found.writer.release()  # like a crash
    with closing(writable(learned, tmp_path)) as again:
        assert len(again) == 602


def test_last_write_of_an_item_wins(learned, tmp_path):
    hasher, X, _, _ = learned
    found = writable(learned, tmp_path)
    for ids, labels in (([1, 2], ["a", "b"]), ([2, 3], None), ([1], ["c"]), ([4, 5], [7, "x"])):
        found.upsert(ids, hasher.transform(X[: len(ids)]), labels)
    found.writer.release()  # like a crash
    again = writable(learned, tmp_path)
    assert list(again.index.labels_of([1, 2, 3])) == ["c", None, None]
    assert again.index.labels_of([4]).tolist() == [7]  # still a number
    assert again.index.labels_of([5]).tolist() == ["x"]
    np.testing.assert_array_equal(again.index.get([1, 2, 3]), hasher.transform(X[[0, 0, 1]]))
    np.testing.assert_array_equal(again.index.ids, found.index.ids)  # ties have the same order
    again.close()


def test_concurrent_searches_and_writes(learned, tmp_path):
    found = writable(learned, tmp_path)
    hasher, X, _, _ = learned
    code = hasher.transform(X[:1])
    problems = []

    def look():
        for _ in range(60):
            try:
                hits = search(found, code, 20)
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


def test_response_is_consistent_during_writes(learned, tmp_path):
    """The distance and the label of a hit belong to its code, although items are replaced all the time."""
    rng = np.random.default_rng(0)
    index = HammingIndex(32)
    index.add(rng.integers(0, 256, (300, 4), dtype=np.uint8), ids=np.arange(300), labels=["old"] * 300)
    index.save(tmp_path / "ix.dish")
    found = writable(learned, tmp_path)
    found.writer.journal.append = lambda record: 1  # fast: the race is in the index, not on disk
    written, problems, stop = {}, [], threading.Event()

    def write():
        for n in range(400):
            ids, codes = rng.choice(300, 20, replace=False), rng.integers(0, 256, (20, 4), dtype=np.uint8)
            written.update({(int(id), code.tobytes().hex()): f"v{n}" for id, code in zip(ids, codes, strict=True)})
            found.upsert(ids.tolist(), codes, [f"v{n}"] * 20)
        stop.set()

    def look(seed):
        mine = np.random.default_rng(seed)
        while not stop.is_set():
            query = mine.integers(0, 256, (1, 4), dtype=np.uint8)
            hits = search(found, query, 50)
            for id, d, label, code in zip(hits.ids, hits.distances, hits.labels, hits.codes, strict=True):
                own = np.unpackbits(np.frombuffer(bytes.fromhex(code), np.uint8) ^ query[0]).sum()
                if own != d or written.get((id, code), "old") != label:
                    problems.append((id, d, own, label))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    threads = [threading.Thread(target=write), *(threading.Thread(target=look, args=(s,)) for s in range(3))]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(before)
    assert stop.is_set()
    assert problems == []
    found.writer.release()


def test_close_distance_covers_five_percent_of_pairs(learned):
    info = make_client(learned).get("/info").json()
    codes = np.unpackbits(learned[0].transform(learned[1]), axis=1).astype(int)
    rows, others = np.random.default_rng(1).integers(0, len(codes), (2, 8000))
    distances = np.abs(codes[rows] - codes[others]).sum(1)[rows != others]
    assert 0.02 < (distances < info["close_distance"] + 0.5).mean() < 0.12
    assert 0 <= info["close_distance"] < 10
