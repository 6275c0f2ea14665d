"""What only PostgresStore has: approximate indexes, indexes of chunks, pgvector's vectors, checks of the server."""

import numpy as np
import pytest

from dish import HammingIndex, stores
from dish.errors import InputError, StoreError
from dish.stores import PostgresStore
from helpers.codes import all_distances, assert_same, make_codes, make_queries

pytest.importorskip("psycopg", reason="PostgresStore is NOT tested: psycopg is not installed")

pytestmark = pytest.mark.postgres


def clustered(n, n_bits=64, seed=0):
    return make_codes("clustered", n, n_bits, seed)


def recording(store, monkeypatch):
    """Return a list that gets the statements that the store runs."""
    statements, execute = [], store._connection.execute
    monkeypatch.setattr(store._connection, "execute", lambda s, v=(): (statements.append(s), execute(s, v))[1])
    return statements


def test_small_radii_use_the_indexes_of_chunks(postgres):
    postgres.push(clustered(20_000), batch=20_000)
    near = [[1], [2], [3]]
    with postgres._connection.transaction():
        values = (*postgres._query(clustered(1)[0]), 2, *near)
        plan = "\n".join(line for (line,) in postgres._execute(f"EXPLAIN {postgres._near_statement()}", values))
    assert "Seq Scan" not in plan
    for j in range(3):
        assert f"rows_chunk{j}" in plan


@pytest.mark.parametrize("kind", ["ivfflat", "hnsw"])
def test_approximate_indexes_cover_the_distinct_codes(postgres, kind):
    B = clustered(1200)
    B, Q = np.concatenate([B, B[:300]]), clustered(20, seed=1)  # the first 300 codes occur twice
    postgres.push(B)
    postgres.build_index(kind, **({"lists": 10} if kind == "ivfflat" else {"m": 8, "ef_construction": 40}))
    found = postgres._execute("SELECT tablename FROM pg_indexes WHERE indexname = $1", (f"rows_{kind}",))
    assert found == [("rows_codes",)]
    exact, _ = postgres.search(Q, 10)
    np.testing.assert_array_equal(exact, np.sort(all_distances(Q, B), axis=1)[:, :10])  # the scan stays exact
    option = {"probes": 6} if kind == "ivfflat" else {"ef_search": 100}  # lists differ from build to build
    D, rows = postgres.search(Q, 10, exact=False, **option)
    np.testing.assert_array_equal(D, np.take_along_axis(all_distances(Q, B), rows, 1))
    assert (exact[:, -1:] >= D).mean() > 0.7
    assert_same(postgres.search(B[:5], 2, exact=False, **option), (np.zeros((5, 2), np.int32), np.c_[:5, 1200:1205]))
    if kind == "ivfflat":
        D, _ = postgres.search(Q, 10, exact=False, probes=10)  # all lists
        np.testing.assert_array_equal(D, exact)
        assert postgres.search(Q[:2], 1400, exact=False, probes=1)[0].shape == (2, 1400)  # one list holds fewer
    postgres.build_index(kind)  # replaces the first


def test_an_approximate_search_reads_the_index(postgres, monkeypatch):
    """And one for more rows than it finds, or with a filter, scans."""
    B = clustered(500)
    postgres.push(B)
    postgres.build_index("hnsw")
    statements = recording(postgres, monkeypatch)
    postgres.search(B[:1], 5, exact=False)
    assert not any("ORDER BY d" in one for one in statements)
    assert_same(postgres.search(B[:2], 500, exact=False, ef_search=20), postgres.search(B[:2], 500))
    assert_same(postgres.search(B[:2], 7, range(20), exact=False), postgres.search(B[:2], 7, range(20)))


def test_an_index_follows_the_rows(postgres):
    """After removals and upserts, an index over all lists still finds what a scan finds."""
    B = make_codes("duplicates", 300, 64)
    postgres.push(B)
    postgres.build_index("ivfflat", lists=5)
    postgres.remove(range(100))
    postgres.upsert(clustered(80), range(150, 230))
    D, _ = postgres.search(B[:9], 10, exact=False, probes=5)
    np.testing.assert_array_equal(D, postgres.search(B[:9], 10)[0])


def test_options_of_approximate_searches_are_validated(postgres):
    B = clustered(4)
    postgres.push(B)
    bad = {
        "kind must be one of": lambda: postgres.build_index("btree"),
        "option must be one of": lambda: postgres.build_index("hnsw", lists=3),
        "lists must be": lambda: postgres.build_index("ivfflat", lists=0),
        "probes must be": lambda: postgres.search(B, exact=False, probes=0),
        "only for searches with exact=False": lambda: postgres.search(B, probes=3),
    }
    for message, call in bad.items():
        with pytest.raises(InputError, match=message):
            call()


def test_a_search_does_not_count_the_rows(postgres, monkeypatch):
    postgres.push(clustered(50))
    statements = recording(postgres, monkeypatch)
    postgres.search(clustered(3), 5)
    assert statements
    assert not any("count(*)" in statement for statement in statements)


