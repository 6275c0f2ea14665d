"""What one process of several does in the tests: ``python rank_worker.py JOB RANK WORLD FOLDER``."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from dish import DISH, parallel
from dish.cbcd import algorithm1
from dish.errors import RankError
from dish.io import batch_jobs as bulk
from dish.similarity import from_labels

FITS = {  # parameters of fits that must give the same codes however many processes share the rows
    "classes": ({"n_bits": 12, "n_anchors": 60}, "y"),
    "strings": ({"n_bits": 6, "n_anchors": 40, "anchors": "kmeans"}, "words"),
    "share_one": ({"n_bits": 8, "n_anchors": 50, "multilabel": "share_one", "loss": "logistic", "n_iter": 2}, "Y"),
    "counts": ({"n_bits": 8, "n_anchors": 50, "lam": 3.0, "init": "random", "n_iter": 2}, "Y"),
    "linear": ({"n_bits": 5, "kernel": "linear", "nu": 0.0, "n_iter": 2}, "y"),
    "polished": (
        {"n_bits": 8, "n_anchors": 60, "polish": 5, "n_iter": 1, "random_state": np.random.RandomState(3)},
        "y",
    ),
}


def values(kind, n):
    """Numbers to select from, hard in different ways."""
    rng = np.random.default_rng(n)
    return {
        "normal": rng.standard_normal(n),
        "ties": rng.integers(0, 5, n).astype(float),
        "constant": np.full(n, 7.0),
        "sorted": np.sort(rng.standard_normal(n)),
        "two_scales": 1e7 * rng.integers(0, 10, n) + rng.standard_normal(n),
        "outlier": np.r_[1e300, np.arange(n - 1.0)],
    }[kind]


KINDS = ("normal", "ties", "constant", "sorted", "two_scales", "outlier")


def select(ranks, folder):
    """The collective selection is a stable sort of all values."""
    for kind in KINDS:
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
    assert ranks.offset_and_total(3 + ranks.rank)[1] == sum(3 + r for r in range(ranks.world))
    arrays = ranks.gather_arrays(np.array(["a" * (ranks.rank + 1), "é"]))
    assert [a.tolist() for a in arrays] == [["a" * (r + 1), "é"] for r in range(ranks.world)]


def fits(ranks, folder):
    """Every fit, its codes to a file."""
    data = np.load(folder / "data.npz")
    mine = ranks.my_rows(len(data["X"]), 32)
    for name, (params, labels) in FITS.items():
        hasher = DISH(**params).fit(data["X"][mine], data[labels][mine])
        np.save(folder / f"{name}-{ranks.world}-{ranks.rank}.npy", hasher.codes_)
        F = hasher.decision_function(data["X"][:300])
        np.save(folder / f"{name}-F-{ranks.world}-{ranks.rank}.npy", F)
        np.save(folder / f"{name}-objective-{ranks.world}-{ranks.rank}.npy", hasher.objective_)


FORMS = {
    "packed": lambda packed, r: algorithm1.PackedColumns(packed, r),
    "dense": lambda packed, r: algorithm1.DenseColumns(packed, r),
    "device": lambda packed, r: algorithm1.TorchColumns(torch.from_numpy(packed), r),
}
SWEEPS = ("2 alike", "3 classes", "sets", "many groups")  # columns alike have the largest sums, up to n


def problem(name, n=3000, r=16):
    """Start, labels and linear terms of a sweep over n rows."""
    rng = np.random.default_rng(1)
    y = rng.integers(0, 3 if name == "3 classes" else 2, n)
    if name == "2 alike":
        H = np.repeat(np.where(y == 0, 1, -1)[:, None], r, 1) * np.where(rng.random((n, r)) < 0.03, -1, 1)
    else:
        H = rng.standard_normal((n, r))
    y = {"sets": (rng.random((n, 6)) < 0.3).astype(int), "many groups": rng.integers(0, 2999, n)}.get(name, y)
    return np.packbits(H >= 0, axis=1), y, torch.from_numpy(3 * rng.standard_normal((r, n)))


def shares(ranks, n, equal):
    """This process's rows: equal parts, or the first process nearly all and the last a few."""
    if equal or ranks.world == 1:
        return ranks.my_rows(n, 1)
    ends = [0, *(n - 40 * (ranks.world - 1 - i) for i in range(ranks.world - 1)), n]
    return slice(ends[ranks.rank], ends[ranks.rank + 1])


