"""HammingIndex against brute force and against a dictionary; its ids, labels and filters; errors; threads; copies."""

import copy
import gc
import pickle
import threading
import weakref
from pathlib import Path

import joblib
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dish import HammingIndex, codes
from dish.index import accelerators, hamming
from helpers.codes import (
    KINDS,
    accelerator_of,
    assert_radius,
    assert_same,
    brute_nearest,
    make_codes,
    make_queries,
    searched_index,
)

# --- searches ---


@pytest.mark.parametrize("n_bits", [1, 13, 30, 33, 64, 70, 128, 200])
@pytest.mark.parametrize("kind", KINDS)
def test_search_equals_brute_force(kind, n_bits, kernels):
    B = make_codes(kind, 5000, n_bits)
    Q = make_queries(B, 40, n_bits)
    scanned, grouped = HammingIndex(n_bits), searched_index(B[:4500], n_bits)
    scanned.add(B)
    grouped.add(B[4500:])  # not covered by the groups
    assert accelerator_of(scanned) is None
    assert accelerator_of(grouped).n == 4500
    for ix in (scanned, grouped):
        for k in (1, 10, 300):
            assert_same(ix.search(Q, k), brute_nearest(Q, B, k))
        for radius in (0, 2, 3, n_bits // 4):
            assert_radius(ix.radius_search(Q, radius), Q, B, radius)


@pytest.mark.parametrize("n", [0, 1, 3])
def test_small_indexes_and_k_beyond_them(n, kernels):
    B, Q = make_codes("random", 3, 20)[:n], make_codes("random", 5, 20, seed=2)
    ix = HammingIndex(20)
    ix.add(B)
    assert_same(ix.search(Q, 10), brute_nearest(Q, B, 10))
    assert_radius(ix.radius_search(Q, 20), Q, B, 20)
    assert ix.search(Q[:0], 4)[0].shape == (0, n and min(4, n))
    assert len(ix.radius_search(Q[:0], 4)[0]) == 1
    assert len(ix) == n
    assert ix.search(np.ones((5, 20)), 10, method="asymmetric")[0].shape == (5, n)
    assert ix.search(np.ones((5, 20)), 10, rescore="asymmetric")[0].shape == (5, n)


def test_k_as_large_as_the_index():
    B = make_codes("duplicates", 5000, 32)
    ix = searched_index(B, 32)
    assert_same(ix.search(B[:3], 10**9), brute_nearest(B[:3], B, 5000))


@pytest.mark.parametrize("n_bits", [9, 64, 100])
@pytest.mark.parametrize("kind", ["random", "duplicates"])
def test_asymmetric_search_equals_sorting_all_products(kind, n_bits):
    B = make_codes(kind, 5000, n_bits)
    F = np.random.default_rng(3).standard_normal((20, n_bits)).astype(np.float32)
    S = F.astype(float) @ codes.unpack(B, n_bits).T.astype(float)
    scanned = HammingIndex(n_bits)
    scanned.add(B)
    for ix in (scanned, searched_index(B, n_bits)):
        D, N = ix.search(F, 40, method="asymmetric")
        np.testing.assert_allclose(D, -np.sort(-S, axis=1)[:, :40], rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(np.take_along_axis(S, N, 1), D, rtol=1e-5, atol=1e-4)
        equal = (B[N[:, 1:]] == B[N[:, :-1]]).all(axis=2)  # equal codes come in insertion order
        assert (N[:, 1:] > N[:, :-1])[equal].all()


def test_ties_come_in_insertion_order_and_an_upserted_row_is_last():
    B = make_codes("one code", 5000, 64)
    ix = searched_index(B, 64)
    ix.upsert(B[:1], [2])
    assert ix.search(B[:1], 4)[1].tolist() == [[0, 1, 3, 4]]
    assert ix.search(B[:1], 5000)[1][0, -1] == 2


# --- ids, labels, filters ---


def test_string_ids_labels_and_filters(kernels):
    B = make_codes("clustered", 500, 24)
    names = np.array([f"row {i} é" for i in range(500)])
    ix = HammingIndex(24)
    ix.add(B, ids=names, labels=[f"class {i % 3}" for i in range(500)])
    _, N = ix.search(B[:7], 5)
    np.testing.assert_array_equal(N, names[brute_nearest(B[:7], B, 5)[1]])
    assert "row 3 é" in ix
    assert "row 3" not in ix
    assert 3 not in ix
    np.testing.assert_array_equal(ix.get(["row 9 é", "row 2 é"]), B[[9, 2]])
    assert ix.labels_of(["row 4 é", "row 3 é"]).tolist() == ["class 1", "class 0"]
    some = np.array([400, 3, 77, 250])
    D, N = ix.search(B[:7], 10, ids={*names[some], "unknown"})
    want = brute_nearest(B[:7], B[np.sort(some)], 4)
    np.testing.assert_array_equal(D, want[0])
    np.testing.assert_array_equal(N, names[np.sort(some)[want[1]]])
    assert_radius(ix.radius_search(B[:7], 6, ids=names[some]), B[:7], B[np.sort(some)], 6, names[np.sort(some)])
    assert ix.search(B[:7], 10, ids=["unknown"])[0].shape == (7, 0)


@pytest.mark.parametrize("mode", ["exact", "approximate"])
def test_a_label_filter_is_exact(mode, kernels):
    if mode == "approximate":
        pytest.importorskip("faiss")
    n, rng = 5000, np.random.default_rng(0)
    B = make_codes("clustered", n, 24)
    values = np.array(["cat", "dog", 1, 1.0, True, None], object)
    which = rng.choice(6, n, p=[0.5, 0.005, 0.2, 0.1, 0.1, 0.095])
    ix = HammingIndex(24, mode=mode)
    ix.add(B, labels=list(values[which]))
    ix.search(B[:200], 1)  # builds the groups or lists
    gone = np.flatnonzero(which == 1)[:2]
    ix.remove(gone)
    some = np.sort(rng.permutation(n)[:3000])
    kinds = {("dog",): [1], ("cat", 1, "unknown"): [0, 2], (True, 1.0): [3, 4], (None, "dog"): [5, 1], (): []}
    for labels, indices in kinds.items():
        for ids in (None, some):
            match = np.isin(which, indices) & ~np.isin(np.arange(n), gone)
            rows = np.flatnonzero(match if ids is None else match & np.isin(np.arange(n), ids))
            D, found = ix.search(B[:9], 40, ids, labels=list(labels))
            want = brute_nearest(B[:9], B[rows], 40)
            assert_same((D, found), (want[0], rows[want[1]]))
            assert_radius(ix.radius_search(B[:9], 5, ids, labels=iter(labels)), B[:9], B[rows], 5, rows)
            lims = ix.radius_search(B[:9], 5, ids, labels=labels)[0]
            assert ix.radius_count(B[:9], 5, ids, labels=labels).tolist() == np.diff(lims).tolist()
            F = codes.unpack(B[:2], 24).astype(float)
            D, _ = ix.search(F, 7, ids, labels=labels, method="asymmetric")
            assert D.shape == (2, min(7, len(rows)))
            np.testing.assert_array_equal(24 - D, 2 * brute_nearest(B[:2], B[rows], 7)[0])


def test_a_label_filter_without_labels_in_the_index():
    B = make_codes("random", 6, 16)
    ix = HammingIndex(16)
    ix.add(B)
    ix.remove([2])
    assert ix.search(B[:1], labels=["cat"])[1].shape == (1, 0)
    assert sorted(ix.search(B[:1], labels=np.array([np.nan]))[1][0].tolist()) == [0, 1, 3, 4, 5]
    assert ix.search(B[:1], ids=[2, 4], labels=[None])[1].tolist() == [[4]]


@pytest.mark.parametrize("start", [0, 5], ids=["empty index", "five rows"])
def test_labels_may_be_missing(start):
    B = make_codes("random", 8, 16)
    ix = HammingIndex(16)
    ix.add(B[:start])
    ix.add(B[start:], labels=np.arange(start, 8) * 10)
    assert ix.labels_of([7, 6]).tolist() == [70, 60]
    assert ix.labels_of([7, 6]).dtype.kind == "i"
    assert ix.labels_of(ix.ids).tolist() == [None] * start + [10 * i for i in range(start, 8)]
    ix.upsert(B[:1], [7])
    assert ix.labels_of([7]).tolist() == [None]


def test_default_ids_are_never_reused():
    B = make_codes("random", 10, 8)
    ix = HammingIndex(8)
    ix.add(B[:3])
    assert ix.remove([2]) == 1
    ix.add(B[3:5])
    assert ix.ids.tolist() == [0, 1, 3, 4]
    ix.add(B[5:6], ids=[100])
    ix.add(B[6:7])
    assert ix.ids.tolist() == [0, 1, 3, 4, 100, 101]


def test_default_ids_after_the_largest_integer(tmp_path):
    B = make_codes("random", 6, 8)
    ix = HammingIndex(8)
    ix.add(B[:3], ids=[0, 2**63 - 1, 2])
    ix.add(B[3:5])
    ix.save(tmp_path / "ix.dish")
    ix = HammingIndex.load(tmp_path / "ix.dish")
    ix.add(B[5:])
    assert ix.ids.tolist() == [0, 2**63 - 1, 2, 1, 3, 4]
    np.testing.assert_array_equal(ix.get([1, 3, 4]), B[3:])


def test_a_default_id_may_be_the_largest_integer():
    B = make_codes("random", 3, 8)
    ix = HammingIndex(8)
    ix.add(B[:2], ids=[2**63 - 2, 0])
    ix.add(B[2:])
    ix.add(B[:0])
    assert ix.ids.tolist() == [2**63 - 2, 0, 2**63 - 1]


def test_unordered_integer_ids():
    B = make_codes("random", 3000, 64)
    ids = np.random.default_rng(0).permutation(10**6)[:3000] - 5 * 10**5
    ix = HammingIndex(64)
    for i in range(0, 3000, 500):
        ix.add(B[i : i + 500], ids[i : i + 500])
    np.testing.assert_array_equal(ix.get(ids[::-1]), B[::-1])
    np.testing.assert_array_equal(ix.search(B[:50], 1)[1][:, 0], ids[:50])
    assert ix.remove(ids[:1000]) == 1000
    assert ids[5] not in ix
    assert ids[2005] in ix
    np.testing.assert_array_equal(ix.get(ids[1000:]), B[1000:])


# --- errors ---


def bad_calls():
    B = make_codes("random", 4, 12)
    wide = B.copy()
    wide[0, -1] |= 1
    return {
        "n_bits must be": lambda ix: HammingIndex(0),
        "mode must be one of 'exact'": lambda ix: HammingIndex(8, mode="fast"),
        "n_probe must be": lambda ix: HammingIndex(8, mode="approximate", n_probe=0),
        "codes must be packed": lambda ix: ix.add(B.astype(int)),
        "3 bytes per row": lambda ix: ix.add(make_codes("random", 2, 24)),
        "codes have bits set beyond the first 12": lambda ix: ix.add(wide),
        "queries have bits set beyond": lambda ix: ix.search(wide),
        "ids has 3 entries for 4 codes": lambda ix: ix.add(B, [7, 8, 9]),
        "distinct, but 7 occurs twice": lambda ix: ix.add(B, [7, 8, 9, 7]),
        "id 2 is already in the index": lambda ix: ix.add(B, [7, 8, 2, 9]),
        "all strings, got float": lambda ix: ix.add(B, [1.5, 2.5, 3.5, 4.5]),
        "ids must be integers like": lambda ix: ix.add(B, list("abcd")),
        "all strings, got int, str": lambda ix: ix.add(B, [1, "a", 2, 3]),
        "a list of ids": lambda ix: ix.remove("abc"),
        "64-bit signed": lambda ix: ix.add(B, [2**63, 1, 2, 3]),
        "one label per row": lambda ix: ix.add(B, labels=[1, 2]),
        "labels must be numbers or strings": lambda ix: ix.add(B, labels=[(), 1, 2, 3]),
        "k must be a whole number of at least 1, got 0": lambda ix: ix.search(B, 0),
        "k must be a whole number of at least 1, got 2.5": lambda ix: ix.search(B, 2.5),
        "radius must be": lambda ix: ix.radius_search(B, -1),
        "radius must be a whole number of at least 0, got 1.5": lambda ix: ix.radius_count(B, 1.5),
        "limit must be": lambda ix: ix.radius_search(B, 2, limit=0),
        "method must be one of 'hamming'": lambda ix: ix.search(B, method="cosine"),
        "real outputs of shape": lambda ix: ix.search(B, method="asymmetric"),
        "must be finite": lambda ix: ix.search(np.full((1, 12), np.nan), method="asymmetric"),
        "shortlist must be": lambda ix: ix.search(np.ones((1, 12)), 10, rescore="asymmetric", shortlist=5),
        "give rescore, too": lambda ix: ix.search(B, shortlist=5),
        "rescore must be one of 'asymmetric', 'float' or None": lambda ix: ix.search(B, rescore="cosine"),
        "leave out method='asymmetric'": lambda ix: ix.search(B, method="asymmetric", rescore="float"),
        "query_vectors are for rescore='float' only": lambda ix: ix.search(B, query_vectors=np.ones((4, 3))),
        "call attach_vectors first": lambda ix: ix.search(B, rescore="float", query_vectors=np.ones((4, 3))),
        "labels must be a list of labels, got 'cat'": lambda ix: ix.search(B, labels="cat"),
        "labels must be a list of labels, got 7": lambda ix: ix.radius_count(B, labels=7),
        "id 99 is not in the index": lambda ix: ix.get([99]),
    }


@pytest.mark.parametrize("message", bad_calls())
def test_errors_change_nothing(message):
    ix = HammingIndex(12)
    ix.add(make_codes("random", 4, 12))
    with pytest.raises((ValueError, KeyError), match=message):
        bad_calls()[message](ix)
    assert ix.ids.tolist() == [0, 1, 2, 3]


def test_too_many_rows_are_rejected(monkeypatch):
    monkeypatch.setattr(hamming, "MOST_ROWS", 3)
    ix = HammingIndex(12)
    ix.add(make_codes("random", 3, 12))
    with pytest.raises(ValueError, match="at most 3 rows"):
        ix.add(make_codes("random", 1, 12))
    assert repr(ix) == "HammingIndex(n_bits=12, mode='exact'): 3 rows"


def test_an_index_of_string_ids_needs_ids():
    ix = HammingIndex(12)
    ix.add(make_codes("random", 4, 12), list("abcd"))
    with pytest.raises(ValueError, match="ids must be given"):
        ix.add(make_codes("random", 4, 12))


# --- random sequences of calls, against a dictionary ---


class IndexAgainstDictionary(RuleBasedStateMachine):
    """An index and a plain dictionary get the same calls, and must hold and find the same rows."""

    @initialize(
        n_bits=st.sampled_from([7, 16, 33, 64, 72]), strings=st.booleans(), spread=st.sampled_from([2, 6, 200])
    )
    def start(self, n_bits, strings, spread):
        self.n_bits, self.strings = n_bits, strings
        self.pool = make_codes("random", spread, n_bits)
        self.ix, self.rows = HammingIndex(n_bits), {}  # a dictionary keeps insertion order
        self.folder = Path(self.tmp)
        self.kept = []

    def as_id(self, number):
        return f"id-{number}" if self.strings else number

    def some(self, seed, n):
        rng = np.random.default_rng(seed)
        return self.pool[rng.integers(0, len(self.pool), n)], rng

    @rule(seed=st.integers(0, 2**20), n=st.sampled_from([0, 1, 2, 150]), low=st.integers(0, 300))
    def add(self, seed, n, low):
        B, rng = self.some(seed, n)
        ids = [self.as_id(int(i)) for i in rng.permutation(np.arange(low, low + n))]
        labels = rng.integers(0, 4, n)
        if any(one in self.rows for one in ids):
            with pytest.raises(ValueError, match="already"):
                self.ix.add(B, ids, labels)
        else:
            self.ix.add(B, ids, labels)
            self.rows.update({one: (bytes(b), int(y)) for one, b, y in zip(ids, B, labels, strict=True)})

    @rule(seed=st.integers(0, 2**20), n=st.sampled_from([1, 3, 100]), low=st.integers(0, 300))
    def upsert(self, seed, n, low):
        B, rng = self.some(seed, n)
        ids = [self.as_id(int(i)) for i in rng.permutation(np.arange(low, low + n))]
        self.ix.upsert(B, ids)
        for one, b in zip(ids, B, strict=True):
            self.rows.pop(one, None)
            self.rows[one] = (bytes(b), None)

    @rule(low=st.integers(0, 400), n=st.sampled_from([1, 7, 120]))
    def remove(self, low, n):
        ids = [self.as_id(i) for i in range(low, low + n)]
        present = [one for one in ids if self.rows.pop(one, None) is not None]
        assert self.ix.remove(ids) == len(present)

    @rule()
    def keep_a_snapshot(self):
        self.kept = [*self.kept[-2:], (self.ix.snapshot(), dict(self.rows))]

    @rule(mmap=st.booleans())
    def save_and_load(self, mmap):
        self.ix.save(self.folder / "ix.dish")
        self.ix = HammingIndex.load(self.folder / "ix.dish", mmap=mmap)

    @rule()
    def group(self):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(accelerators, "LEAST_ROWS", 1)
            patch.setattr(accelerators, "SCANS", 0)
            self.ix.search(self.pool[:1], 1)
        assert len(self.ix) == 0 or accelerator_of(self.ix).n == self.ix.snapshot().n

    @precondition(lambda self: hasattr(self, "ix"))
    @rule(seed=st.integers(0, 2**20), k=st.sampled_from([1, 5, 1000]), part=st.sampled_from([None, 3]))
    def search(self, seed, k, part):
        Q, _ = self.some(seed, 4)
        allowed = [one for i, one in enumerate(self.rows) if part is None or i % part == 0]
        B = np.array([list(self.rows[one][0]) for one in allowed], np.uint8).reshape(len(allowed), Q.shape[1])
        D, rows = brute_nearest(Q, B, k)
        found = self.ix.search(Q, k, ids=None if part is None else allowed)
        np.testing.assert_array_equal(found[0], D)
        assert found[1].tolist() == [[allowed[r] for r in line] for line in rows]
        names = np.array(allowed, object)
        assert_radius(self.ix.radius_search(Q, 2, ids=None if part is None else allowed), Q, B, 2, names)

    @invariant()
    def same_content(self):
        for ix, rows in [(self.ix, self.rows), *self.kept] if hasattr(self, "ix") else []:
            assert len(ix) == len(rows)
            assert ix.ids.tolist() == list(rows)
            assert [bytes(b) for b in ix.get(list(rows))] == [b for b, _ in rows.values()]
            assert ix.labels_of(list(rows)).tolist() == [y for _, y in rows.values()]


def test_random_calls_against_a_dictionary(tmp_path, kernels):
    IndexAgainstDictionary.tmp = str(tmp_path)
    run_state_machine_as_test(
        IndexAgainstDictionary,
        settings=settings(
            max_examples=40,
            stateful_step_count=20,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


# --- threads ---


def test_searches_while_other_threads_write():
    """Rows that stay are always found; every distance fits a whole code."""
    rng = np.random.default_rng(0)
    B = rng.integers(0, 256, (40_000, 8), dtype=np.uint8)
    ix = HammingIndex(64)
    ix.add(B[:5000])
    failures, stop = [], threading.Event()

    def read(seed):
        r = np.random.default_rng(seed)
        try:
            while not stop.is_set():
                n = len(ix)
                rows = r.integers(0, 5000, 20)
                D, N = ix.search(B[rows], 3)
                assert (N[:, 0] == rows).all()
                assert (np.bitwise_count(B[rows][:, None] ^ B[N % 10**6]).sum(axis=2) == D).all()
                lims, D, N = ix.radius_search(B[rows], 0)
                assert (N[lims[:-1]] == rows).all()
                assert len(ix) >= n - 500
        except BaseException as error:
            failures.append(error)

    def remove():
        try:
            for i in range(30_000, 35_000, 50):
                ix.add(B[i : i + 50], np.arange(i, i + 50) + 10**6)
                assert ix.remove(np.arange(i, i + 50) + 10**6) == 50
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)] + [threading.Thread(target=remove)]
    for thread in threads:
        thread.start()
    for i in range(5000, 30_000, 250):
        ix.add(B[i : i + 250], np.arange(i, i + 250))
    threads[-1].join()
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
    assert len(ix) == 30_000
    np.testing.assert_array_equal(ix.search(B[:40], 5)[0], brute_nearest(B[:40], B[:30_000], 5)[0])


# --- copies ---


def joblib_copy(ix, tmp_path):
    joblib.dump(ix, tmp_path / "ix.joblib")
    return joblib.load(tmp_path / "ix.joblib")


@pytest.mark.parametrize("kind", ["copy", "deepcopy", "pickle", "joblib"])
def test_copies_are_equal_and_independent(kind, tmp_path):
    ways = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": lambda ix: pickle.loads(pickle.dumps(ix))}
    ways["joblib"] = lambda ix: joblib_copy(ix, tmp_path)
    B = make_codes("random", 30, 64)
    ix = HammingIndex(64, model="0123456789abcdef")
    ix.add(B[:9], [0, 4, 2, 7, 8, 1, 5, 3, 6], labels=np.arange(9.0))
    ix.add(B[9:10], [9], labels=[9.0])  # from the second addition on, the arrays have room to spare
    if kind != "copy":
        ix.remove([5])
    twin = ways[kind](ix)
    assert (twin.n_bits, twin.mode, twin.model) == (64, "exact", "0123456789abcdef")
    assert twin.ids.tolist() == ix.ids.tolist()
    assert twin.labels_of(twin.ids).tolist() == ix.labels_of(ix.ids).tolist()
    twin.add(B[10:11], [77])
    ix.add(B[20:21], [88])  # would overwrite id 77 if they shared memory
    assert 77 not in ix
    assert 88 not in twin
    np.testing.assert_array_equal(twin.get([77]), B[10:11])
    np.testing.assert_array_equal(ix.get([88]), B[20:21])
    twin.add(B[11:12])
    assert 78 in twin  # default ids continue


def test_an_index_is_freed_without_the_garbage_collector():
    """An index may hold gigabytes, so it must not be part of a reference cycle."""
    ix = HammingIndex(64)
    ix.add(make_codes("random", 5000, 64))
    ix.search(make_codes("random", 100, 64), 1)
    snapshot = weakref.ref(ix.snapshot())
    gc.disable()
    try:
        del ix
        assert snapshot() is None
    finally:
        gc.enable()
