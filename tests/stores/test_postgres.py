"""PostgresStore on a real PostgreSQL with pgvector, started for the tests and stopped after them."""

import numpy as np
import pytest

from dish import HammingIndex, codes
from dish.errors import ModelMismatchError, StoreError
from dish.stores import PostgresStore

psycopg = pytest.importorskip("psycopg", reason="PostgresStore is NOT tested: psycopg is not installed")
from helpers.postgres import assert_same, clustered  # noqa: E402

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize("n_bits", [2, 20, 64, 131])
def test_answers_equal_those_of_the_index(server, n_bits):
    """Ties too: both have them in the order of insertion."""
    B, Q = clustered(3000, n_bits), clustered(25, n_bits, seed=1)
    ids = np.random.default_rng(0).permutation(3000) * 7 - 100
    ix = HammingIndex(n_bits)
    ix.add(B, ids)
    with PostgresStore(server.dsn, f"of {n_bits} bits", n_bits) as store:
        store.create()
        assert store.push(B, ids, batch=700) == 3000
        assert len(store) == 3000
        for k in (1, 10, 5000):
            assert_same(store.search(Q[:5], k), ix.search(Q[:5], k))
        for radius in (0, 1, 2, 3, 5, 6, n_bits // 3):
            assert_same(store.radius_search(Q, radius), ix.radius_search(Q, radius))
        for s in (store, ix):
            assert s.remove([*ids[:50], 10**9]) == 50
            s.upsert(B[50:52], ids[[3000 // 2, 3]])
        assert_same(store.search(Q[:5], 20), ix.search(Q[:5], 20))
        assert_same(store.radius_search(Q, 2), ix.radius_search(Q, 2))
        store.drop()


def test_string_ids_and_labels(server):
    B = clustered(6, 64)
    ids = ["a", "é\t'; DROP TABLE x; --", "\\N", "tab\tnewline\n", "{}", '"']
    with PostgresStore(server.dsn, "strings", 64, ids="string") as store:
        store.create()
        store.push(B, ids, labels=["x", "y\\", 'q"', "x", "\t", ""])
        D, found = store.search(B, 1)
        assert (D == 0).all()
        assert store.labels_of(ids).tolist() == ["x", "y\\", 'q"', "x", "\t", ""]
        assert {*found[:, 0]} <= {*ids}
        store.upsert(B[:1], ["new"])
        assert store.labels_of(["new", "a"]).tolist() == [None, "x"]
        with pytest.raises(KeyError, match="nobody"):
            store.labels_of(["nobody"])
        store.drop()


def test_small_radii_use_an_index(store):
    """Not a sequential scan over all rows, which is what a bare distance in WHERE gives."""
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
    B, Q = clustered(3000), clustered(20, seed=1)
    store.push(B)
    store.build_index(kind, **({"lists": 10} if kind == "ivfflat" else {"m": 8, "ef_construction": 40}))
    names = [name for (name,) in store._connection.execute("SELECT indexname FROM pg_indexes").fetchall()]
    assert f"rows_{kind}" in names
    exact, _ = store.search(Q, 10)
    np.testing.assert_array_equal(exact, np.sort(codes.hamming(Q, B), axis=1)[:, :10])  # the scan stays exact
    D, found = store.search(Q, 10, exact=False, probes=3, ef_search=100)
    np.testing.assert_array_equal(D, np.take_along_axis(codes.hamming(Q, B), found, 1))
    assert (exact[:, -1:] >= D).mean() > 0.7
    if kind == "ivfflat":
        D, _ = store.search(Q, 10, exact=False, probes=10)  # all lists
        np.testing.assert_array_equal(D, exact)
        assert store.search(Q[:2], 2000, exact=False, probes=1)[0].shape == (2, 2000)  # a list holds fewer
    store.build_index(kind)  # again, in place of the first


@pytest.mark.parametrize("name", ['x"; DROP TABLE rows; --', "Ünï.codé", "select", "%s {table}", "a'b"])
def test_names_are_quoted(server, store, name):
    B = clustered(20)
    store.push(B)
    with PostgresStore(server.dsn, name, 64) as odd:
        odd.create()
        odd.create()  # there already: nothing happens
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
    asked = []
    execute = store._connection.execute
    monkeypatch.setattr(store._connection, "execute", lambda s, v=None: (asked.append(str(s)), execute(s, v))[1])
    store.search(clustered(3), 5)
    store.search(clustered(3), 5, exact=False)
    assert asked
    assert not any("count(*)" in statement for statement in asked)


# --- models -------------------------------------------------------------------------------------------------


def test_a_table_keeps_its_model_and_refuses_another(server, caplog):
    B, one, other = clustered(3), "0123456789abcdef", "fedcba9876543210"
    with PostgresStore(server.dsn, "marked", 64, model=one) as store:
        store.create()
        store.push(B)
        assert store.table_model == one
    with PostgresStore(server.dsn, "marked", 64) as unknown:
        assert unknown.search(B, 1)[1].tolist() == [[0], [1], [2]]
    with PostgresStore(server.dsn, "marked", 64, model=other) as wrong:
        for call in (
            wrong.create, lambda: wrong.push(B, [7, 8, 9]), lambda: wrong.upsert(B, [0, 1, 2]),
            lambda: wrong.search(B), lambda: wrong.radius_search(B), lambda: wrong.remove([0]),
        ):  # fmt: skip
            with pytest.raises(ModelMismatchError, match=rf"'marked' holds .* {one}.* {other}"):
                call()
        wrong.drop()
    with PostgresStore(server.dsn, "unmarked", 64) as store:
        store.create()
    with PostgresStore(server.dsn, "unmarked", 64, model=one) as store, caplog.at_level("INFO"):
        store.push(B)
        assert "not checked" in caplog.text
        store.drop()


# --- errors -----------------------------------------------------------------------------------------------


def test_no_server_and_no_dsn(tmp_path):
    with pytest.raises(ConnectionError, match="cannot reach PostgreSQL"):
        PostgresStore(f"host={tmp_path} user=u password=secret", "rows")
    with pytest.raises(ValueError, match="dsn"):
        PostgresStore("not a dsn", "rows")


def test_no_pgvector_or_an_old_one(store, monkeypatch):
    monkeypatch.setattr(store, "_version", lambda: "")
    with pytest.raises(RuntimeError, match="pgvector is missing"):
        store.create()
    monkeypatch.setattr(store, "_version", lambda: "0.6.2")
    with pytest.raises(RuntimeError, match=r"pgvector is 0\.6\.2 here; 0\.7"):
        store.create()


def test_the_table_must_fit(server, store):
    with PostgresStore(server.dsn, "rows", 32) as narrow, pytest.raises(ValueError, match=r"bit\(64\) as code"):
        narrow.create()
    with PostgresStore(server.dsn, "rows", 32) as narrow, pytest.raises(ValueError, match=r"bit\(32\) is needed"):
        narrow.push(clustered(3, 32))
    with (
        PostgresStore(server.dsn, "rows", 64, ids="string") as strings,
        pytest.raises(ValueError, match="bigint as id, where text"),
    ):
        strings.remove(["a"])
    with PostgresStore(server.dsn, "nowhere", 64) as none, pytest.raises(ValueError, match=r"no table 'nowhere'"):
        none.search(clustered(1))
    with pytest.raises(ValueError, match="table must be"):
        PostgresStore(server.dsn, "x" * 60, 64)


def test_bad_arguments(store):
    B = clustered(4)
    store.push(B)
    bad = {
        "k must be": lambda: store.search(B, 0),
        "radius must be": lambda: store.radius_search(B, -1),
        "8 bytes|4 bytes": lambda: store.push(clustered(2, 32)),
        "given twice": lambda: store.push(B, [5, 6, 7, 5]),
        "kind 'integer'": lambda: store.push(B, list("abcd")),
        "kind must be one of": lambda: store.build_index("btree"),
        "option must be one of": lambda: store.build_index("hnsw", lists=3),
        "lists must be": lambda: store.build_index("ivfflat", lists=0),
        "batch must be": lambda: store.push(B, batch=0),
        "labels must be": lambda: store.upsert(B, [1, 2, 3, 4], labels=[1]),
    }
    for message, call in bad.items():
        with pytest.raises(ValueError, match=message):
            call()
    assert len(store) == 4


@pytest.mark.parametrize("label", ["a\0b", "\ud800", float("inf"), 1e300])
def test_labels_that_postgresql_cannot_hold_are_refused_before_anything_is_sent(store, label):
    B = clustered(4)
    for write in (store.push, store.upsert):
        with pytest.raises(ValueError, match="labels must be"):
            write(B, range(4), ["fine", "fine", "fine", label], batch=2)
    assert len(store) == 0


def test_ids_that_postgresql_cannot_hold(server):
    with PostgresStore(server.dsn, "strings", 64, ids="string") as store:
        store.create()
        for bad in ("a\0b", "\ud800"):
            with pytest.raises(ValueError, match="ids must be text"):
                store.push(clustered(2), ["fine", bad])
        store.drop()


def test_missing_labels_and_labels_of_every_type(store):
    given = [None, float("nan"), np.datetime64("NaT"), 1, 1.0, True, "1", 2**70, -0.5, ""]
    store.push(clustered(10), labels=given)
    found = store.labels_of(range(10)).tolist()
    assert found == [None] * 3 + given[3:]
    assert [type(value) for value in found[3:]] == [type(value) for value in given[3:]]
    store.upsert(clustered(1), [3], labels=np.array([np.nan]))
    assert store.labels_of([3]).tolist() == [None]


def test_what_the_server_refuses_is_one_line(store):
    with pytest.raises(StoreError, match=r"^PostgreSQL refused: [^\n]*$"):
        store._run("SELECT nothing FROM {table}")


def test_an_empty_table(store):
    D, found = store.search(clustered(2), 5)
    assert D.shape == found.shape == (2, 0)
    assert store.radius_search(clustered(2), 5)[0].tolist() == [0, 0, 0]
    assert store.push(clustered(2)[:0]) == 0


def test_the_command_line(server, capsys, monkeypatch, tmp_path):
    from helpers.cli import run

    B = clustered(900)
    np.save(tmp_path / "B.npy", B)
    np.save(tmp_path / "y.npy", np.arange(900) % 3)
    np.save(tmp_path / "Q.npy", B[:2])
    monkeypatch.setenv("DISH_DSN", server.dsn)
    call = ("store", "push", tmp_path / "B.npy", "--table", "from cli", "--labels", tmp_path / "y.npy")
    assert run(capsys, monkeypatch, *call) == (0, "from cli: 900 rows written, 900 there\n", "")
    assert run(capsys, monkeypatch, *call, "--resume")[1] == "from cli: 0 rows written, 900 there\n"
    code, _, err = run(capsys, monkeypatch, *call)
    assert (code, len(err.strip().splitlines())) == (2, 1)
    assert "resume" in err
    code, out, _ = run(
        capsys, monkeypatch, "store", "search", "--table", "from cli", "--codes", tmp_path / "Q.npy", "--k", 1
    )
    assert (code, out) == (0, "query 0: 0 (0, 0)\nquery 1: 1 (0, 1)\n")
    code, _, err = run(
        capsys,
        monkeypatch,
        "store",
        "search",
        "--dsn",
        f"host={tmp_path}",
        "--table",
        "x",
        "--codes",
        tmp_path / "Q.npy",
    )
    assert code == 2
    assert "cannot reach PostgreSQL" in err
