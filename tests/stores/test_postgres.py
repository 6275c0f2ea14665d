"""PostgresStore on a real PostgreSQL server with pgvector, against HammingIndex."""

import subprocess
import sys
import time

import numpy as np
import pytest

from dish import HammingIndex
from dish.errors import ModelMismatchError, StoreError
from dish.stores import PostgresStore
from helpers.codes import all_distances, assert_same, make_codes
from helpers.threads import errors_of_threads

psycopg = pytest.importorskip("psycopg", reason="PostgresStore is NOT tested: psycopg is not installed")

pytestmark = pytest.mark.postgres


def clustered(n, n_bits=64, seed=0):
    return make_codes("clustered", n, n_bits, seed)


# --- searches ---


@pytest.mark.parametrize("n_bits", [2, 20, 64, 131])
def test_results_equal_those_of_the_index(dsn, n_bits):
    """Including ties, which both return in insertion order."""
    B, Q = clustered(1000, n_bits), clustered(25, n_bits, seed=1)
    ids = np.random.default_rng(0).permutation(1000) * 7 - 100
    ix = HammingIndex(n_bits)
    ix.add(B, ids)
    with PostgresStore(dsn, f"of {n_bits} bits", n_bits) as store:
        store.create()
        assert store.push(B, ids, batch=300) == 1000
        assert len(store) == 1000
        for k in (1, 10, 5000):
            assert_same(store.search(Q[:5], k), ix.search(Q[:5], k))
        for radius in (0, 1, 2, 3, 5, 6, n_bits // 3):
            assert_same(store.radius_search(Q, radius), ix.radius_search(Q, radius))
        for one in (store, ix):
            assert one.remove([*ids[:50], 10**9]) == 50
            one.upsert(B[50:52], ids[[500, 3]])
        assert_same(store.search(Q[:5], 20), ix.search(Q[:5], 20))
        assert_same(store.radius_search(Q, 2), ix.radius_search(Q, 2))
        store.drop()


def test_string_ids_and_labels(dsn):
    B = clustered(6, 64)
    ids = ["a", "é\t'; DROP TABLE x; --", "\\N", "tab\tnewline\n", "{}", '"']
    with PostgresStore(dsn, "strings", 64, ids="string") as store:
        store.create()
        store.push(B, ids, labels=["x", "y\\", 'q"', "x", "\t", ""])
        D, found = store.search(B, 1)
        assert (D == 0).all()
        assert store.labels_of(ids).tolist() == ["x", "y\\", 'q"', "x", "\t", ""]
        assert {*found[:, 0]} <= {*ids}
        store.upsert(B[:1], ["new"])
        assert store.labels_of(["new", "a"]).tolist() == [None, "x"]
        with pytest.raises(KeyError, match="unknown"):
            store.labels_of(["unknown"])
        store.drop()


def test_small_radii_use_the_chunk_indexes(store):
    store.push(clustered(20_000), batch=20_000)
    q = store._table.to_bits(clustered(1))[0]

    def plan(radius):
        statement, values = store._table.radius_query(q, radius)
        lines = store._connection.execute(psycopg.sql.SQL("EXPLAIN {}").format(statement), values).fetchall()
        return "\n".join(line for (line,) in lines)

    for radius in (0, 1, 2):
        assert "Seq Scan" not in plan(radius)
        for j in range(3):
            assert f"rows_chunk{j}" in plan(radius)
    assert "Seq Scan" in plan(20)


@pytest.mark.parametrize("kind", ["ivfflat", "hnsw"])
def test_approximate_indexes(store, kind):
    B, Q = clustered(1500), clustered(20, seed=1)
    store.push(B)
    store.build_index(kind, **({"lists": 10} if kind == "ivfflat" else {"m": 8, "ef_construction": 40}))
    names = [name for (name,) in store._connection.execute("SELECT indexname FROM pg_indexes").fetchall()]
    assert f"rows_{kind}" in names
    exact, _ = store.search(Q, 10)
    np.testing.assert_array_equal(exact, np.sort(all_distances(Q, B), axis=1)[:, :10])  # the scan stays exact
    D, found = store.search(Q, 10, exact=False, probes=6, ef_search=100)  # lists differ from build to build
    np.testing.assert_array_equal(D, np.take_along_axis(all_distances(Q, B), found, 1))
    assert (exact[:, -1:] >= D).mean() > 0.7
    if kind == "ivfflat":
        D, _ = store.search(Q, 10, exact=False, probes=10)  # all lists
        np.testing.assert_array_equal(D, exact)
        assert store.search(Q[:2], 1000, exact=False, probes=1)[0].shape == (2, 1000)  # one list holds fewer
    store.build_index(kind)  # replaces the first


@pytest.mark.parametrize("name", ['x"; DROP TABLE rows; --', "Ünï.codé", "select", "%s {table}", "a'b"])
def test_names_are_quoted(dsn, store, name):
    B = clustered(20)
    store.push(B)
    with PostgresStore(dsn, name, 64) as odd:
        odd.create()
        odd.create()  # the table exists: nothing happens
        odd.push(B[:5])
        odd.upsert(B[5:6], [3])
        odd.build_index("ivfflat")
        assert odd.search(B[:1], 9)[1].shape == (1, 5)
        assert odd.radius_search(B[:1], 0)[1].tolist() == [0]
        assert len(odd) == 5
        odd.drop()
    assert len(store) == 20


def test_a_search_does_not_count_the_rows(store, monkeypatch):
    store.push(clustered(50))
    statements = []
    execute = store._connection.execute
    monkeypatch.setattr(store._connection, "execute", lambda s, v=None: (statements.append(str(s)), execute(s, v))[1])
    store.search(clustered(3), 5)
    store.search(clustered(3), 5, exact=False)
    assert statements
    assert not any("count(*)" in statement for statement in statements)


def test_an_empty_table(store):
    D, found = store.search(clustered(2), 5)
    assert D.shape == found.shape == (2, 0)
    assert store.radius_search(clustered(2), 5)[0].tolist() == [0, 0, 0]
    assert store.push(clustered(2)[:0]) == 0


def test_missing_labels_and_labels_of_every_type(store):
    given = [None, float("nan"), np.datetime64("NaT"), 1, 1.0, True, "1", 2**70, -0.5, ""]
    store.push(clustered(10), labels=given)
    found = store.labels_of(range(10)).tolist()
    assert found == [None] * 3 + given[3:]
    assert [type(value) for value in found[3:]] == [type(value) for value in given[3:]]
    store.upsert(clustered(1), [3], labels=np.array([np.nan]))
    assert store.labels_of([3]).tolist() == [None]


# --- models ---


def test_a_table_records_its_model_and_rejects_another(dsn, caplog):
    B, one, other = clustered(3), "0123456789abcdef", "fedcba9876543210"
    with PostgresStore(dsn, "marked", 64, model=one) as store:
        store.create()
        store.push(B)
        assert store.table_model == one
    with PostgresStore(dsn, "marked", 64) as unknown:
        assert unknown.search(B, 1)[1].tolist() == [[0], [1], [2]]
    with PostgresStore(dsn, "marked", 64, model=other) as wrong:
        for call in (
            wrong.create, lambda: wrong.push(B, [7, 8, 9]), lambda: wrong.upsert(B, [0, 1, 2]),
            lambda: wrong.search(B), lambda: wrong.radius_search(B), lambda: wrong.remove([0]),
        ):  # fmt: skip
            with pytest.raises(ModelMismatchError, match=rf"'marked' holds .* {one}.* {other}"):
                call()
        wrong.drop()
    with PostgresStore(dsn, "unmarked", 64) as store:
        store.create()
    with PostgresStore(dsn, "unmarked", 64, model=one) as store, caplog.at_level("INFO"):
        store.push(B)
        assert "not checked" in caplog.text
        store.drop()


# --- errors ---


def test_a_missing_or_old_pgvector(store, monkeypatch):
    monkeypatch.setattr(store, "_version", lambda: "")
    with pytest.raises(StoreError, match="pgvector is missing"):
        store.create()
    monkeypatch.setattr(store, "_version", lambda: "0.6.2")
    with pytest.raises(StoreError, match=r"pgvector is 0\.6\.2, but codes need 0\.7"):
        store.create()


def test_a_server_without_pgvector(store, monkeypatch):
    run = store._run
    missing = "CREATE EXTENSION IF NOT EXISTS pgvector_is_not_here"
    monkeypatch.setattr(store, "_run", lambda text, **parts: run(missing if "EXTENSION" in text else text, **parts))
    monkeypatch.setattr(store, "_version", lambda: "")
    with pytest.raises(StoreError, match="server has no pgvector: install it first"):
        store.create()


def test_the_table_must_fit(dsn, store):
    for call in (lambda narrow: narrow.create(), lambda narrow: narrow.push(clustered(3, 32))):
        with PostgresStore(dsn, "rows", 32) as narrow, pytest.raises(ValueError, match=r"bit\(32\), got bit\(64\)"):
            call(narrow)
    with (
        PostgresStore(dsn, "rows", 64, ids="string") as strings,
        pytest.raises(ValueError, match="must be text, got bigint"),
    ):
        strings.remove(["a"])
    with PostgresStore(dsn, "nowhere", 64) as none, pytest.raises(ValueError, match=r"no table 'nowhere'"):
        none.search(clustered(1))


def test_invalid_arguments_are_rejected(store):
    B = clustered(4)
    store.push(B)
    bad = {
        "k must be": lambda: store.search(B, 0),
        "radius must be": lambda: store.radius_search(B, -1),
        "8 bytes|4 bytes": lambda: store.push(clustered(2, 32)),
        "occurs twice": lambda: store.push(B, [5, 6, 7, 5]),
        "type 'integer'": lambda: store.push(B, list("abcd")),
        "kind must be one of": lambda: store.build_index("btree"),
        "option must be one of": lambda: store.build_index("hnsw", lists=3),
        "lists must be": lambda: store.build_index("ivfflat", lists=0),
        "batch must be": lambda: store.push(B, batch=0),
        "labels must": lambda: store.upsert(B, [1, 2, 3, 4], labels=[1]),
    }
    for message, call in bad.items():
        with pytest.raises(ValueError, match=message):
            call()
    assert len(store) == 4


def test_invalid_labels_are_rejected_before_anything_is_sent(store):
    for write in (store.push, store.upsert):
        with pytest.raises(ValueError, match="labels must be"):
            write(clustered(4), range(4), ["fine", "fine", "fine", "a\0b"], batch=2)
    assert len(store) == 0


# --- several clients ---


PUSHER = """
import sys, numpy as np
from dish.stores.postgres import PostgresStore
B = np.load(sys.argv[2])
with PostgresStore(sys.argv[1], "rows", 64) as store:
    print("ready", flush=True)
    store.push(B, np.arange(len(B)), labels=np.arange(len(B)) % 7, batch=100)
"""


def test_a_killed_upload_leaves_whole_batches_and_can_be_resumed(dsn, store, tmp_path):
    n = 20_000
    B, ids, labels = clustered(n), np.arange(n), np.arange(n) % 7
    np.save(tmp_path / "B.npy", B)
    child = subprocess.Popen([sys.executable, "-c", PUSHER, dsn, str(tmp_path / "B.npy")], stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"ready\n"
    while len(store) < 600:
        assert child.poll() is None
        time.sleep(0.01)
    child.kill()
    child.wait()
    time.sleep(0.3)  # the server ends the transaction
    written = len(store)
    assert 600 <= written < n
    assert written % 100 == 0
    with pytest.raises(ValueError, match="resume=True"):
        store.push(B, ids, labels)
    assert len(store) == written
    with pytest.raises(ValueError, match="with another code, so resume=True cannot continue"):
        store.push(B[::-1], ids, labels, resume=True)
    assert store.push(B, ids, labels, batch=6000, resume=True) == n - written
    assert store.push(B, ids, labels, batch=6000, resume=True) == 0
    ix = HammingIndex(64)
    ix.add(B)
    Q = clustered(5, seed=1)
    assert_same(store.radius_search(Q, 2), ix.radius_search(Q, 2))
    assert_same(store.search(Q[:2], 10), ix.search(Q[:2], 10))
    assert store.labels_of([n - 1, 0]).tolist() == [(n - 1) % 7, 0]


def test_uploads_of_the_same_rows_resume_each_other(dsn, store):
    B = clustered(3000)
    written = []

    def push():
        with PostgresStore(dsn, "rows", 64) as own:
            written.append(own.push(B, batch=100, resume=True))

    assert errors_of_threads(push, push, push) == []
    assert sum(written) == len(store) == 3000


def test_overlapping_upserts_of_several_stores(dsn, store):
    B = clustered(2000)
    store.push(B[:1000])

    def write(seed):
        with PostgresStore(dsn, "rows", 64) as own:
            for i in range(3):
                some = np.random.default_rng([seed, i]).permutation(2000)[:700]
                own.upsert(B[some], some, batch=250)
                own.remove(some[:10])
                own.upsert(B[some[:10]], some[:10])

    assert errors_of_threads(*(lambda seed=seed: write(seed) for seed in range(3))) == []
    store.upsert(B, np.arange(2000))
    assert len(store) == 2000


def test_threads_share_a_store(store):
    B = clustered(2000)
    store.push(B)
    ix = HammingIndex(64)
    ix.add(B)

    def search(seed):
        for i in range(5):
            Q = B[np.random.default_rng([seed, i]).integers(0, 2000, 2)]
            assert_same(store.search(Q, 5), ix.search(Q, 5))
            assert_same(store.radius_search(Q, 2), ix.radius_search(Q, 2))

    assert errors_of_threads(*(lambda seed=seed: search(seed) for seed in range(4))) == []


def test_several_stores_create_the_same_table(dsn):
    def create():
        with PostgresStore(dsn, "of many", 64) as own:
            own.create()

    for _ in range(2):
        assert errors_of_threads(*[create] * 6) == []
        with PostgresStore(dsn, "of many", 64) as own:
            assert len(own) == 0
            own.drop()
