"""HammingIndex against brute force, a dictionary, other threads, and damaged files."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dish import HammingIndex, codes, team
from dish.index import answers, views
from dish.io import modelfile

KINDS = ("random", "clustered", "duplicates", "one code")


def make(kind, n, n_bits, seed=0):
    rng = np.random.default_rng(seed)
    H = rng.standard_normal((n, n_bits))
    if kind == "clustered":
        H = 4 * rng.standard_normal((20, n_bits))[rng.integers(0, 20, n)] + H
    if kind == "duplicates":
        H = H[rng.integers(0, max(1, n // 100), n)]
    if kind == "one code":
        H[:] = H[:1]
    return codes.pack(H)


def queries_of(B, n, n_bits, seed=1):
    """Half of them rows with a few bits turned, half random."""
    rng = np.random.default_rng(seed)
    near = codes.unpack(B[rng.integers(0, len(B), n // 2)], n_bits)
    near = near * np.where(rng.random(near.shape) < 2 / n_bits, -1, 1)
    return np.concatenate([codes.pack(near), make("random", n - n // 2, n_bits, seed)])


def brute_nearest(Q, B, k):
    """All distances, stable sort: equal distances in the order of rows."""
    D = codes.hamming(Q, B)
    order = np.argsort(D, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(D, order, 1), order


def assert_radius(found, Q, B, radius, ids=None):
    lims, D, N = found
    W = codes.hamming(Q, B)
    assert lims[0] == 0
    assert lims[-1] == len(D) == len(N)
    for i in range(len(Q)):
        rows = np.flatnonzero(W[i] <= radius)
        rows = rows[np.argsort(W[i][rows], kind="stable")]
        np.testing.assert_array_equal(D[lims[i] : lims[i + 1]], W[i][rows])
        np.testing.assert_array_equal(N[lims[i] : lims[i + 1]], rows if ids is None else ids[rows])


def view_of(ix):
    return ix.snapshot().generation.views.newest


def settled(B, n_bits, n_queries=200):
    """An index that has been searched enough to have grouped its rows and listed them by bits."""
    ix = HammingIndex(n_bits)
    ix.add(B)
    ix.search(B[:n_queries], 1)
    ix.radius_search(B[:n_queries], 0)
    return ix


# --- exactness --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_bits", [1, 8, 13, 16, 30, 32, 33, 64, 70, 128, 200, 256])
@pytest.mark.parametrize("kind", KINDS)
def test_search_equals_brute_force(kind, n_bits):
    B = make(kind, 6000, n_bits)
    Q = queries_of(B, 60, n_bits)
    fresh, ready = HammingIndex(n_bits), settled(B[:5500], n_bits)
    fresh.add(B)
    ready.add(B[5500:])  # behind the view
    assert view_of(fresh) is None
    assert view_of(ready).n == 5500
    for k in (1, 10, 300):
        D, N = brute_nearest(Q, B, k)
        for ix in (fresh, ready):
            found = ix.search(Q, k)
            np.testing.assert_array_equal(found[0], D)
            np.testing.assert_array_equal(found[1], N)
            assert found[0].dtype == np.int32
    for radius in (0, 2, 3, n_bits // 4):
        for ix in (fresh, ready):
            assert_radius(ix.radius_search(Q, radius), Q, B, radius)


@pytest.mark.parametrize("n_bits", [16, 64, 128, 192])
@pytest.mark.parametrize("kind", KINDS)
def test_one_query_at_a_time_shared_between_threads(kind, n_bits, monkeypatch):
    monkeypatch.setattr(answers, "ROWS", 500)
    monkeypatch.setattr(answers, "pays", lambda *_: True)
    monkeypatch.setattr(team, "size", lambda most: max(1, min(3, most)))
    B = make(kind, 3001, n_bits)
    Q = queries_of(B, 6, n_bits)
    ix = HammingIndex(n_bits)
    ix.add(B)
    for k in (1, 10, 1700):  # the last: more than a thread has rows
        D, N = brute_nearest(Q, B, k)
        for i in range(len(Q)):
            found = ix.search(Q[i : i + 1], k)
            np.testing.assert_array_equal(found[0], D[i : i + 1])
            np.testing.assert_array_equal(found[1], N[i : i + 1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_limit_cuts_radius_search_off_and_counts_say_where(kind):
    B = make(kind, 6000, 64)
    Q = queries_of(B, 40, 64)
    ix = settled(B[:5500], 64)
    ix.add(B[5500:])  # behind the view
    for removed in ([], [1, 7, 5700]):
        ix.remove(removed)
        for some in (None, np.arange(0, 6000, 3)):
            for radius in (0, 3, 20):
                lims, D, N = ix.radius_search(Q, radius, some)
                np.testing.assert_array_equal(ix.radius_count(Q, radius, some), np.diff(lims))
                for limit in (1, 5, 6000):
                    first = np.arange(len(D)) - np.repeat(lims[:-1], np.diff(lims)) < limit
                    cut = ix.radius_search(Q, radius, some, limit=limit)
                    np.testing.assert_array_equal(np.diff(cut[0]), np.minimum(np.diff(lims), limit))
                    np.testing.assert_array_equal(cut[1], D[first])
                    np.testing.assert_array_equal(cut[2], N[first])
    with pytest.raises(ValueError, match="limit"):
        ix.radius_search(Q, 2, limit=0)


def test_learned_codes_are_grouped_and_random_ones_are_not():
    grouped, flat = settled(make("duplicates", 6000, 64), 64), settled(make("random", 6000, 64), 64)
    assert len(view_of(grouped).codes) == 60
    assert view_of(flat).members is None


@pytest.mark.parametrize("n_bits", [64, 128, 256])
@pytest.mark.parametrize("kind", ["random", "clustered"])
def test_radius_search_by_bits_of_words(kind, n_bits):
    """Large enough for the buckets to be used, and radii on both sides of where a scan takes over."""
    B = make(kind, 20_000, n_bits)
    Q = queries_of(B, 80, n_bits)
    ix = settled(B, n_bits)
    assert view_of(ix).tables
    for radius in (0, 1, 2, 4, 5, 9, n_bits):
        some = Q if radius < n_bits else Q[:2]
        assert_radius(ix.radius_search(some, radius), some, B, radius)


def test_the_buckets_are_used_and_not_only_the_scan(monkeypatch):
    from dish.index import scan

    ix = settled(make("random", 60_000, 64), 64)
    Q = queries_of(ix.get(ix.ids), 10, 64)
    want = ix.radius_search(Q, 2)
    monkeypatch.setattr(scan, "within", None)
    found = ix.radius_search(Q, 2)
    for a, b in zip(want, found, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("n", [0, 1, 3])
def test_small_indexes_and_k_beyond_them(n):
    B, Q = make("random", 3, 20)[:n], make("random", 5, 20, seed=2)
    ix = HammingIndex(20)
    ix.add(B)
    D, N = ix.search(Q, 10)
    assert D.shape == N.shape == (5, n)
    assert (N >= 0).all()
    lims, D, N = ix.radius_search(Q, 20)
    assert lims[-1] == 5 * n
    assert ix.search(Q[:0], 4)[0].shape == (0, n and min(4, n))
    assert len(ix.radius_search(Q[:0], 4)[0]) == 1
    assert len(ix) == n
    assert ix.search(np.ones((5, 20)), 10, mode="asymmetric")[0].shape == (5, n)
    assert ix.search(np.ones((5, 20)), 10, mode="rerank")[0].shape == (5, n)


def test_k_as_large_as_the_index():
    B = make("duplicates", 5000, 32)
    ix = settled(B, 32)
    D, N = ix.search(B[:3], 10**9)
    want = brute_nearest(B[:3], B, 5000)
    np.testing.assert_array_equal(D, want[0])
    np.testing.assert_array_equal(N, want[1])


@pytest.mark.parametrize("n_bits", [9, 64, 100])
@pytest.mark.parametrize("kind", ["random", "duplicates"])
def test_asymmetric_search_equals_sorting_all_products(kind, n_bits):
    B = make(kind, 5000, n_bits)
    F = np.random.default_rng(3).standard_normal((20, n_bits)).astype(np.float32)
    S = F.astype(float) @ codes.unpack(B, n_bits).T.astype(float)
    for ix in (HammingIndex(n_bits), settled(B, n_bits)):
        if not len(ix):
            ix.add(B)
        D, N = ix.search(F, 40, mode="asymmetric")
        np.testing.assert_allclose(D, -np.sort(-S, axis=1)[:, :40], rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(np.take_along_axis(S, N, 1), D, rtol=1e-5, atol=1e-4)
        equal = (B[N[:, 1:]] == B[N[:, :-1]]).all(axis=2)  # equal codes in the order of insertion
        assert (N[:, 1:] > N[:, :-1])[equal].all()


def test_rerank_orders_the_shortlist_by_products():
    B = make("random", 3000, 64)
    F = np.random.default_rng(3).standard_normal((10, 64))
    ix = HammingIndex(64)
    ix.add(B)
    S = F @ codes.unpack(B, 64).T.astype(float)
    _, short = ix.search(codes.pack(F), 200)
    D, N = ix.search(F, 10, mode="rerank", shortlist=200)
    for i in range(10):
        want = short[i][np.argsort(-S[i][short[i]], kind="stable")[:10]]
        np.testing.assert_allclose(S[i][N[i]], S[i][want])
        np.testing.assert_allclose(D[i], S[i][N[i]], rtol=1e-5)
    D, _ = ix.search(F, 10, mode="rerank", shortlist=3000)
    np.testing.assert_allclose(D, ix.search(F, 10, mode="asymmetric")[0])


# --- ids, labels, filters ---------------------------------------------------------------------------------


def test_string_ids_labels_and_filters():
    B = make("clustered", 500, 24)
    names = np.array([f"row {i} é" for i in range(500)])
    ix = HammingIndex(24)
    ix.add(B, ids=names, labels=[f"class {i % 3}" for i in range(500)])
    D, N = ix.search(B[:7], 5)
    np.testing.assert_array_equal(N, names[brute_nearest(B[:7], B, 5)[1]])
    assert "row 3 é" in ix
    assert "row 3" not in ix
    assert 3 not in ix
    np.testing.assert_array_equal(ix.get(["row 9 é", "row 2 é"]), B[[9, 2]])
    assert ix.labels_of(["row 4 é", "row 3 é"]).tolist() == ["class 1", "class 0"]
    some = np.array([400, 3, 77, 250])
    D, N = ix.search(B[:7], 10, ids={*names[some], "nobody"})
    want = brute_nearest(B[:7], B[np.sort(some)], 4)
    np.testing.assert_array_equal(D, want[0])
    np.testing.assert_array_equal(N, names[np.sort(some)[want[1]]])
    assert_radius(ix.radius_search(B[:7], 6, ids=names[some]), B[:7], B[np.sort(some)], 6, names[np.sort(some)])
    assert ix.search(B[:7], 10, ids=["nobody"])[0].shape == (7, 0)


@pytest.mark.parametrize("start", [0, 5], ids=["nothing", "five rows"])
def test_labels_may_be_missing(start):
    B = make("random", 8, 16)
    ix = HammingIndex(16)
    ix.add(B[:start])
    ix.add(B[start:], labels=np.arange(start, 8) * 10)
    assert ix.labels_of([7, 6]).tolist() == [70, 60]
    assert ix.labels_of([7, 6]).dtype.kind == "i"
    assert ix.labels_of(ix.ids).tolist() == [None] * start + [10 * i for i in range(start, 8)]
    ix.upsert(B[:1], [7])
    assert ix.labels_of([7]).tolist() == [None]


def test_default_ids_run_on_and_are_never_given_twice():
    B = make("random", 10, 8)
    ix = HammingIndex(8)
    ix.add(B[:3])
    assert ix.remove([2]) == 1
    ix.add(B[3:5])
    assert ix.ids.tolist() == [0, 1, 3, 4]
    ix.add(B[5:6], ids=[100])
    ix.add(B[6:7])
    assert ix.ids.tolist() == [0, 1, 3, 4, 100, 101]


def test_ids_in_no_order():
    B = make("random", 3000, 64)
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


def test_ties_come_in_the_order_of_insertion_and_an_upserted_row_is_the_last():
    B = make("one code", 5000, 64)
    ix = settled(B, 64)
    ix.upsert(B[:1], [2])
    assert ix.search(B[:1], 4)[1].tolist() == [[0, 1, 3, 4]]
    assert ix.search(B[:1], 5000)[1][0, -1] == 2


# --- random sequences against a dictionary -----------------------------------------------------------------


class AgainstDictionary(RuleBasedStateMachine):
    """Whatever is done to an index and to a plain dictionary, they hold and find the same."""

    @initialize(
        n_bits=st.sampled_from([7, 16, 33, 64, 72]), strings=st.booleans(), spread=st.sampled_from([2, 6, 200])
    )
    def start(self, n_bits, strings, spread):
        self.n_bits, self.strings = n_bits, strings
        self.pool = make("random", spread, n_bits)
        self.ix, self.model = HammingIndex(n_bits), {}  # a dictionary keeps the order of insertion
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
        there = [one for one in ids if one in self.model]
        if there:
            with pytest.raises(ValueError, match="already"):
                self.ix.add(B, ids, labels)
        else:
            self.ix.add(B, ids, labels)
            self.model.update({one: (bytes(b), int(y)) for one, b, y in zip(ids, B, labels, strict=True)})

    @rule(seed=st.integers(0, 2**20), n=st.sampled_from([1, 3, 100]), low=st.integers(0, 300))
    def upsert(self, seed, n, low):
        B, rng = self.some(seed, n)
        ids = [self.as_id(int(i)) for i in rng.permutation(np.arange(low, low + n))]
        self.ix.upsert(B, ids)
        for one, b in zip(ids, B, strict=True):
            self.model.pop(one, None)
            self.model[one] = (bytes(b), None)

    @rule(low=st.integers(0, 400), n=st.sampled_from([1, 7, 120]))
    def remove(self, low, n):
        ids = [self.as_id(i) for i in range(low, low + n)]
        there = [one for one in ids if self.model.pop(one, None) is not None]
        assert self.ix.remove(ids) == len(there)

    @rule()
    def keep(self):
        self.kept = [*self.kept[-2:], (self.ix.snapshot(), dict(self.model))]

    @rule(mmap=st.booleans())
    def save_and_load(self, mmap):
        self.ix.save(self.folder / "ix.dish")
        self.ix = HammingIndex.load(self.folder / "ix.dish", mmap=mmap)

    @rule()
    def group(self):
        """A search that finds it worth its while to group the rows first."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(views, "FEWEST", 1)
            patch.setattr(views, "REGROUP", 0)
            self.ix.search(self.pool[:1], 1)
        assert len(self.ix) == 0 or view_of(self.ix).n == self.ix.snapshot().n

    @precondition(lambda self: hasattr(self, "ix"))
    @rule(seed=st.integers(0, 2**20), k=st.sampled_from([1, 5, 1000]), part=st.sampled_from([None, 3]))
    def search(self, seed, k, part):
        Q, _ = self.some(seed, 4)
        allowed = [one for i, one in enumerate(self.model) if part is None or i % part == 0]
        B = np.array([list(self.model[one][0]) for one in allowed], np.uint8).reshape(len(allowed), Q.shape[1])
        D, rows = brute_nearest(Q, B, k)
        found = self.ix.search(Q, k, ids=None if part is None else allowed)
        np.testing.assert_array_equal(found[0], D)
        assert found[1].tolist() == [[allowed[r] for r in line] for line in rows]
        names = np.array(allowed, object)
        assert_radius(self.ix.radius_search(Q, 2, ids=None if part is None else allowed), Q, B, 2, names)

    @invariant()
    def same_content(self):
        """The index, and every snapshot that was kept."""
        for ix, model in [(self.ix, self.model), *self.kept] if hasattr(self, "ix") else []:
            assert len(ix) == len(model)
            assert ix.ids.tolist() == list(model)
            assert [bytes(b) for b in ix.get(list(model))] == [b for b, _ in model.values()]
            assert ix.labels_of(list(model)).tolist() == [y for _, y in model.values()]


