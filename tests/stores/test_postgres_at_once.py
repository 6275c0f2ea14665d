"""PostgresStore with several clients at once, and clients or connections that go away."""

import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from dish import HammingIndex
from dish.stores import PostgresStore

psycopg = pytest.importorskip("psycopg", reason="PostgresStore is NOT tested: psycopg is not installed")
from helpers.postgres import assert_same, clustered  # noqa: E402

pytestmark = pytest.mark.postgres


PUSHER = """
import sys, numpy as np
from dish.stores.postgres import PostgresStore
B = np.load(sys.argv[2])
with PostgresStore(sys.argv[1], "rows", 64) as store:
    print("ready", flush=True)
    store.push(B, np.arange(len(B)), labels=np.arange(len(B)) % 7, batch=500)
"""


def test_a_killed_upload_leaves_whole_batches_and_can_go_on(server, store, tmp_path):
    B = clustered(100_000)
    np.save(tmp_path / "B.npy", B)
    child = subprocess.Popen(
        [sys.executable, "-c", PUSHER, server.dsn, str(tmp_path / "B.npy")], stdout=subprocess.PIPE
    )
    assert child.stdout.readline() == b"ready\n"
    while len(store) < 3000:
        assert child.poll() is None
        time.sleep(0.01)
    child.kill()
    child.wait()
    time.sleep(0.3)  # the server notices that nobody is there
    left = len(store)
    assert 3000 <= left < 100_000
    assert left % 500 == 0
    ids, labels = np.arange(100_000), np.arange(100_000) % 7
    with pytest.raises(ValueError, match="resume=True"):
        store.push(B, ids, labels)
    assert len(store) == left
    with pytest.raises(ValueError, match="not the upload"):
        store.push(B[::-1], ids, labels, resume=True)
    assert store.push(B, ids, labels, batch=30_000, resume=True) == 100_000 - left
    assert store.push(B, ids, labels, batch=30_000, resume=True) == 0
    ix = HammingIndex(64)
    ix.add(B)
    Q = clustered(5, seed=1)
    assert_same(store.radius_search(Q, 2), ix.radius_search(Q, 2))
    assert_same(store.search(Q[:2], 10), ix.search(Q[:2], 10))
    assert store.labels_of([99_999, 0]).tolist() == [99_999 % 7, 0]


def at_once(*works):
    """Run all in threads; what they raised."""
    errors = []

    def guarded(work):
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_overlapping_upserts_of_several_stores(server, store):
    B = clustered(4000)
    store.push(B[:2000])

    def write(seed):
        with PostgresStore(server.dsn, "rows", 64) as own:
            for i in range(5):
                some = np.random.default_rng([seed, i]).permutation(4000)[:1500]
                own.upsert(B[some], some, batch=500)
                own.remove(some[:10])
                own.upsert(B[some[:10]], some[:10])

    assert at_once(*(lambda seed=seed: write(seed) for seed in range(4))) == []
    ids = np.arange(4000)
    store.upsert(B, ids)
    assert len(store) == 4000


def test_a_deadlock_with_a_stranger_is_tried_again(server, store):
    """Another client locks rows 2 and 1 in that order, and we rows 1 and 2."""
    B = clustered(3)
    store.push(B)
    locked, waiting = threading.Event(), threading.Event()

    def stranger():
        with psycopg.connect(server.dsn) as connection:
            connection.execute("SET deadlock_timeout = '60s'")  # we are the one to be sent back
            connection.execute("UPDATE rows SET label = '1' WHERE id = 2")
            locked.set()
            assert waiting.wait(10)
            time.sleep(0.2)
            connection.execute("UPDATE rows SET label = '1' WHERE id = 1")

    def ours():
        assert locked.wait(10)
        waiting.set()
        store.upsert(B[1:], [1, 2], labels=["a", "b"])

    assert at_once(stranger, ours) == []
    assert store.labels_of([1, 2]).tolist() == ["a", "b"]


def test_threads_share_a_store(store):
    B = clustered(2000)
    store.push(B)
    ix = HammingIndex(64)
    ix.add(B)

    def search(seed):
        for i in range(8):
            Q = B[np.random.default_rng([seed, i]).integers(0, 2000, 2)]
            assert_same(store.search(Q, 5), ix.search(Q, 5))
            assert_same(store.radius_search(Q, 2), ix.radius_search(Q, 2))

    assert at_once(*(lambda seed=seed: search(seed) for seed in range(4))) == []
    assert_same(store.search(B[:2], 5), ix.search(B[:2], 5))


def test_several_create_the_same_table(server):
    def create():
        with PostgresStore(server.dsn, "of many", 64) as own:
            own.create()

    for _ in range(3):
        assert at_once(*[create] * 6) == []
        with PostgresStore(server.dsn, "of many", 64) as own:
            assert len(own) == 0
            own.drop()


def terminate_all(server):
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )


def test_a_lost_connection_is_one_error_and_then_opened_again(server, store):
    B = clustered(30_000)
    store.push(B[:5])
    terminate_all(server)
    with pytest.raises(ConnectionError, match=r"connection to PostgreSQL was lost .* the next call opens it again"):
        len(store)
    assert len(store) == 5

    def cut_off():
        with PostgresStore(server.dsn, "rows", 64) as watcher:
            while len(watcher) == 5:
                time.sleep(0.01)
        terminate_all(server)

    failed = at_once(cut_off, lambda: store.push(B[5:], np.arange(5, 30_000), batch=500))
    assert [type(error) for error in failed] == [ConnectionError]
    assert "rows were written, resume=True continues" in str(failed[0])
    left = len(store)
    assert (left - 5) % 500 == 0
    assert store.push(B[5:], np.arange(5, 30_000), resume=True) == 30_000 - left
    with PostgresStore(server.dsn, "rows", 64) as closed:
        pass
    with pytest.raises(ValueError, match="the store is closed"):
        len(closed)