# --- rescoring by a column of vectors ---


@pytest.fixture
def with_vectors(postgres):
    """A store whose table has a column of vectors, an index with the same vectors, and queries."""
    rng = np.random.default_rng(0)
    X, V = rng.standard_normal((300, 6)).astype(np.float32), rng.standard_normal((4, 6)).astype(np.float32)
    B = make_codes("duplicates", 300, 64)
    ix = HammingIndex(64)
    ix.add(B)
    postgres.push(B)
    postgres._execute("ALTER TABLE rows ADD COLUMN embedding vector(6)")
    for i, x in enumerate(X):
        postgres._execute("UPDATE rows SET embedding = $1::vector WHERE id = $2", (str(x.tolist()), i))
    return postgres, ix, X, make_queries(B, 4, 64), V


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
def test_shortlists_are_rescored_by_a_column_of_vectors(with_vectors, metric):
    store, ix, X, Q, V = with_vectors
    store.attach_column("embedding", metric)
    ix.attach_vectors(X, metric=metric)
    for options in ({}, {"shortlist": 40}, {"ids": range(9)}, {"ids": []}):
        options = {"rescore": "float", "query_vectors": V, **options}
        D, found = store.search(Q, 5, **options)
        wanted, rows = ix.search(Q, 5, **options)
        np.testing.assert_allclose(D, wanted, atol=1e-5)
        np.testing.assert_array_equal(found, rows)
        assert D.dtype == np.float32


def test_equally_similar_rows_come_by_distance_then_by_insertion(with_vectors):
    store, ix, _, Q, V = with_vectors
    store._execute("UPDATE rows SET embedding = '[1, 0, 0, 0, 0, 0]'")
    store.attach_column("embedding")
    ix.attach_vectors(np.tile(np.eye(6, dtype=np.float32)[0], (300, 1)))
    options = {"rescore": "float", "query_vectors": V}
    np.testing.assert_array_equal(store.search(Q, 30, **options)[1], ix.search(Q, 30, **options)[1])


def test_vectors_that_cannot_be_compared_are_refused(with_vectors):
    store, _, _, Q, V = with_vectors
    with pytest.raises(InputError, match=r"column 'absent' of table 'rows' must be .*, got no such"):
        store.attach_column("absent")
    with pytest.raises(InputError, match=r"of the type vector .*, got text"):
        store.attach_column("label")
    store.attach_column("embedding")
    options = {"rescore": "float", "query_vectors": V}
    with pytest.raises(InputError, match=r"shape \(4, 6\)"):
        store.search(Q, 5, rescore="float", query_vectors=V[:, 1:])
    with pytest.raises(InputError, match="finite"):
        store.search(Q, 5, rescore="float", query_vectors=np.full((4, 6), np.nan))
    with pytest.raises(InputError, match="rescore='float' needs query_vectors"):
        store.search(Q, 5, rescore="float")
    with pytest.raises(InputError, match="metric must be one of"):
        store.attach_column("embedding", "hamming")
    store._execute("UPDATE rows SET embedding = NULL WHERE id = 7")
    with pytest.raises(InputError, match="id 7 has no vector"):
        store.search(Q, 5, shortlist=300, **options)


# --- checks of the server ---


def test_a_missing_or_old_pgvector(postgres, monkeypatch):
    monkeypatch.setattr(postgres, "_version", lambda: "")
    with pytest.raises(StoreError, match="pgvector is missing"):
        postgres.create()
    monkeypatch.setattr(postgres, "_version", lambda: "0.6.2")
    with pytest.raises(StoreError, match=r"pgvector is 0\.6\.2, but codes need 0\.7"):
        postgres.create()


def test_a_server_without_pgvector(postgres, monkeypatch):
    execute = postgres._execute
    missing = "CREATE EXTENSION IF NOT EXISTS pgvector_is_not_here"
    monkeypatch.setattr(postgres, "_execute", lambda s, v=(): execute(missing if "EXTENSION" in s else s, v))
    monkeypatch.setattr(postgres, "_version", lambda: "")
    with pytest.raises(StoreError, match="server has no pgvector: install it first"):
        postgres.create()


def test_codes_that_a_b_tree_cannot_hold_are_refused(dsn):
    with pytest.raises(InputError, match="n_bits must be a whole number from 1 to 20000, got 20001"):
        PostgresStore(dsn, "rows", 20_001)
    B = make_codes("random", 5, 20_000)
    with PostgresStore(dsn, "long", 20_000) as store:
        store.create()
        store.push(B)
        assert store.search(B, 1)[1].ravel().tolist() == [*range(5)]
        store.drop()


def test_the_address_may_be_any_connection_string(dsn):
    with PostgresStore(dsn, "by dsn", 64) as store:
        store.create()
        store.drop()
    with pytest.raises(ConnectionError, match="cannot reach PostgreSQL"):
        stores.open("postgresql://nobody@127.0.0.1:1/none", "rows")