def test_against_a_dictionary(tmp_path):
    from hypothesis.stateful import run_state_machine_as_test

    AgainstDictionary.tmp = str(tmp_path)
    run_state_machine_as_test(
        AgainstDictionary,
        settings=settings(
            max_examples=60,
            stateful_step_count=20,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


# --- threads ----------------------------------------------------------------------------------------------


def test_searching_while_others_write():
    """Readers see each row whole and never a removed one that was gone before they began."""
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
                assert (N[:, 0] == rows).all()  # each finds itself
                assert (
                    np.bitwise_count(B[rows][:, None] ^ B[N % 10**6]).sum(axis=2) == D
                ).all()  # and codes are whole
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
    want = brute_nearest(B[:40], B[:30_000], 5)
    found = ix.search(B[:40], 5)
    np.testing.assert_array_equal(found[0], want[0])


# --- files ------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    ix = HammingIndex(40)
    ix.add(make("clustered", 700, 40), ids=[f"é{i}" for i in range(700)], labels=np.arange(700) % 5)
    ix.save(tmp_path / "ix.dish")
    return tmp_path / "ix.dish"


def test_every_cut_and_every_flipped_byte_is_noticed(saved):
    whole = saved.read_bytes()
    rng = np.random.default_rng(0)
    for length in [0, 1, 8, 50, *rng.integers(60, len(whole), 20)]:
        saved.write_bytes(whole[:length])
        for mmap in (False, True):
            with pytest.raises(modelfile.ModelFileError, match=r"ix\.dish"):
                HammingIndex.load(saved, mmap=mmap)
    for place in rng.integers(0, len(whole), 60):
        broken = bytearray(whole)
        broken[place] ^= 1 << int(rng.integers(0, 8))
        saved.write_bytes(broken)
        for mmap in (False, True):
            with pytest.raises(modelfile.ModelFileError, match=r"ix\.dish"):
                HammingIndex.load(saved, mmap=mmap, verify=True)


def test_a_mapped_index_is_not_verified_unless_asked(saved):
    broken = bytearray(saved.read_bytes())
    broken[-2000] ^= 1  # among the codes or ids
    saved.write_bytes(broken)
    assert len(HammingIndex.load(saved, mmap=True)) == 700
    with pytest.raises(modelfile.ModelFileError, match="checksum"):
        HammingIndex.load(saved)


@pytest.mark.slow
def test_foreign_files(tmp_path, blobs):
    from dish import DISH, load

    X, y = blobs
    DISH(n_bits=8, n_anchors=20).fit(X, y).save(tmp_path / "m.dish")
    with pytest.raises(modelfile.ModelFileError, match=r"m\.dish holds a DISH, not an index"):
        HammingIndex.load(tmp_path / "m.dish")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(modelfile.ModelFileError, match="text"):
        HammingIndex.load(tmp_path / "text")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        HammingIndex.load(tmp_path / "nowhere")
    modelfile.save(tmp_path / "odd.dish", "HammingIndex", {"init": {"n_bits": 8}}, {"codes": np.zeros((2, 3))})
    with pytest.raises(modelfile.ModelFileError, match=r"odd\.dish"):
        HammingIndex.load(tmp_path / "odd.dish")
    HammingIndex(8).save(tmp_path / "ix.dish")
    with pytest.raises(modelfile.ModelFileError, match="HammingIndex"):
        load(tmp_path / "ix.dish")


def test_a_mapped_index_reads_its_codes_from_the_file(saved):
    ix = HammingIndex.load(saved, mmap=True)
    assert isinstance(ix.snapshot().codes, np.memmap)
    B = make("clustered", 700, 40)
    np.testing.assert_array_equal(ix.get([f"é{i}" for i in range(700)]), B)
    ix.add(B[:1], ["new"])
    ix.save(saved)  # over the file it came from
    assert HammingIndex.load(saved).search(B[:1], 700)[1][0, -1] != "new"
    assert "new" in HammingIndex.load(saved)


WRITER = """
import sys, numpy as np
from dish import HammingIndex
ix = HammingIndex(64)
ix.add(np.zeros((1_000_000, 8), np.uint8))
print("ready", flush=True)
for i in range(10**6):
    ix.save(sys.argv[1])
"""


@pytest.mark.slow
def test_kill_during_save_leaves_a_whole_file(tmp_path):
    path = tmp_path / "ix.dish"
    HammingIndex(64).save(path)
    left = set()
    for attempt in range(40):  # until one is killed in the middle
        if left and attempt > 3:
            break
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
        assert writer.stdout.readline() == b"ready\n"
        time.sleep(0.03 + 0.06 * (attempt % 4) + 0.003 * attempt)
        writer.kill()
        writer.wait()
        assert len(HammingIndex.load(path)) in (0, 1_000_000)
        left.update(tmp_path.glob(".*.tmp"))
    assert left  # a save was cut off in the middle
    HammingIndex(64).save(path)
    assert list(tmp_path.iterdir()) == [path]  # and what it left is gone with the next


# --- approximate mode -------------------------------------------------------------------------------------


def test_approximate_mode():
    B = make("clustered", 8000, 64)
    Q = queries_of(B, 100, 64)
    ix = HammingIndex(64, mode="approximate", n_lists=40, n_probe=3)
    ix.add(B[:7000])
    ix.search(Q, 10)  # fills the lists
    assert view_of(ix).n == 7000
    ix.add(B[7000:])
    recall = ix.measure_recall(Q, 10)
    D, N = ix.search(Q, 10)
    exact = brute_nearest(Q, B, 10)[0]
    assert recall == pytest.approx((exact[:, -1:] >= D).mean())
    assert 0.4 < recall < 1
    assert (np.take_along_axis(codes.hamming(Q, B), N, 1) == D).all()
    D, N = ix.search(Q, 3000)  # more than three lists hold: nothing is padded
    assert (N >= 0).all()
    assert D.shape == (100, 3000)
    assert_radius(ix.radius_search(Q, 5), Q, B, 5)  # stays exact
    all_lists = HammingIndex(64, mode="approximate", n_lists=40, n_probe=40)
    all_lists.add(B)
    all_lists.search(Q, 10)
    assert view_of(all_lists) is not None
    assert all_lists.measure_recall(Q, 10) == 1
    np.testing.assert_array_equal(all_lists.search(Q, 10)[0], exact)


def test_the_approximate_mode_says_what_it_needs(monkeypatch):
    monkeypatch.setattr(views.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'dish-hash\[faiss\]'"):
        HammingIndex(64, mode="approximate")
    HammingIndex(64)


# --- errors and costs -------------------------------------------------------------------------------------


def bad_calls():
    B = make("random", 4, 12)
    wide = B.copy()
    wide[0, -1] |= 1
    return {
        "n_bits must be": lambda ix: HammingIndex(0),
        "mode must be one of 'exact'": lambda ix: HammingIndex(8, mode="fast"),
        "n_probe must be": lambda ix: HammingIndex(8, mode="approximate", n_probe=0),
        "codes must be packed": lambda ix: ix.add(B.astype(int)),
        "3 bytes per row": lambda ix: ix.add(make("random", 2, 24)),
        "codes have bits set beyond the first 12": lambda ix: ix.add(wide),
        "queries have bits set beyond": lambda ix: ix.search(wide),
        "ids has 3 entries for 4 codes": lambda ix: ix.add(B, [7, 8, 9]),
        "id 7 is given twice": lambda ix: ix.add(B, [7, 8, 9, 7]),
        "id 2 is in the index already": lambda ix: ix.add(B, [7, 8, 2, 9]),
        "whole numbers or strings": lambda ix: ix.add(B, [1.5, 2.5, 3.5, 4.5]),
        "must be whole numbers as": lambda ix: ix.add(B, list("abcd")),
        "all of one kind": lambda ix: ix.add(B, [1, "a", 2, 3]),
        "a list of ids": lambda ix: ix.remove("abc"),
        "fit into 64 bits": lambda ix: ix.add(B, [2**63, 1, 2, 3]),
        "labels must be one per row": lambda ix: ix.add(B, labels=[1, 2]),
        "labels must be numbers or strings": lambda ix: ix.add(B, labels=[(), 1, 2, 3]),
        "k must be": lambda ix: ix.search(B, 0),
        "radius must be": lambda ix: ix.radius_search(B, -1),
        "mode must be one of 'hamming'": lambda ix: ix.search(B, mode="cosine"),
        "real outputs of shape": lambda ix: ix.search(B, mode="asymmetric"),
        "must be finite": lambda ix: ix.search(np.full((1, 12), np.nan), mode="asymmetric"),
        "shortlist must be": lambda ix: ix.search(np.ones((1, 12)), 10, mode="rerank", shortlist=5),
        "id 99 is not in the index": lambda ix: ix.get([99]),
    }


@pytest.mark.parametrize("message", bad_calls())
def test_errors_name_what_is_wrong_and_change_nothing(message):
    ix = HammingIndex(12)
    ix.add(make("random", 4, 12))
    with pytest.raises((ValueError, KeyError), match=message):
        bad_calls()[message](ix)
    assert ix.ids.tolist() == [0, 1, 2, 3]


def test_an_index_of_strings_needs_ids():
    ix = HammingIndex(12)
    ix.add(make("random", 4, 12), list("abcd"))
    with pytest.raises(ValueError, match="ids must be given"):
        ix.add(make("random", 4, 12))


@pytest.mark.parametrize("kind", ["random", "duplicates", "a fifth distinct"])
@pytest.mark.parametrize("n_bits", [64, 128])
def test_memory_is_at_most_twice_the_codes_and_the_ids(kind, n_bits):
    n = 50_000
    B = make(kind, n, n_bits)
    if kind == "a fifth distinct":  # about as many as are still grouped
        B = B[np.random.default_rng(0).integers(0, n * 23 // 100, n)]
    ix = settled(B, n_bits)
    assert (view_of(ix).members is None) == (kind == "random")
    held = ix.nbytes()
    assert held["search"] > 0
    assert held["codes"] + held["search"] <= 2 * n * n_bits // 8
    assert held["ids"] == 8 * n
    assert held["labels"] == 0


def test_small_adds_do_not_group_again():
    B = make("duplicates", 20_000, 64)
    ix = settled(B, 64)
    view = view_of(ix)
    for i in range(200):
        ix.add(B[i : i + 1])
        ix.search(B[:1], 1)
    assert view_of(ix) is view
    ix.search(B[:6000], 1)  # by now scanning the new rows has cost more than grouping
    assert view_of(ix).n == 20_200


# --- the command line -------------------------------------------------------------------------------------


@pytest.fixture
def cli(capsys, monkeypatch):
    from helpers.cli import run

    return lambda *args: run(capsys, monkeypatch, *args)


def test_index_and_search_from_the_command_line(cli, tmp_path):
    import json

    B = make("clustered", 300, 24)
    names = np.array([f"n{i}" for i in range(300)])
    for name, array in {"B": B, "ids": names, "y": np.arange(300) % 4, "Q": B[:3]}.items():
        np.save(tmp_path / f"{name}.npy", array)
    made = cli(
        "index", tmp_path / "B.npy", "-o", tmp_path / "ix.dish", "--ids", tmp_path / "ids.npy",
        "--labels", tmp_path / "y.npy",
    )  # fmt: skip
    assert made == (0, f"{tmp_path / 'ix.dish'}: 300 codes of 24 bits\n", "")
    code, out, _ = cli("search", tmp_path / "ix.dish", "--codes", tmp_path / "Q.npy", "--k", 4, "--json")
    assert code == 0
    D, rows = brute_nearest(B[:3], B, 4)
    for i, line in enumerate(out.splitlines()):
        hits = json.loads(line)["hits"]
        assert [hit["id"] for hit in hits] == names[rows[i]].tolist()
        assert [hit["distance"] for hit in hits] == D[i].tolist()
        assert [hit["label"] for hit in hits] == (rows[i] % 4).tolist()
    code, out, _ = cli("search", tmp_path / "ix.dish", "--codes", tmp_path / "Q.npy", "--radius", 0)
    assert out.splitlines()[0].startswith("query 0: n0 (0, 0)")
    code, out, _ = cli("info", tmp_path / "ix.dish")
    assert "HammingIndex" in out
    np.save(tmp_path / "floats.npy", np.ones((2, 3)))
    for message, call in {
        "packed codes are uint8": ("index", tmp_path / "floats.npy", "-o", tmp_path / "no.dish"),
        "3 bytes per row": ("index", tmp_path / "B.npy", "-o", tmp_path / "no.dish", "--bits", 64),
        "one of the inputs": ("index", tmp_path / "B.npy", "-o", tmp_path / "B.npy"),
        "no model file": ("search", tmp_path / "none.dish", "--codes", tmp_path / "Q.npy"),
        "k must be": ("search", tmp_path / "ix.dish", "--codes", tmp_path / "Q.npy", "--k", 0),
    }.items():
        code, _, err = cli(*call)
        assert (code, len(err.strip().splitlines())) == (2, 1)
        assert message in err
    assert not (tmp_path / "no.dish").exists()
