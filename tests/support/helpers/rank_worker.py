"""The jobs that one process of several does in the tests: ``python rank_worker.py WORLD FOLDER RANK JOB...``."""

import os
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from dish import DISH, DISHK, cbcd, load, parallel
from dish.cbcd import algorithm1
from dish.errors import RankError
from dish.evaluation.files import evaluate_files
from dish.io import batch_jobs
from dish.similarity import from_labels

# Fits that must give the same codes for any number of processes: class, parameters, labels.
FITS = {
    "classes": (DISH, {"n_bits": 8, "n_anchors": 40}, "y"),
    "strings": (DISH, {"n_bits": 6, "n_anchors": 30, "anchors": "kmeans"}, "words"),
    "multilabel": (DISH, {"n_bits": 6, "n_anchors": 30}, "Y"),
    "paper": (DISHK, {"n_bits": 12, "n_anchors": 60}, "y"),
    "literal": (DISHK, {"n_bits": 12, "n_anchors": 60, "init": "spectral-literal", "take_back": False}, "y"),
    "share_one": (
        DISHK,
        {"n_bits": 8, "n_anchors": 50, "multilabel": "share_one", "loss": "logistic", "n_iter": 2},
        "Y",
    ),
    "counts": (DISHK, {"n_bits": 8, "n_anchors": 50, "lam": 3.0, "init": "random", "n_iter": 2}, "Y"),
    "linear": (DISHK, {"n_bits": 5, "kernel": "linear", "nu": 0.0, "n_iter": 2}, "y"),
}
PAPER = FITS["paper"][1]
LONG_FIT = {**PAPER, "n_iter": 6, "init": "random"}


def write_data(folder):
    """X float64, so that sums differ by rounding only, and labels of several kinds."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 6, 700)
    X = rng.standard_normal((700, 8)) + 1.5 * rng.standard_normal((6, 8))[y]
    words = np.array(["ant", "bee", "cat", "dog", "eel", "fox"])[y]
    np.savez(folder / "data.npz", X=X, y=y, words=words, Y=(rng.random((700, 5)) < 0.3).astype(int))


def own_rows(ranks, folder, labels="y"):
    """This process's rows and labels."""
    data = np.load(folder / "data.npz")
    rows = ranks.my_rows(len(data["X"]), 32)
    return data["X"][rows], data[labels][rows]


@contextmanager
def rejected(message):
    """The block must fail on every process, with its own error or with a RankError, and with this message."""
    with pytest.raises((ValueError, RankError), match=message):
        yield


# --- Transport and ranks ---


def collectives(ranks, folder):
    """Sums, gathers, arrays of different lengths, broadcast, and offsets."""
    me, world = ranks.rank, ranks.world
    first, second = ranks.sum(torch.full((2, 3), float(me)), torch.tensor([1.0]))
    np.testing.assert_array_equal(first, np.full((2, 3), sum(range(world))))
    assert second.item() == world
    np.testing.assert_array_equal(ranks.gather(torch.tensor([me, 10.0])), [[rank, 10] for rank in range(world)])
    arrays = ranks.gather_arrays(np.array(["a" * (me + 1), "é"]))
    assert [a.tolist() for a in arrays] == [["a" * (rank + 1), "é"] for rank in range(world)]
    shared, summed = torch.full((3,), float(me)), torch.ones(2, dtype=torch.float32)
    ranks.broadcast([shared])
    ranks.sum_in_place(summed)
    assert shared.tolist() == [0, 0, 0]
    assert summed.tolist() == [world, world]
    assert ranks.offset_and_total(3 + me) == (sum(3 + rank for rank in range(me)), sum(3 + r for r in range(world)))
    ranks.barrier()


def sections(ranks, folder):
    """Errors with and without a text, before, between and after messages, and in a nested section."""
    seen = []
    for where in ("before", "between", "after", "nested", "silent"):
        try:
            with ranks.raise_together():
                if where == "before" and ranks.rank == 1:
                    raise ValueError("no such file")
                ranks.total(torch.ones(3))
                if where == "between" and ranks.rank == 1:
                    raise OSError("disk full")
                if where == "nested":
                    with ranks.raise_together():
                        if ranks.rank == 1:
                            raise ValueError("inside")
                ranks.gather_arrays(np.arange(4))
                if where == "after" and ranks.rank == 1:
                    raise KeyError("last")
                if where == "silent" and ranks.rank == 1:
                    raise AssertionError
        except (ValueError, OSError, KeyError, AssertionError, RankError) as error:
            seen.append(f"{where}: {type(error).__name__}: {error}")
    assert ranks.total(torch.ones(1)) == ranks.world  # the processes are still in step
    (folder / f"seen-{ranks.rank}.txt").write_text("\n".join(seen))


