"""What one process of several does in the tests: ``python rank_worker.py JOB RANK WORLD FOLDER``."""

import os
import sys
from pathlib import Path

import numpy as np
import torch

from dish import DISH, parallel
from dish.io import files as bulk
from dish.solver import cbcd

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
        np.save(folder / f"{name}-W-{ranks.world}-{ranks.rank}.npy", hasher.W_)
        np.save(folder / f"{name}-objective-{ranks.world}-{ranks.rank}.npy", hasher.objective_)


def messages(ranks, folder):
    """Bytes sent by a sweep, for two numbers of rows."""
    from dish.similarity import from_labels

    sent = []
    for n in (2000, 40_000):
        rng = np.random.default_rng(0)
        mine = ranks.my_rows(n, 1)
        y, F = rng.integers(0, 7, n)[mine], rng.standard_normal((n, 16))[mine]
        S = from_labels(y, ranks=ranks)
        H = cbcd.PackedColumns(np.packbits(F >= 0, axis=1), 16)
        before = ranks.bytes, ranks.messages
        done = cbcd.sweep(H, S, torch.from_numpy(F.T.copy()), ranks=ranks)
        sent.append([ranks.bytes - before[0], ranks.messages - before[1], done.steps])
    np.save(folder / f"sent-{ranks.rank}.npy", np.array(sent))


def dies(ranks, folder):
    """The second process is killed in its third sweep."""
    sweep, calls = cbcd.sweep, []

    def deadly(*args, **kwargs):
        calls.append(1)
        if len(calls) == 3 and ranks.rank == 1:
            os.kill(os.getpid(), 9)
        return sweep(*args, **kwargs)

    cbcd.sweep = deadly
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
    os.environ |= {"RANK": rank, "WORLD_SIZE": world, "DISH_STORE": f"{folder}/store-{job}-{world}"}
    torch.set_num_threads(1)
    with parallel.from_environment(timeout_s=60) as ranks:
        globals()[job](ranks, Path(folder))