def sweeps(ranks, folder):
    """Two sweeps with every form of the codes, their result to a file."""
    for name in SWEEPS:
        start, y, q = problem(name)
        for equal in (True, False):
            mine = shares(ranks, len(start), equal)
            S = from_labels(y[mine], ranks=ranks)
            for form, make in FORMS.items():
                H = make(start[mine], q.shape[0])
                done = [algorithm1.sweep(H, S, q[:, mine].contiguous(), ranks=ranks) for _ in range(2)]
                value = algorithm1.objective(done[-1], S.squared_norm(), H.r)
                where = f"{name}-{form}-{'equal' if equal else 'unequal'}-{ranks.world}-{ranks.rank}"
                np.savez(folder / f"sweep-{where}.npz", codes=H.packed(), objective=value)


def on_gpu(ranks, folder):
    """A fit of all processes on one GPU."""
    data = np.load(folder / "data.npz")
    mine = ranks.my_rows(len(data["X"]), 32)
    hasher = DISH(n_bits=16, n_anchors=100, device="cuda").fit(data["X"][mine], data["y"][mine])
    np.save(folder / f"gpu-{ranks.rank}.npy", hasher.codes_)


def nan_scores(ranks, folder):
    """One process has a NaN among its values: all are told, by the selection and by the sweep."""
    values = torch.arange(5000.0, dtype=torch.float64)
    if ranks.rank == 1:
        values[77] = torch.nan
    with pytest.raises(ValueError, match="1 of them, the first in process 1"):
        parallel.kth_largest(values, 5000, ranks)
    start, y, q = problem("3 classes")
    mine = ranks.my_rows(len(start), 1)
    q = q[:, mine].contiguous()
    if ranks.rank == 0:
        q[3, 5] = torch.inf
    algorithm1.sweep(FORMS["packed"](start[mine], len(q)), from_labels(y[mine], ranks=ranks), q, ranks=ranks)


def sections(ranks, folder):
    """Errors with and without a text, before, between and after messages, also in a section of a section."""
    told = []
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
            told.append(f"{where}: {type(error).__name__}: {error}")
    assert ranks.total(torch.ones(1)) == ranks.world  # all in step still
    (folder / f"told-{ranks.rank}.txt").write_text("\n".join(told))


def disagree(ranks, folder):
    """Only the first process sees a file and sends a message about it."""
    with ranks.raise_together():
        if ranks.first:
            ranks.total(torch.ones(1))


def leaves(ranks, folder):
    """An error outside of any section, while the others wait for a message."""
    ranks.total(torch.ones(1))  # by now all are connected: before, gloo's own error would be the answer
    if ranks.rank == 1:
        raise ValueError("the true reason")
    ranks.total(torch.ones(1))


def mixed_labels(ranks, folder):
    """One process has the classes as numbers, another as strings that look the same."""
    from_labels(np.array(["1", "2"] * 5) if ranks.rank else np.array([1, 2] * 5), ranks=ranks)


def labels(ranks, folder):
    """Classes and label sets get the numbers that one process gives them."""
    rng = np.random.default_rng(0)
    Y = (rng.random((60, 9)) < 0.3).astype(int)
    given = {
        "ints": rng.integers(0, 9, 60) * 2**55 + 1,
        "floats": rng.integers(0, 9, 60).astype(np.float32),
        "strings": np.array(["a", "a\0", "é", "001", "1"], object)[rng.integers(0, 5, 60)],
        "truth": rng.random(60) < 0.5,
        "sets": Y,
    }
    mine = shares(ranks, 60, False) if ranks.world < 3 else ranks.my_rows(60, 1)
    for name, y in given.items():
        alone, S = from_labels(y), from_labels(y[mine], ranks=ranks)
        assert S.n_groups == alone.n_groups, name
        np.testing.assert_array_equal(S.row_group, alone.row_group[mine], err_msg=name)
        np.testing.assert_array_equal(S.group_sizes(), alone.group_sizes(), err_msg=name)
        np.testing.assert_array_equal(S.labels, alone.labels, err_msg=name)
        assert S.labels.dtype == alone.labels.dtype, name


def messages(ranks, folder):
    """Bytes sent by a sweep, for two numbers of rows."""
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


def dies(ranks, folder):
    """The second process is killed in its third sweep."""
    sweep, calls = algorithm1.sweep, []

    def deadly(*args, **kwargs):
        calls.append(1)
        if len(calls) == 3 and ranks.rank == 1:
            os.kill(os.getpid(), 9)
        return sweep(*args, **kwargs)

    algorithm1.sweep = deadly
    data = np.load(folder / "data.npz")
    mine = ranks.my_rows(len(data["X"]), 32)
    DISH(**FITS["classes"][0], n_iter=6, init="random", checkpoint=folder / "state").fit(
        data["X"][mine], data["y"][mine]
    )


