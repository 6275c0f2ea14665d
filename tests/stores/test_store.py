"""One contract for every store: the results of HammingIndex, ties included; killed uploads; several writers."""

import re
import subprocess
import sys
import time
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dish import HammingIndex, load
from dish.codes import prefix
from dish.errors import InputError, ModelMismatchError, StoreError, UnsupportedError
from helpers.codes import assert_same, make_codes, make_queries
from helpers.threads import errors_of_threads

GOLDEN = Path(__file__).parents[1] / "golden"
SIZES = [("random", 8), ("clustered", 20), ("duplicates", 64), ("one code", 65), ("random", 256)]


def labels_for(n):
    """Labels of several types, and rows without one."""
    return [(None, 1, 1.0, True, "1", "é\0'")[i % 6] for i in range(n)]


@cache
def learned():
    """20-bit codes of a DISH model for digits, which repeat; codes and outputs of queries."""
    from sklearn.datasets import load_digits

    X = load_digits().data.astype(np.float32) / 16
    hasher = load(GOLDEN / "dish.dish")
    return hasher.transform(X[:500]), hasher.transform(X[1700:1704]), hasher.decision_function(X[1700:1704])


def pair(open_store, B, n_bits, ids=None, labels=None):
    """Return a store and an index with the same rows."""
    ix, store = HammingIndex(n_bits), open_store(n_bits=n_bits)
    ids = np.arange(len(B)) if ids is None else ids
    ix.add(B, ids, labels)
    store.create()
    assert store.push(B, ids, labels, batch=1 + len(B) // 3) == len(B)
    return store, ix


def assert_equal_searches(store, ix, Q, radii, **filters):
    """Check that both find the same, with some filter or none."""
    for k in (1, 10, 1000):
        assert_same(store.search(Q, k, **filters), ix.search(Q, k, **filters))
    for radius in radii:
        assert_same(store.radius_search(Q, radius, **filters), ix.radius_search(Q, radius, **filters))


# --- searches ---


@pytest.mark.parametrize(("kind", "n_bits"), SIZES)
def test_results_equal_those_of_the_index(open_store, kind, n_bits):
    """Also after rows were removed and replaced."""
    B = make_codes(kind, 400, n_bits)
    Q = make_queries(B, 4, n_bits)
    ids = np.random.default_rng(0).permutation(400) * 7 - 100
    store, ix = pair(open_store, B, n_bits, ids)
    assert_equal_searches(store, ix, Q, (0, 2, 5, n_bits // 3))
    for one in (store, ix):
        assert one.remove([*ids[:50], 10**9]) == 50
        one.upsert(B[50:90], ids[[*range(200, 220), *range(20)]])  # present and removed ids
    assert len(store) == len(ix) == 370
    assert_equal_searches(store, ix, Q, (3, n_bits))
    np.testing.assert_array_equal(store.get(ids[100:]), ix.get(ids[100:]))


@pytest.mark.parametrize("n_bits", [13, 20])
def test_learned_codes(open_store, n_bits):
    B, Q, F = learned()
    B, Q, F = prefix(B, 20, n_bits), prefix(Q, 20, n_bits), F[:, :n_bits]
    assert len(np.unique(B, axis=0)) < len(B)
    store, ix = pair(open_store, B, n_bits)
    assert_equal_searches(store, ix, Q, (0, 2))
    for shortlist in (5, 30, 1000):
        options = {"rescore": "asymmetric", "shortlist": shortlist}
        assert_same(store.search(F, 5, **options), ix.search(F, 5, **options))


def test_filters(open_store):
    B = make_codes("duplicates", 300, 24)
    Q, ids = make_queries(B, 4, 24), np.arange(300) * 3
    store, ix = pair(open_store, B, 24, ids, labels_for(300))
    for labels in ([None], [1], [1.0, "1"], ["é\0'", None, True], ["unknown"], [], [np.nan]):
        assert_equal_searches(store, ix, Q, (4,), labels=labels)
    for some in (ids[::7], [*ids[:5], 10**12, -1], ["a string"], []):
        assert_equal_searches(store, ix, Q, (4,), ids=some)
    assert_equal_searches(store, ix, Q, (4,), ids=ids[:200], labels=["1", None])
    F = np.random.default_rng(0).standard_normal((3, 24))
    options = {"rescore": "asymmetric", "labels": [1], "shortlist": 20}
    assert_same(store.search(F, 5, **options), ix.search(F, 5, **options))
    assert store.search(Q[:0], 5, labels=["1"])[1].shape == (0, 5)
    assert store.search(Q[:0], 5, labels=[])[1].shape == (0, 0)
    assert store.count(labels=["1"]) == 50
    assert store.count(ids[:30], labels=[None]) == 5


def test_conditions_in_sql(open_store):
    B = make_codes("clustered", 200, 24)
    Q = make_queries(B, 4, 24)
    store, ix = pair(open_store, B, 24, labels=np.arange(200) % 4)
    assert_same(store.search(Q, 9, where="label = '3'"), ix.search(Q, 9, labels=[3]))
    assert_same(store.search(Q, 9, where="label = '3' OR id < 50 -- or both"), ix.search(
        Q, 9, ids=[i for i in range(200) if i % 4 == 3 or i < 50]))  # fmt: skip
    assert_same(store.radius_search(Q, 6, where="id >= 100"), ix.radius_search(Q, 6, ids=range(100, 200)))
    assert_same(store.search(Q, 9, range(150), labels=[1, 2], where="id % 2 = 0"), ix.search(
        Q, 9, range(0, 150, 2), labels=[1, 2]))  # fmt: skip
    assert store.count(where="id = 7") == 1
    for bad in ("", 5, " "):
        with pytest.raises(InputError, match="where must be a condition"):
            store.search(Q, where=bad)
    for bad in ("no_such_column = 1", "id <"):
        for read in (store.count, partial(store.search, Q), partial(store.radius_search, Q)):
            with pytest.raises(StoreError, match=re.escape(f"the condition was where={bad!r}")):
                read(where=bad)
    assert_same(store.search(Q, 9), ix.search(Q, 9))  # the connection still works


def add_count(store):
    """Add a column of the user: id % 5. One of our tables has a column with this name."""
    if hasattr(store, "change_rows"):
        import pyarrow as pa

        with store.change_rows() as rows:
            rows.add_columns(pa.field("count", pa.int64()))
            rows.update(values_sql={"count": "id % 5"})
        return
    store._writing(lambda: store._execute('ALTER TABLE "rows" ADD COLUMN count integer'))
    store._writing(lambda: store._execute('UPDATE "rows" SET count = id % 5'))


def test_columns_of_the_user_serve_as_filters_and_outlive_upserts(open_store):
    B = make_codes("clustered", 60, 24)
    store, ix = pair(open_store, B, 24)
    add_count(store)
    assert_same(store.search(B[:3], 4, where="count = 2"), ix.search(B[:3], 4, ids=range(2, 60, 5)))
    for one in (store, ix):
        one.upsert(B[:10], range(10, 20))
    assert_same(store.search(B[:3], 40, where="count = 2"), ix.search(B[:3], 40, ids=range(2, 60, 5)))


def test_rescoring_by_vectors(open_store, tmp_path):
    rng = np.random.default_rng(0)
    X, V = rng.standard_normal((300, 6)).astype(np.float32), rng.standard_normal((4, 6))
    B = make_codes("duplicates", 300, 24)
    Q, names = make_queries(B, 4, 24), [f"row {i}" for i in range(300)]
    np.save(tmp_path / "X.npy", X)
    ix, store = HammingIndex(24), open_store(n_bits=24, ids="string")
    ix.add(B, names)
    store.create()
    store.push(B, names)
    with pytest.raises(InputError, match="call attach_vectors first"):
        store.search(Q, 5, rescore="float", query_vectors=V)
    for metric in ("cosine", "l2"):
        for one in (store, ix):
            one.attach_vectors(tmp_path / "X.npy", names, metric)
        for options in ({}, {"shortlist": 50}, {"ids": names[:9]}, {"ids": []}):
            options = {"rescore": "float", "query_vectors": V, **options}
            assert_same(store.search(Q, 5, **options), ix.search(Q, 5, **options))
    assert store.search(Q[:0], 5, rescore="float", query_vectors=V[:0])[0].shape == (0, 5)
    with pytest.raises(InputError, match=r"query_vectors must be numbers of shape \(4, 6\)"):
        store.search(Q, 5, rescore="float", query_vectors=V[:, 1:])


def test_an_empty_table(store):
    Q = make_codes("random", 2, 64)
    D, found = store.search(Q, 5)
    assert D.shape == found.shape == (2, 0)
    assert store.radius_search(Q, 5)[0].tolist() == [0, 0, 0]
    assert store.push(Q[:0]) == 0
    assert store.remove([1, 2]) == len(store) == 0
    assert store.search(np.ones((2, 64)), 5, rescore="asymmetric")[0].shape == (2, 0)
    assert store.labels_of([]).tolist() == []
    assert store.get([]).shape == (0, 8)


# --- ids and labels ---


def test_string_ids(open_store):
    B, ids = make_codes("clustered", 6, 64), ["a", "é\t'; DROP TABLE x; --", "\\N", "tab\tnewline\n", "{}", '"']
    store, ix = open_store(ids="string"), HammingIndex(64)
    store.create()
    for one, add in ((store, store.push), (ix, ix.add)):
        add(B, ids, labels=["x", "y\\", 'q"', "x", "\t", ""])
        one.upsert(B[:1], ["new"])
        assert one.remove(["a", "unknown", ids[1]]) == 2
    assert_equal_searches(store, ix, B, (9,))
    assert_equal_searches(store, ix, B, (9,), ids=["new", "{}", "unknown"])
    assert store.search(B[:2], 3, ids=[1, 2])[1].shape == (2, 0)  # integers are unknown ids
    assert store.labels_of(["new", "\\N"]).tolist() == [None, 'q"']
    with pytest.raises(KeyError, match="unknown"):
        store.labels_of(["unknown"])
    with pytest.raises(InputError, match="type 'string'"):
        store.upsert(B[:1], [1])
    for bad in ("a\0b", "\ud800"):
        with pytest.raises(InputError, match="ids must be text"):
            store.upsert(B[:1], [bad])
        assert store.remove([bad]) == 0


def test_labels_keep_their_types(store):
    given = [
        None,
        float("nan"),
        np.datetime64("NaT"),
        1,
        1.0,
        True,
        "1",
        2**70,
        -0.5,
        "",
        1e300,
        float("inf"),
        "\ud800",
    ]
    store.push(make_codes("random", 13, 64), labels=given)
    found = store.labels_of(range(13)).tolist()
    assert found == [None] * 3 + given[3:]
    assert [type(value) for value in found[3:]] == [type(value) for value in given[3:]]
    store.upsert(make_codes("random", 1, 64), [3], labels=np.array([np.nan]))
    assert store.labels_of([3]).tolist() == [None]
    with pytest.raises(KeyError, match="id 99 is not in the table"):
        store.labels_of([3, 99])


@pytest.mark.parametrize("name", ['x"; DROP TABLE rows; --', "Ünï.codé", "select", "%s {table} $1 ?", "a'b"])
def test_table_names_are_quoted(open_store, name):
    B = make_codes("clustered", 20, 64)
    open_store().create()
    odd = open_store(name)
    odd.create()
    odd.create()  # the table exists: nothing happens
    odd.push(B[:5])
    odd.upsert(B[5:6], [3])
    assert odd.search(B[:1], 9)[1].shape == (1, 5)
    assert odd.radius_search(B[:1], 0)[1].tolist() == [0]
    assert odd.search(B[:1], 9, [1, 2], labels=[None], where="id = 2")[1].tolist() == [[2]]
    assert odd.remove([4]) == 1
    odd.drop()
    odd.drop()
    assert len(open_store()) == 0


# --- models and errors ---


def test_a_table_records_its_model_and_refuses_another(open_store, caplog):
    B, one, other = make_codes("random", 3, 64), "0123456789abcdef", "fedcba9876543210"
    store = open_store("marked", model=one)
    store.create()
    store.push(B)
    assert store.table_model == one
    assert open_store("marked").search(B, 1)[1].tolist() == [[0], [1], [2]]
    wrong = open_store("marked", model=other)
    for call in (
        wrong.create, lambda: wrong.push(B, [7, 8, 9]), lambda: wrong.upsert(B, [0, 1, 2]), lambda: len(wrong),
        lambda: wrong.search(B), lambda: wrong.radius_search(B), lambda: wrong.remove([0]), lambda: wrong.get([0]),
    ):  # fmt: skip
        with pytest.raises(ModelMismatchError, match=rf"'marked' holds .* {one}.* {other}"):
            call()
    open_store("unmarked").create()
    with caplog.at_level("INFO"):
        open_store("unmarked", model=one).push(B)
    assert "not checked" in caplog.text


def test_the_table_must_fit(open_store, store):
    B = make_codes("random", 3, 32)
    for call in (lambda narrow: narrow.create(), lambda narrow: narrow.push(B), lambda narrow: narrow.search(B)):
        with pytest.raises(InputError, match=r"n_bits=64, but the store was opened with 32"):
            call(open_store(n_bits=32))
    with pytest.raises(InputError, match="ids='integer', but the store was opened with 'string'"):
        open_store(ids="string").remove(["a"])
    with pytest.raises(InputError, match=r"no table 'nowhere': call create\(\) first"):
        open_store("nowhere").search(make_codes("random", 1, 64))


def test_ids_at_the_limits_of_int64(store):
    B, ids = make_codes("random", 4, 64), [-(2**63), 2**63 - 1, 2**53 + 1, -1]
    store.push(B, ids)
    assert store.push(B, ids, resume=True) == 0
    np.testing.assert_array_equal(store.get(ids), B)
    assert store.search(B, 1, ids)[1].ravel().tolist() == ids
    assert (store.remove(ids[:2]), store.count(ids)) == (2, 2)


def test_k_may_exceed_the_integers_of_the_engine(store):
    B = make_codes("clustered", 5, 64)
    assert store.search(B[:1], 10**30)[1].shape == (1, 0)
    store.push(B, labels=[1, 1, 2, 2, 2])
    for k in (2**63 - 1, 10**30):
        assert store.search(B[:1], k)[1].shape == (1, 5)
        assert store.search(B[:1], k, labels=[2])[1].shape == (1, 3)


def test_invalid_arguments_are_refused(store):
    B = make_codes("clustered", 4, 64)
    store.push(B)
    bad = {
        "k must be": lambda: store.search(B, 0),
        "radius must be": lambda: store.radius_search(B, -1),
        "8 bytes|4 bytes": lambda: store.push(make_codes("random", 2, 32)),
        "5 occurs twice": lambda: store.push(B, [5, 6, 7, 5]),
        "type 'integer'": lambda: store.push(B, list("abcd")),
        "batch must be": lambda: store.push(B, batch=0),
        "labels must": lambda: store.upsert(B, [1, 2, 3, 4], labels=[1]),
        "labels must be a list": lambda: store.search(B, labels="a"),
        "give rescore": lambda: store.search(B, shortlist=5),
        "real outputs": lambda: store.search(B, rescore="asymmetric"),
        "already in the table.*resume=True": lambda: store.push(B),
    }
    for message, call in bad.items():
        with pytest.raises(InputError, match=message):
            call()
    with pytest.raises(TypeError, match="unexpected argument 'depth'"):
        store.search(B, exact=False, depth=3)
    assert len(store) == 4


def test_unused_bits_are_refused(open_store):
    store = open_store(n_bits=20)
    store.create()
    for call in (store.push, store.search):
        with pytest.raises(InputError, match="bits set beyond the first 20"):
            call(np.full((2, 3), 255, np.uint8))


def test_invalid_labels_are_refused_before_anything_is_sent(store):
    for write in (store.push, store.upsert):
        with pytest.raises(InputError, match="labels must be"):
            write(make_codes("random", 4, 64), range(4), ["fine", "fine", "fine", b"bytes"], batch=2)
    assert len(store) == 0


def test_a_failed_batch_leaves_the_batches_before_it(store):
    B = make_codes("random", 10, 64)
    store.push(B[6:7], [6])
    with pytest.raises(InputError, match=r"^5 rows were written, then: id 6 is already in the table"):
        store.push(B, batch=5)
    assert len(store) == 6
    assert_counts_are_right(store)


def test_a_closed_store_says_so(open_store):
    store = open_store()
    store.close()
    store.close()
    for call in (lambda: len(store), store.create, lambda: store.search(make_codes("random", 1, 64))):
        with pytest.raises(InputError, match="the store is closed"):
            call()


def test_approximate_searches_without_an_index_are_exact(store):
    B = make_codes("clustered", 50, 64)
    store.push(B)
    assert_same(store.search(B[:3], 5, exact=False), store.search(B[:3], 5))
    if not store.INDEX_OPTIONS:
        with pytest.raises(UnsupportedError, match="has no approximate index"):
            store.build_index("hnsw")


# --- random sequences of operations ---


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["push", "upsert", "upsert", "remove", "search"]),
        st.lists(st.integers(0, 30), min_size=1, max_size=12, unique=True),
        st.integers(0, 2**16),
    ),
    max_size=10,
)


