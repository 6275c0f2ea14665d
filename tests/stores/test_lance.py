"""What only LanceStore has: versions that belong together, an index of the distinct codes, tables of lancedb."""

import json

import numpy as np
import pytest

from dish import HammingIndex, stores
from dish.errors import InputError, StoreError
from dish.stores import lance
from dish.stores.lance import LanceStore, lance_name
from helpers.codes import all_distances, assert_same, make_codes, make_queries

pytestmark = pytest.mark.engines


@pytest.fixture
def store(tmp_path):
    pytest.importorskip("lancedb", reason="LanceStore is NOT tested: lancedb is not installed")
    with LanceStore(tmp_path / "codes", "rows", 64) as store:
        store.create()
        yield store


def index_of(B, ids=None):
    ix = HammingIndex(64)
    ix.add(B, ids)
    return ix


def test_a_write_that_fails_leaves_no_trace(store, tmp_path, monkeypatch):
    """Whichever step fails: readers see the state before it, and so does the next writer."""
    B = make_codes("duplicates", 60, 64)
    store.push(B[:20])
    for step in ("_merge_codes", "_add", "_publish", "_release"):
        with monkeypatch.context() as patch:

            def fail(*_):
                raise StoreError("out of disk")

            patch.setattr(LanceStore, step, fail)
            with pytest.raises(StoreError, match="out of disk"):
                store.upsert(B[20:40], np.arange(10, 30))
        with LanceStore(tmp_path / "codes", "rows", 64) as other:
            for one in (store, other):
                assert len(one) == 20
                assert_same(one.search(B[:3], 30), index_of(B[:20]).search(B[:3], 30))
    store.upsert(B[20:40], np.arange(10, 30))
    ix = index_of(B[:20])
    ix.upsert(B[20:40], np.arange(10, 30))
    assert_same(store.search(B[:3], 30), ix.search(B[:3], 30))


def test_a_condition_that_lance_cannot_parse_is_an_error_of_ours(store):
    with pytest.raises(StoreError, match=r"LanceDB failed.*where='id = [?]'"):
        store.count(where="id = ?")


def test_readers_keep_their_state_and_see_the_next_one_at_the_next_call(store, tmp_path):
    B = make_codes("random", 30, 64)
    store.push(B[:10])
    with LanceStore(tmp_path / "codes", "rows", 64) as reader:
        assert len(reader) == 10
        with reader._reading():
            store.push(B[10:20], np.arange(10, 20))
            assert reader._count(None) == 10
        assert len(reader) == 20
        store.drop()
        with pytest.raises(InputError, match=r"there is no table 'rows': call create\(\) first"):
            len(reader)
        store.create()
        assert len(reader) == 0
        store.push(B[20:])
        assert reader.search(B[20:21], 1)[0].tolist() == [[0]]


def test_the_index_finds_what_the_scan_finds(store):
    B = make_codes("clustered", 3000, 64)[np.random.default_rng(0).integers(0, 2000, 3000)]
    Q = make_queries(B, 20, 64)
    store.push(B[:2800])
    store.build_index("ivfflat", lists=16)
    exact = index_of(B[:2800]).search(Q, 10)
    assert_same(store.search(Q, 10), exact)  # still by the scan
    for probes, least in ((16, 1), (2, 0.8)):  # of every list, the same distances; rows at the last one may differ
        D, found = store.search(Q, 10, exact=False, probes=probes)
        np.testing.assert_array_equal(np.take_along_axis(all_distances(Q, B), found, 1), D)
        assert (exact[0] == D).mean() >= least
    store.push(B[2800:], np.arange(2800, 3000))  # rows that the index does not have yet
    ix = index_of(B)
    for one in (store, ix):
        one.remove(np.arange(100))
        one.upsert(B[300:700], np.arange(1000, 1400))  # rows that the index of code_id has with another code
    assert_same(store.search(Q, 50), ix.search(Q, 50))
    assert_same(store.radius_search(Q, 9), ix.radius_search(Q, 9))
    np.testing.assert_array_equal(store.search(Q, 10, exact=False, probes=16)[0], ix.search(Q, 10)[0])
    assert_same(store.search(Q, 3000, exact=False, probes=1), ix.search(Q, 3000))  # too few: the scan
    with pytest.raises(InputError, match="kind must be one of 'ivfflat'"):
        store.build_index("hnsw")