def disagree(ranks, folder):
    """Only the first process sends a message."""
    with rejected("process 0 wants to send 1 numbers, process 1 has finished"), ranks.raise_together():
        if ranks.first:
            ranks.total(torch.ones(1))


def leaves(ranks, folder):
    """The second process fails outside of any section, while the first waits for a message."""
    ranks.total(torch.ones(1))  # now all are connected; before, gloo would report its own error
    if ranks.rank == 1:
        raise ValueError("the true reason")
    ranks.total(torch.ones(1))


# --- Selection ---


def values(kind, n):
    """Numbers to select from, difficult in different ways."""
    rng = np.random.default_rng(n)
    return {
        "normal": rng.standard_normal(n),
        "ties": rng.integers(0, 5, n).astype(float),
        "constant": np.full(n, 7.0),
        "sorted": np.sort(rng.standard_normal(n)),
        "two_scales": 1e7 * rng.integers(0, 10, n) + rng.standard_normal(n),
        "outlier": np.r_[1e300, np.arange(n - 1.0)],
    }[kind]


def select(ranks, folder):
    """The collective selection equals a stable sort of all values."""
    for kind in ("normal", "ties", "constant", "sorted", "two_scales", "outlier"):
        for n in (7, 5000, 60_001):
            v = values(kind, n)
            mine = ranks.my_rows(n, 64)
            for k in (1, (n + 1) // 2, n):
                threshold, ties = parallel.kth_largest(torch.from_numpy(v[mine]), k, ranks)
                expected = np.zeros(n, bool)
                expected[np.argsort(-v, kind="stable")[:k]] = True
                equal = v[mine] == threshold
                chosen = (v[mine] > threshold) | (equal & (np.cumsum(equal) <= ties))
                np.testing.assert_array_equal(chosen, expected[mine], err_msg=f"{kind} {n} {k}")


def select_nan(ranks, folder):
    """One process has a NaN among its values; all processes reject them."""
    v = torch.arange(5000.0, dtype=torch.float64)
    if ranks.rank == 1:
        v[77] = torch.nan
    with rejected("1 NaN or infinite value.* process 1"):
        parallel.kth_largest(v, 5000, ranks)


# --- Labels ---


def labels(ranks, folder):
    """Classes and label sets get the same indices as in one process."""
    rng = np.random.default_rng(0)
    given = {
        "ints": rng.integers(0, 9, 60) * 2**55 + 1,
        "floats": rng.integers(0, 9, 60).astype(np.float32),
        "strings": np.array(["a", "a\0", "é", "001", "1"], object)[rng.integers(0, 5, 60)],
        "truth": rng.random(60) < 0.5,
        "sets": (rng.random((60, 9)) < 0.3).astype(int),
    }
    mine = shares(ranks, 60, False) if ranks.world < 3 else ranks.my_rows(60, 1)
    for name, y in given.items():
        alone = from_labels(y, similar_weight="auto")
        S = from_labels(y[mine], similar_weight="auto", ranks=ranks)
        assert S.n_groups == alone.n_groups, name
        assert S.w == alone.w, name
        np.testing.assert_array_equal(S.row_group, alone.row_group[mine], err_msg=name)
        np.testing.assert_array_equal(S.group_sizes(), alone.group_sizes(), err_msg=name)
        np.testing.assert_array_equal(S.labels, alone.labels, err_msg=name)
        assert S.labels.dtype == alone.labels.dtype, name


def mixed_labels(ranks, folder):
    """One process has numbers, another strings that look the same."""
    y = np.array(["1", "2"] * 5) if ranks.rank else np.array([1, 2] * 5)
    with rejected("process 0 has labels that are numbers, process 1 strings"):
        from_labels(y, ranks=ranks)


# --- Sweeps of C-BCD ---

FORMS = {
    "packed": lambda packed, r: algorithm1.PackedColumns(packed, r),
    "dense": lambda packed, r: algorithm1.DenseColumns(packed, r),
    "torch": lambda packed, r: algorithm1.TorchColumns(torch.from_numpy(packed), r),
}
SWEEPS = ("2 equal columns", "3 classes", "sets", "many groups")  # equal columns have the largest sums, up to n


def sweep_input(name, n=1500, r=6):
    """Initial codes, labels and linear terms of a sweep over n rows."""
    rng = np.random.default_rng(1)
    y = rng.integers(0, 3 if name == "3 classes" else 2, n)
    if name == "2 equal columns":
        H = np.repeat(np.where(y == 0, 1, -1)[:, None], r, 1) * np.where(rng.random((n, r)) < 0.03, -1, 1)
    else:
        H = rng.standard_normal((n, r))
    y = {"sets": (rng.random((n, 6)) < 0.3).astype(int), "many groups": rng.integers(0, n - 1, n)}.get(name, y)
    return np.packbits(H >= 0, axis=1), y, torch.from_numpy(3 * rng.standard_normal((r, n)))


def shares(ranks, n, equal):
    """This process's rows: equal parts, or nearly all for the first process and 40 for each other one."""
    if equal or ranks.world == 1:
        return ranks.my_rows(n, 1)
    ends = [0, *(n - 40 * (ranks.world - 1 - i) for i in range(ranks.world - 1)), n]
    return slice(ends[ranks.rank], ends[ranks.rank + 1])


def sweeps(ranks, folder):
    """Two sweeps with every form of the codes; writes the codes and the objective."""
    for name in SWEEPS:
        start, y, q = sweep_input(name)
        for equal in (True, False):
            mine = shares(ranks, len(start), equal)
            S = from_labels(y[mine], ranks=ranks)
            for form, make in FORMS.items():
                H = make(start[mine], q.shape[0])
                done = [algorithm1.sweep(H, S, q[:, mine].contiguous(), ranks=ranks) for _ in range(2)]
                value = algorithm1.objective(done[-1], S.squared_norm(), H.r)
                where = f"{name}-{form}-{'equal' if equal else 'unequal'}-{ranks.world}-{ranks.rank}"
                np.savez(folder / f"sweep-{where}.npz", codes=H.packed(), objective=value)


def sweep_infinity(ranks, folder):
    """The first process has an infinite linear term; all processes reject it."""
    start, y, q = sweep_input("3 classes")
    mine = ranks.my_rows(len(start), 1)
    q = q[:, mine].contiguous()
    if ranks.rank == 0:
        q[3, 5] = torch.inf
    with rejected("bit 3: the objective is"):
        algorithm1.sweep(FORMS["packed"](start[mine], len(q)), from_labels(y[mine], ranks=ranks), q, ranks=ranks)


def messages(ranks, folder):
    """Writes the bytes, messages and steps of a sweep for two numbers of rows."""
    sent = []
    for n in (2000, 40_000):
        rng = np.random.default_rng(0)
        mine = ranks.my_rows(n, 1)
        y, F = rng.integers(0, 7, n)[mine], rng.standard_normal((n, 16))[mine]
        S = from_labels(y, ranks=ranks)
        H = algorithm1.PackedColumns(np.packbits(F >= 0, axis=1), 16)
        before = ranks.bytes, ranks.messages
        done = algorithm1.sweep(H, S, torch.from_numpy(F.T.copy()), ranks=ranks)
        sent.append([ranks.bytes - before[0], ranks.messages - before[1], done.steps])
    np.save(folder / f"sent-{ranks.rank}.npy", np.array(sent))


# --- Fits ---


def fits(ranks, folder):
    """All ``FITS``; writes their codes, F and objectives."""
    X = np.load(folder / "data.npz")["X"]
    for name, (kind, params, labels) in FITS.items():
        hasher = kind(**params).fit(*own_rows(ranks, folder, labels))
        np.save(folder / f"{name}-{ranks.world}-{ranks.rank}.npy", hasher.codes_)
        np.save(folder / f"{name}-F-{ranks.world}-{ranks.rank}.npy", hasher.decision_function(X[:300]))
        if kind is DISHK:
            np.save(folder / f"{name}-objective-{ranks.world}-{ranks.rank}.npy", hasher.objective_)


def dies(ranks, folder):
    """The second process is killed in its third sweep."""
    sweep, calls = cbcd.sweep, []

    def deadly(*args, **kwargs):
        calls.append(1)
        if len(calls) == 3 and ranks.rank == 1:
            os.kill(os.getpid(), 9)
        return sweep(*args, **kwargs)

    cbcd.sweep = deadly
    DISHK(**LONG_FIT, checkpoint=folder / "state").fit(*own_rows(ranks, folder))


def resumes(ranks, folder):
    """Continues from the checkpoint of ``dies``."""
    hasher = DISHK(**LONG_FIT, checkpoint=folder / "state").fit(*own_rows(ranks, folder))
    np.save(folder / f"resumed-{ranks.rank}.npy", hasher.codes_)


def budgets(ranks, folder):
    """Different budgets, or equal budgets and very different numbers of rows: K fits in one process only."""
    data = np.load(folder / "data.npz")
    for name, cut, budget in (
        ("unequal budgets", 350, ("100MB", "100KB")),
        ("unequal rows", 650, ("250KB", "250KB")),
    ):
        mine = slice(0, cut) if ranks.rank == 0 else slice(cut, None)
        hasher = DISHK(**PAPER, memory_budget=budget[ranks.rank]).fit(data["X"][mine], data["y"][mine])
        np.save(folder / f"{name}-{ranks.rank}.npy", hasher.codes_)


def unseen_checkpoint(ranks, folder):
    """The second process does not see the checkpoint."""
    hasher = DISHK(**PAPER, checkpoint=folder / "seen").fit(*own_rows(ranks, folder))
    exists = Path.exists
    if ranks.rank == 1:
        Path.exists = lambda path, **kw: path.name != "state.dish" and exists(path, **kw)
    with rejected(r"the processes read different states: one of \d iterations \(process 0\), none \(process 1\)"):
        hasher.fit(*own_rows(ranks, folder))
    Path.exists = exists


def other_parameters(ranks, folder):
    """The processes have different parameters."""
    hasher = DISHK(**PAPER, checkpoint=folder / "other", nu=1e-4 * (1 + ranks.rank))
    with rejected("have different parameters"):
        hasher.fit(*own_rows(ranks, folder))


def generators(ranks, folder):
    """``random_state`` is a generator: the first process's counts, and a checkpoint can be resumed."""
    codes = []
    for n_iter in (1, 3):
        state = np.random.RandomState(5 if ranks.rank == 0 else 6)
        params = {**PAPER, "checkpoint": folder / "generator", "random_state": state, "init": "random"}
        codes.append(DISHK(**params, n_iter=n_iter).fit(*own_rows(ranks, folder)).codes_)
    assert not np.array_equal(*codes)
    np.save(folder / f"generator-{ranks.rank}.npy", codes[1])


def bad_arguments(ranks, folder):
    """The second process alone has a bad argument: all processes reject it."""
    data = np.load(folder / "data.npz")
    X, y, second = data["X"][:100], data["y"][:100], ranks.rank == 1
    init = np.zeros((90 if second else 100, 1), np.uint8)
    bad = X.copy()
    bad[50 if second else slice(0)] = np.nan
    for params, rows, labels, message in (
        ({"nu": -1 if second else 1}, X, y, "nu must be"),
        ({"device": "tpu" if second else "cpu"}, X, y, "device must be"),
        ({"memory_budget": "much" if second else None}, X, y, "memory_budget must be"),
        ({}, X, y[:90] if second else y, "they must be equal"),
        ({"init": init}, X, y, "init has 90 codes"),
        ({}, [bad], y, "Input X contains NaN or infinity"),
    ):
        with rejected(message):
            DISHK(n_bits=4, n_anchors=10, **params).fit(rows, labels)


def on_gpu(ranks, folder):
    """A fit of all processes on one GPU."""
    hasher = DISH(n_bits=16, n_anchors=100, device="cuda").fit(*own_rows(ranks, folder))
    np.save(folder / f"gpu-{ranks.rank}.npy", hasher.codes_)


def encode(ranks, folder):
    """Encode a file together, and score it."""
    hasher = load(folder / "m.dish")
    X, y = np.load(folder / "X.npy", mmap_mode="r"), np.load(folder / "y.npy")
    batch_jobs.BLOCK_ROWS = 100
    batch_jobs.encode_file(hasher, X, folder / "codes.npy", ranks)
    scores = evaluate_files(hasher, (X[:50], y[:50]), (X, y), None, ranks)
    np.save(folder / f"map-{ranks.rank}.npy", scores.reports["all"].map)


if __name__ == "__main__":
    world, folder, rank, *jobs = sys.argv[1:]
    os.environ |= {
        "RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": world,
        "DISH_STORE": f"{folder}/store-{'-'.join(jobs)[:50]}-{world}",
    }
    torch.set_num_threads(1)
    with parallel.from_environment(timeout_s=60) as ranks:
        for job in jobs:
            globals()[job](ranks, Path(folder))