def resumes(ranks, folder):
    """Go on where the killed ones stopped."""
    data = np.load(folder / "data.npz")
    mine = ranks.my_rows(len(data["X"]), 32)
    params = {**FITS["classes"][0], "n_iter": 6, "init": "random"}
    hasher = DISH(**params, checkpoint=folder / "state").fit(data["X"][mine], data["y"][mine])
    np.save(folder / f"resumed-{ranks.rank}.npy", hasher.codes_)


def budgets(ranks, folder):
    """Different budgets, and equal ones for very different shares: K fits on one process only."""
    data = np.load(folder / "data.npz")
    params = FITS["classes"][0]
    for name, cut, budget in (("unlike", 350, ("100MB", "100KB")), ("uneven", 650, ("250KB", "250KB"))):
        mine = slice(0, cut) if ranks.rank == 0 else slice(cut, None)
        hasher = DISH(**params, memory_budget=budget[ranks.rank]).fit(data["X"][mine], data["y"][mine])
        np.save(folder / f"budgets-{name}-{ranks.rank}.npy", hasher.codes_)


def unseen(ranks, folder):
    """A checkpoint in a folder that the second process does not have."""
    data = np.load(folder / "data.npz")
    mine = ranks.my_rows(len(data["X"]), 32)
    params = {**FITS["classes"][0], "checkpoint": folder / "seen"}
    DISH(**params).fit(data["X"][mine], data["y"][mine])
    if ranks.rank == 1:
        exists = Path.exists
        Path.exists = lambda path, **kw: path.name != "state.dish" and exists(path, **kw)
    DISH(**params).fit(data["X"][mine], data["y"][mine])


def unlike(ranks, folder):
    """Processes that were started with different parameters."""
    data = np.load(folder / "data.npz")
    mine = ranks.my_rows(len(data["X"]), 32)
    params = {**FITS["classes"][0], "checkpoint": folder / "unlike", "nu": 1e-4 * (1 + ranks.rank)}
    DISH(**params).fit(data["X"][mine], data["y"][mine])


def generators(ranks, folder):
    """A checkpoint of a fit with a generator of one's own is resumed from one in the same state."""
    data = np.load(folder / "data.npz")
    mine = ranks.my_rows(len(data["X"]), 32)
    codes = []
    for n_iter in (1, 3):
        state = np.random.RandomState(5 if ranks.rank == 0 else 6)  # that of the first process counts
        params = {**FITS["classes"][0], "checkpoint": folder / "drawn", "random_state": state, "init": "random"}
        codes.append(DISH(**params, n_iter=n_iter).fit(data["X"][mine], data["y"][mine]).codes_)
    assert not np.array_equal(*codes)


def own_mistakes(ranks, folder):
    """A mistake of the second process alone, of every kind that can be made before or between messages."""
    data = np.load(folder / "data.npz")
    X, y, second = data["X"][:100], data["y"][:100], ranks.rank == 1
    init = np.zeros((90 if second else 100, 1), np.uint8)
    for params, labels, said in (
        ({"nu": -1 if second else 1}, y, "nu must be"),
        ({"device": "tpu" if second else "cpu"}, y, "device must be"),
        ({"memory_budget": "much" if second else None}, y, "memory_budget must be"),
        ({}, y[:90] if second else y, "they must be equal"),
        ({"init": init}, y, "init has 90 codes"),
    ):
        with pytest.raises((ValueError, RankError), match=said):
            DISH(n_bits=4, n_anchors=10, **params).fit(X, labels)


def one_bad(ranks, folder):
    """Only one process has NaN in its rows: all must hear of it."""
    X = np.zeros((100, 4)) + np.arange(100)[:, None]
    if ranks.rank == 1:
        X[50] = np.nan
    DISH(n_bits=4, n_anchors=10).fit([X], np.arange(100) % 3)


def encode(ranks, folder):
    """A file encoded by all of them, and scored."""
    from dish import load

    hasher = load(folder / "m.dish")
    X, y = np.load(folder / "X.npy", mmap_mode="r"), np.load(folder / "y.npy")
    bulk.BLOCK_ROWS = 100
    bulk.encode_file(hasher, X, folder / "codes.npy", ranks)
    report = bulk.evaluate_files(hasher, (X[:50], y[:50]), (X, y), None, ranks)
    np.save(folder / f"map-{ranks.rank}.npy", report.map)


if __name__ == "__main__":
    job, rank, world, folder = sys.argv[1:]
    os.environ |= {
        "RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": world,
        "DISH_STORE": f"{folder}/store-{job}-{world}",
    }
    torch.set_num_threads(1)
    with parallel.from_environment(timeout_s=60) as ranks:
        globals()[job](ranks, Path(folder))
