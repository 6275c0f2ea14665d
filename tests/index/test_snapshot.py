"""Snapshots: what a search sees while others write."""

import threading

import numpy as np
import pytest

from dish import HammingIndex, codes
from dish.index import ids as lookups
from dish.index import scan, snapshot


def random_codes(n, n_bits=64, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, n_bits // 8), dtype=np.uint8)


def mixed_ids(n, seed=0):
    """Return 0, then 1 … n − 2 shuffled, then n − 1: ids that look like 0 … n − 1 from both ends."""
    return np.concatenate([[0], np.random.default_rng(seed).permutation(np.arange(1, n - 1)), [n - 1]])


def test_a_running_search_keeps_the_ids_it_began_with(monkeypatch):
    B, ids = random_codes(500), mixed_ids(500)
    ix = HammingIndex(64)
    ix.add(B, ids)
    kernel = scan.nearest

    def remove_and_search(*args):
        ix.remove(ids[1:-1])  # the remaining rows are renumbered, and their ids ascend
        return kernel(*args)

    monkeypatch.setattr(scan, "nearest", remove_and_search)
    D, N = ix.search(B[:50], 1)
    np.testing.assert_array_equal(N[:, 0], ids[:50])
    assert (D == 0).all()
    assert ix.ids.tolist() == [0, 499]


@pytest.mark.parametrize("strings", [False, True])
def test_writes_do_not_change_a_snapshot(strings, kernels):
    def named(ids):
        return [f"id {i}" for i in ids] if strings else list(ids)

    B, ids = random_codes(300), mixed_ids(300).tolist()
    ix = HammingIndex(64)
    ix.add(B, named(ids), labels=[f"old {i}" for i in ids])
    before = ix.snapshot()
    ix.upsert(random_codes(40, seed=1), named(ids[:40]), labels=["new"] * 40)
    middle = ix.snapshot()
    ix.remove(named(ids[30:200]))  # enough to compact the rows
    ix.add(random_codes(3000, seed=2), named(range(300, 3300)))  # every array is reallocated

    np.testing.assert_array_equal(before.get(named(ids)), B)
    assert before.labels_of(named(ids)).tolist() == [f"old {i}" for i in ids]
    assert before.ids.tolist() == named(ids)
    np.testing.assert_array_equal(before.search(B, 1)[1][:, 0], named(ids))
    assert len(before) == len(middle) == 300
    assert middle.labels_of(named(ids[38:42])).tolist() == ["new", "new", *(f"old {i}" for i in ids[40:42])]
    assert named([5000])[0] not in before
    assert named([301])[0] not in before
    assert named([301])[0] in ix.snapshot()
    _, _, N = before.radius_search(B[:5], 0)
    assert N.tolist() == named(ids[:5])


def test_every_snapshot_finds_its_own_row_of_an_id_that_was_replaced():
    B = random_codes(6)
    ix = HammingIndex(64)
    ix.add(B[:3], [5, 3, 4])
    kept = [ix.snapshot()]
    for i in range(3, 6):
        ix.remove([3])
        kept.append(ix.snapshot())
        ix.add(B[i : i + 1], [3])
        kept.append(ix.snapshot())
    found = [snapshot.get([3])[0].tolist() if 3 in snapshot else None for snapshot in kept]
    assert found == [B[1].tolist(), None, B[3].tolist(), None, B[4].tolist(), None, B[5].tolist()]


def test_hits_labels_and_codes_of_a_snapshot_are_consistent_while_others_write():
    """The label of a code is its first byte."""
    rng = np.random.default_rng(0)
    ids = mixed_ids(2000)
    ix = HammingIndex(64)
    B = random_codes(2000)
    ix.add(B, ids, labels=B[:, 0])
    failures, stop = [], threading.Event()

    def write():
        for seed in range(400):
            some = np.random.default_rng(seed).choice(ids, 20, replace=False)
            new = random_codes(20, seed=seed)
            if seed % 5:
                ix.upsert(new, some, labels=new[:, 0])
            else:
                ix.remove(some)
                ix.upsert(new, some, labels=new[:, 0])
        stop.set()

    def read():
        try:
            while not stop.is_set():
                Q = rng.integers(0, 256, (4, 8), dtype=np.uint8)
                now = ix.snapshot()
                D, N = now.search(Q, 20)
                found = now.get(N.ravel())
                np.testing.assert_array_equal(codes.hamming(Q, found)[np.repeat(range(4), 20), range(80)], D.ravel())
                np.testing.assert_array_equal(now.labels_of(N.ravel()), found[:, 0])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)] + [threading.Thread(target=write)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_sampled_ids_are_distinct_and_not_deleted():
    ix = HammingIndex(64)
    assert len(ix.snapshot().sample_ids(5, np.random.default_rng(0))) == 0
    ix.add(random_codes(100))
    ix.remove(range(0, 100, 2))
    drawn = ix.snapshot().sample_ids(20, np.random.default_rng(0)).tolist()
    assert len({*drawn}) == 20
    assert all(one % 2 for one in drawn)
    assert len(ix.snapshot().sample_ids(1000, np.random.default_rng(0))) == 50


def test_an_interrupted_write_changes_nothing(monkeypatch):
    B, ids = random_codes(60), mixed_ids(50)
    ix = HammingIndex(64)
    ix.add(B[:50], ids)

    def interrupted(*args):
        add(*args)
        raise KeyboardInterrupt

    add = lookups.IntegerLookup.add
    with monkeypatch.context() as patch:
        patch.setattr(lookups.IntegerLookup, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ix.add(B[50:], np.arange(100, 110))
    assert 105 not in ix
    ix.add(B[50:], np.arange(200, 210)[::-1])
    np.testing.assert_array_equal(ix.get(ix.ids), B)
    assert 105 not in ix


@pytest.mark.parametrize("method", ["hamming", "asymmetric"])
def test_memory_of_a_search_does_not_grow_with_deleted_rows(monkeypatch, method, kernels):
    """Queries are searched in blocks; one row in a hundred is deleted."""
    B, sizes, dropped = random_codes(3000), [], snapshot.drop_deleted
    ix = HammingIndex(64)
    ix.add(B)
    ix.remove(np.arange(0, 3000, 100))

    def measured(deleted, D, R, k):
        sizes.append(D.size)
        return dropped(deleted, D, R, k)

    monkeypatch.setattr(snapshot, "drop_deleted", measured)
    monkeypatch.setattr(snapshot, "MOST_PAIRS", 1000)
    Q = B[:150] if method == "hamming" else np.random.default_rng(1).normal(size=(150, 64))
    D, ids = ix.search(Q, 5, method=method)
    assert len(sizes) > 1
    assert max(sizes) <= 1000
    again = HammingIndex(64)
    again.add(np.delete(B, np.arange(0, 3000, 100), axis=0), np.delete(np.arange(3000), np.arange(0, 3000, 100)))
    for found, expected in zip((D, ids), again.search(Q, 5, method=method), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert ix.snapshot().working_bytes(150, 5) == 32 * 1000
    assert again.snapshot().working_bytes(150, 5) == 0