def test_many_batches_are_compacted(store, monkeypatch):
    monkeypatch.setattr(lance, "MANY_FRAGMENTS", 5)
    B = make_codes("duplicates", 600, 64)
    store.push(B, batch=60)
    with store._reading():
        fragments = [t.stats()["fragment_stats"]["num_fragments"] for t in (store._rows, store._codes)]
    assert max(fragments) < 5
    assert_same(store.search(B[:5], 50), index_of(B).search(B[:5], 50))


def test_long_lists_and_many_batches_of_rows(store, monkeypatch):
    """Conditions are cut, and hits are cut while they are read."""
    monkeypatch.setattr(lance, "IN_A_LIST", 7)
    monkeypatch.setattr(lance, "BATCH_ROWS", 11)
    B = make_codes("one code", 300, 64)
    B[::3] = make_codes("random", 100, 64)
    ix = index_of(B)
    store.push(B)
    for k in (1, 20, 150, 400):
        assert_same(store.search(B[:3], k), ix.search(B[:3], k))
        assert_same(store.search(B[:3], k, ids=range(0, 300, 2)), ix.search(B[:3], k, ids=range(0, 300, 2)))
    assert store.remove(range(50, 300)) == 250
    ix.remove(range(50, 300))
    assert_same(store.radius_search(B[:3], 40), ix.radius_search(B[:3], 40))


def test_users_may_read_the_tables_and_add_columns(store, tmp_path):
    import lancedb
    import pyarrow as pa

    B = make_codes("random", 20, 64)
    store.push(B, labels=["a"] * 20)
    table = lancedb.connect(tmp_path / "codes").open_table("rows")
    assert set(table.schema.names) == {"id", "code_id", "label", "place"}
    with store.change_rows() as rows:
        rows.add_columns(pa.field("price", pa.float64()))
        rows.update(where="id < 5", values={"price": 1.5})
    assert sorted(store.search(B[:1], 20, where="price < 2")[1][0].tolist()) == list(range(5))
    store.push(make_codes("random", 1, 64, seed=5), [99])
    assert store.count(where="price IS NULL") == 16

    def fail_halfway():
        with store.change_rows() as rows:
            rows.delete("true")
            raise StoreError("stop")

    with pytest.raises(StoreError, match="stop"):
        fail_halfway()
    assert len(store) == 21


def test_tables_of_others_are_left_alone(tmp_path):
    lancedb = pytest.importorskip("lancedb")
    import pyarrow as pa

    theirs = lancedb.connect(tmp_path).create_table("rows", pa.table({"price": [1, 2]}))
    with LanceStore(tmp_path, "rows") as store, pytest.raises(InputError, match="'rows' that is not of dish"):
        store.create()
    assert theirs.count_rows() == 2
    with LanceStore(tmp_path, "killed") as store:
        store.create()
        (tmp_path / "killed.json").unlink()  # as if the process had been killed before it wrote the file
        store.create()
        assert len(store) == 0


def test_a_damaged_file_is_named(store, tmp_path):
    (tmp_path / "codes" / "rows.json").write_text(json.dumps({"n_bits": 64}))
    with pytest.raises(StoreError, match=r"rows\.json is damaged"):
        len(store)


def test_addresses(tmp_path, monkeypatch):
    pytest.importorskip("lancedb")
    monkeypatch.chdir(tmp_path)
    for address in ("lance://here", f"lance://{tmp_path}/there"):
        with stores.open(address, "rows", n_bits=8) as store:
            store.create()
    assert (tmp_path / "here" / "rows.json").exists()
    assert (tmp_path / "there" / "rows.json").exists()
    for address in ("lance://", "lance://no/such"):
        with pytest.raises(InputError, match="must be like lance://folder, in a folder that exists"):
            stores.open(address, "rows")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="it is a file"):
        stores.open("lance://file", "rows")


def test_names_of_lance_tables():
    assert lance_name("Items_2-b") == "Items_2-b"
    assert lance_name("a b.é") == "a.20b.2e.c3.a9"
