"""HammingIndex while it changes: against a dictionary, beside other threads."""

import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dish import HammingIndex
from dish.index import accelerators
from helpers.codes import assert_radius, brute_nearest, make, view_of

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
            patch.setattr(accelerators, "FEWEST", 1)
            patch.setattr(accelerators, "REGROUP", 0)
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