@given(operations=OPERATIONS)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_operations(open_store, operations):
    """Codes are from a pool of 20, so they repeat, vanish and come back."""
    pool = make_codes("clustered", 20, 12)
    store, ix = open_store(n_bits=12), HammingIndex(12)
    store.drop()
    store.create()
    for what, ids, seed in operations:
        rng = np.random.default_rng(seed)
        B, labels = pool[rng.integers(0, 20, len(ids))], rng.integers(0, 3, len(ids))
        if what == "push":
            new = [one for one in ids if one not in ix]
            store.push(B[: len(new)], new, labels[: len(new)], batch=5)
            ix.add(B[: len(new)], new, labels[: len(new)])
        elif what == "upsert":
            for one in (store, ix):
                one.upsert(B, ids, labels)
        elif what == "remove":
            assert store.remove(ids) == ix.remove(ids)
        else:
            k = 1 + seed % 15
            assert_same(store.search(B[:2], k), ix.search(B[:2], k))
            assert_same(store.search(B[:2], k, labels=[1]), ix.search(B[:2], k, labels=[1]))
    assert len(store) == len(ix)
    assert_same(store.radius_search(pool[:2], 12), ix.radius_search(pool[:2], 12))
    assert_counts_are_right(store)


def assert_counts_are_right(store):
    """Check that every distinct code has the number of its rows, and that no code without rows remains."""
    with store._reading():
        info = store._info()
        found = store._codes_within(np.zeros(-(-info.n_bits // 8), np.uint8), info.n_bits)
        ids, code_ids, places = store._postings(found.code_ids, None)
        assert len(ids) == store._count(None)
    assert len(set(places.tolist())) == len(places)
    counted = dict(zip(*np.unique(code_ids, return_counts=True), strict=True))
    assert counted == dict(zip(found.code_ids, found.counts, strict=True))
    assert len(np.unique(store._packed(found.code_ids), axis=0) if counted else ()) == len(counted)


# --- several writers, and killed ones ---

PUSHER = """
import sys, numpy as np
from dish import stores
B = np.load(sys.argv[2])
with stores.open(sys.argv[1], "rows", n_bits=64) as store:
    print("ready", flush=True)
    for i in range(0, len(B), 100):
        store.push(B[i : i + 100], np.arange(i, i + 100), labels=np.arange(i, i + 100) % 7, batch=50)
        print(i + 100, flush=True)
"""


def test_a_killed_upload_leaves_whole_batches_and_can_be_resumed(address, open_store, tmp_path):
    n = 5000
    B, ids, labels = make_codes("clustered", n, 64), np.arange(n), np.arange(n) % 7
    np.save(tmp_path / "B.npy", B)
    store = open_store()
    store.create()
    store.close()
    child = subprocess.Popen([sys.executable, "-c", PUSHER, address, tmp_path / "B.npy"], stdout=subprocess.PIPE)
    while (line := child.stdout.readline()) != b"500\n":
        assert line
    child.kill()
    child.wait()
    child.stdout.close()
    time.sleep(0.2 if address.startswith("postgres") else 0)  # the server ends the transaction
    store = open_store()
    written = len(store)
    assert 500 <= written < n
    assert written % 50 == 0
    assert_counts_are_right(store)
    with pytest.raises(InputError, match="resume=True"):
        store.push(B, ids, labels)
    with pytest.raises(InputError, match="with another code, so resume=True cannot continue"):
        store.push(B[::-1], ids, labels, resume=True)
    assert len(store) == written
    assert store.push(B, ids, labels, resume=True) == n - written
    assert store.push(B, ids, labels, resume=True) == 0
    ix = HammingIndex(64)
    ix.add(B, ids, labels)
    Q = make_queries(B, 3, 64)
    assert_equal_searches(store, ix, Q, (2,))
    assert_same(store.search(Q, 5, labels=[3]), ix.search(Q, 5, labels=[3]))
    assert_counts_are_right(store)


def test_processes_write_at_the_same_time(address, open_store, tmp_path):
    if address.startswith("duckdb"):
        pytest.skip("DuckDB lets one process open a file")
    B = make_codes("duplicates", 2000, 64)
    np.save(tmp_path / "B.npy", B[:1000])
    store = open_store()
    store.create()
    child = subprocess.Popen([sys.executable, "-c", PUSHER, address, tmp_path / "B.npy"], stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"ready\n"
    for i in range(1000, 2000, 100):
        store.push(B[i : i + 100], np.arange(i, i + 100), batch=50)
        store.upsert(B[:10], np.arange(i, i + 10))
    child.communicate()
    assert child.returncode == 0
    assert len(store) == 2000
    assert_counts_are_right(store)
    np.testing.assert_array_equal(store.get(range(1000)), B[:1000])


def test_uploads_of_the_same_rows_resume_each_other(open_store):
    B, written = make_codes("duplicates", 600, 64), []
    open_store().create()
    each = [open_store() for _ in range(3)]
    pushes = [lambda store=store: written.append(store.push(B, batch=50, resume=True)) for store in each]
    assert errors_of_threads(*pushes) == []
    assert sum(written) == len(each[0]) == 600
    assert_counts_are_right(each[0])


@pytest.mark.parametrize("shared", [False, True])
def test_writers_at_the_same_time(open_store, shared):
    """Stores of their own, or one that threads share."""
    B = make_codes("duplicates", 900, 64)
    first = open_store()
    first.create()
    first.push(B[:300])

    def write(store, seed):
        rng = np.random.default_rng(seed)
        store.push(B[300 + 300 * seed :][:300], np.arange(300) + 300 + 300 * seed, batch=60)
        for _ in range(2):
            some = rng.permutation(300)[:100]
            store.upsert(B[rng.integers(0, 900, 100)], some, batch=50)
            store.remove(some[:10])
            store.upsert(B[some[:10]], some[:10])

    each = [first if shared else open_store() for _ in range(2)]
    assert errors_of_threads(*(lambda s=s, seed=seed: write(s, seed) for seed, s in enumerate(each))) == []
    assert len(first) == 900
    assert_counts_are_right(first)
    np.testing.assert_array_equal(first.get(range(300, 900)), B[300:])
    first.upsert(B[:300], np.arange(300))
    assert sorted(first.search(B[:1], 900)[1][0].tolist()) == list(range(900))


def test_threads_search_while_one_writes(open_store):
    B = make_codes("clustered", 400, 64)
    store = open_store()
    store.create()
    store.push(B[:200])

    def search():
        for _ in range(5):
            D = store.search(B[:2], 5)[0]
            assert D.shape == (2, 5)
            assert (D[:, 0] == 0).all()

    assert errors_of_threads(search, search, lambda: store.push(B[200:], np.arange(200, 400), batch=40)) == []


def test_several_stores_create_the_same_table(open_store):
    each = [open_store("of many") for _ in range(4)]
    assert errors_of_threads(*[store.create for store in each]) == []
    assert [len(store) for store in each] == [0] * 4
