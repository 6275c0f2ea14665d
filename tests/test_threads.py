"""Threads for short kernels: all parts run, once, and errors reach the caller."""

import os
import threading

import numpy as np
import pytest
import torch

from dish import codes, threads
from dish.cbcd import algorithm1
from dish.similarity import from_labels


def test_every_part_runs_once_also_within_a_part():
    ran = []
    for parts in (1, 2, 5, 3):
        ran.clear()
        threads.run(ran.append, parts)
        assert sorted(ran) == list(range(parts))
    names = set()
    threads.run(lambda part: threads.run(lambda inner: names.add((part, inner, threading.get_ident())), 2), 2)
    assert {(part, inner) for part, inner, _ in names} == {(0, 0), (0, 1), (1, 0), (1, 1)}


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_an_error_of_any_part_is_raised_and_the_team_goes_on(bad):
    def task(part):
        if part == bad:
            raise KeyError(part)

    with pytest.raises(KeyError):
        threads.run(task, 3)
    ran = []
    threads.run(ran.append, 3)
    assert sorted(ran) == [0, 1, 2]


def problem(n, r=9):
    rng = np.random.default_rng(n)
    return codes.pack(rng.standard_normal((n, r))), from_labels(np.arange(n) % 7), torch.randn(r, n)


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_codes_do_not_depend_on_the_threads(threads, monkeypatch):
    start, S, q = problem(70_001)
    alone, shared = algorithm1.PackedColumns(start, 9), algorithm1.PackedColumns(start, 9)
    alone.threads = 1
    shared.threads = threads
    a, b = algorithm1.sweep(alone, S, q), algorithm1.sweep(shared, S, q)
    np.testing.assert_array_equal(alone.packed(), shared.packed())
    np.testing.assert_array_equal(a.gram, b.gram)
    np.testing.assert_array_equal(a.qh, b.qh)
    assert (a.steps, a.flips) == (b.steps, b.flips)


def test_sweeps_in_several_threads():
    start, S, q = problem(40_000)
    expected = algorithm1.PackedColumns(start, 9)
    algorithm1.sweep(expected, S, q)
    found = [algorithm1.PackedColumns(start, 9) for _ in range(4)]
    for H in found:
        H.threads = 2
    workers = [threading.Thread(target=algorithm1.sweep, args=(H, S, q)) for H in found]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for H in found:
        np.testing.assert_array_equal(H.packed(), expected.packed())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_has_a_team_of_its_own():
    threads.run(lambda part: None, 3)
    child = os.fork()
    if child == 0:
        ran = []
        threads.run(ran.append, 3)
        os._exit(0 if sorted(ran) == [0, 1, 2] else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0


@pytest.mark.parametrize(("cores", "n"), [(1, 5), (3, 7), (4, 2), (3, 0)])
def test_rows_are_shared_out_once_and_in_order(cores, n, monkeypatch):
    monkeypatch.setattr(threads, "size", lambda most: max(1, min(most, cores)))
    rows = np.arange(n)
    parts = threads.over_rows(lambda a, b, c: a + b + c, (rows, 10 * rows), 1)
    assert len(parts) == max(1, min(cores, n))
    np.testing.assert_array_equal(np.concatenate(parts), 11 * rows + 1)
