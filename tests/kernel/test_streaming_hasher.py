"""Rows of every kind, checkpoints and forked processes give the same codes."""

import multiprocessing
import subprocess
import sys

import numpy as np
import pytest
import torch

from dish import DISH, DISHK
from dish.errors import DataFileError, InputError
from dish.kernel import streaming_hasher
from dish.similarity import from_labels

PARAMS = {"n_bits": 20, "n_anchors": 70, "n_iter": 3}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(3)
    y = rng.integers(0, 9, 2000)
    X = (rng.standard_normal((2000, 12)) + 1.3 * rng.standard_normal((9, 12))[y]).astype(np.float32)
    return X, y


@pytest.fixture(scope="module")
def fitted(rows):
    return {cls: cls(**PARAMS).fit(*rows) for cls in (DISH, DISHK)}


def pieces(X):
    return np.array_split(X, [100, 1700, 1701])


def stored(kind, X, tmp_path):
    """The same rows as a memory map, row blocks, tensors, or files in a folder."""
    np.save(tmp_path / "X.npy", X)
    folder = tmp_path / "folder"
    folder.mkdir(exist_ok=True)
    for i, part in enumerate(pieces(X)):
        if kind == "parquet":
            table = pytest.importorskip("pyarrow").table({"x": list(part)})
            pytest.importorskip("pyarrow.parquet").write_table(table, folder / f"{i}.parquet")
        else:
            np.save(folder / f"{i}.npy", part)
    return {
        "map": lambda: np.load(tmp_path / "X.npy", mmap_mode="r"),
        "list": lambda: pieces(X),
        "generator": lambda: (part for part in pieces(X)),
        "tensor": lambda: torch.from_numpy(X),
        "tensors": lambda: (torch.from_numpy(part) for part in pieces(X)),
        "npy": lambda: tmp_path / "X.npy",
        "shards": lambda: str(folder),
        "parquet": lambda: folder,
    }[kind]()


KINDS = ("map", "list", "generator", "tensor", "tensors", "npy", "shards", "parquet")


@pytest.mark.parametrize(("kind", "cls"), [*((kind, DISHK) for kind in KINDS), ("generator", DISH), ("shards", DISH)])
def test_rows_of_every_kind_give_the_same_codes(kind, cls, rows, fitted, tmp_path):
    X, y = rows

    def given():
        return stored(kind, X, tmp_path)

    whole = fitted[cls]
    hasher = cls(**PARAMS).fit(given(), y)
    np.testing.assert_array_equal(hasher.codes_, whole.codes_)
    F = whole.decision_function(X)
    np.testing.assert_allclose(hasher.decision_function(X), F, atol=1e-3 * abs(F).max())
    assert hasher.n_features_in_ == 12
    np.testing.assert_array_equal(hasher.transform(given()), hasher.transform(X))
    np.testing.assert_allclose(hasher.decision_function(given()), hasher.decision_function(X), atol=1e-5)


@pytest.mark.parametrize("kind", ["float16", ">f4", "longdouble", "uint16", "bfloat16", "grad"])
def test_types_that_torch_or_numpy_lack_give_the_same_codes(kind, rows, tmp_path):
    X, y = rows
    X = np.round(X * 8) + 100  # whole numbers that all of these types hold
    if kind in ("bfloat16", "grad"):
        dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
        given = [torch.from_numpy(part).to(dtype).requires_grad_(kind == "grad") for part in pieces(X)]
        X = np.concatenate([part.detach().float().numpy() for part in given])
    else:
        np.save(tmp_path / "X.npy", X.astype(kind))
        given = tmp_path / "X.npy"
    np.testing.assert_array_equal(DISHK(**PARAMS).fit(given, y).codes_, DISHK(**PARAMS).fit(X, y).codes_)


def test_bad_rows_are_named(rows, tmp_path):
    X, y = rows
    for i, part in enumerate(pieces(X)):
        part = part.copy()
        if i == 3:
            part[77] = np.nan
        np.save(tmp_path / f"{i}.npy", part)
    with pytest.raises(InputError, match=r"X contains NaN or infinity in row 1,778 \(.*3\.npy\)"):
        DISHK(**PARAMS).fit(tmp_path, y)
    with pytest.raises(InputError, match="row blocks must have the same number of columns"):
        DISHK(**PARAMS).fit(iter([X[:5], X[5:, :3]]), y)
    with pytest.raises(InputError, match="no row blocks"):
        DISHK(**PARAMS).fit(iter([]), y)
    with pytest.raises(InputError, match="X has 2000 rows but y has 1999"):
        DISHK(**PARAMS).fit(iter([X]), y[:-1])


def test_labels_and_similarities_with_a_path(rows, fitted, tmp_path):
    X, y = rows
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    codes = fitted[DISHK].codes_
    np.testing.assert_array_equal(DISHK(**PARAMS).fit(tmp_path / "X.npy", tmp_path / "y.npy").codes_, codes)
    np.testing.assert_array_equal(DISHK(**PARAMS).fit(tmp_path / "X.npy", from_labels(y)).codes_, codes)
    with pytest.raises(InputError, match="X has 2000 rows but y has 1500"):
        DISHK(**PARAMS).fit(tmp_path / "X.npy", y[:1500])
    bad = np.load(tmp_path / "X.npy", mmap_mode="r+")
    bad[1100] = np.nan
    with pytest.raises(InputError, match=r"NaN or infinity in row 1,100$"):
        fitted[DISHK].transform(tmp_path / "X.npy")


@pytest.mark.parametrize("given", ["2 apples", 0])
def test_bad_memory_budgets_are_named(given, rows):
    with pytest.raises(InputError, match="memory_budget must be"):
        DISHK(**PARAMS, memory_budget=given).fit(*rows)


def test_large_arrays_are_checked_while_they_are_read(rows, fitted, monkeypatch):
    X, y = rows
    monkeypatch.setattr(streaming_hasher, "LARGE", 1000)
    for given in (X, torch.from_numpy(X)):
        assert not streaming_hasher.open_unchecked(given).checked
        np.testing.assert_array_equal(DISHK(**PARAMS).fit(given, y).codes_, fitted[DISHK].codes_)
    bad = X.copy()
    bad[1999, 3] = np.nan
    with pytest.raises(InputError, match="NaN or infinity in row 1,999"):
        DISHK(**PARAMS).fit(bad, y)


def test_names_of_features_are_forgotten_by_a_fit_without_them(rows):
    pd = pytest.importorskip("pandas")
    X, y = rows
    hasher = DISHK(**PARAMS).fit(pd.DataFrame(X, columns=[f"f{i}" for i in range(12)]), y)
    assert len(hasher.feature_names_in_) == 12
    hasher.fit(iter([X]), y)
    assert not hasattr(hasher, "feature_names_in_")


def test_the_budget_for_K_is_what_F_and_the_codes_leave(rows):
    hasher = DISHK(n_bits=64, memory_budget="10MB")
    room = hasher._room_for_K(streaming_hasher.open_unchecked(iter([rows[0]])))
    assert room == 10_000_000 - 2000 * (64 * 4 + 32 + 32)
    assert DISHK(n_bits=64, memory_budget=1)._room_for_K(streaming_hasher.open_unchecked(iter([rows[0]]))) == 1


# --- Checkpoints; test_fit_state.py has the rest ---


def test_a_fit_resumes_from_its_checkpoint(rows, tmp_path, capsys):
    X, y = rows
    whole = DISHK(n_bits=8, n_anchors=20, n_iter=3).fit(X[:600], y[:600])
    DISHK(n_bits=8, n_anchors=20, n_iter=1, checkpoint=tmp_path / "c").fit(X[:600], y[:600])
    again = DISHK(n_bits=8, n_anchors=20, n_iter=3, checkpoint=tmp_path / "c", verbose=1).fit(X[:600], y[:600])
    assert "resumes after 1 iteration" in capsys.readouterr().err
    np.testing.assert_array_equal(again.codes_, whole.codes_)
    np.testing.assert_array_equal(again.transform(X), whole.transform(X))
    with pytest.raises(InputError, match=f"has {whole.n_iter_} iterations, more than n_iter=0"):
        DISHK(n_bits=8, n_anchors=20, n_iter=0, checkpoint=tmp_path / "c").fit(X[:600], y[:600])


OTHER_ROWS = {
    "shifted": lambda X, free: X + 1,
    "one value": lambda X, free: changed(X, free[:1], lambda x: np.nextafter(x, np.float32(9))),
    "two rows swapped": lambda X, free: changed(X, free[:2], lambda x: x[::-1]),
    "rows in another order": lambda X, free: changed(X, free, lambda x: x[::-1]),
}


def changed(X, rows, change):
    Z = X.copy()
    Z[rows] = change(X[rows])
    return Z


@pytest.mark.parametrize("cls", [DISHK])
@pytest.mark.parametrize("other", OTHER_ROWS.values(), ids=OTHER_ROWS)
def test_a_checkpoint_of_other_rows_is_refused(other, cls, rows, tmp_path):
    """Also if labels, anchors and means are the same."""
    X, y = rows
    hasher = cls(n_bits=8, n_anchors=20, n_iter=1, checkpoint=tmp_path / "c").fit(X, y)
    free = np.flatnonzero((y == y[0]) & ~(X[:, None] == hasher.anchors_).all(2).any(1))
    Z = other(X, free)
    with pytest.raises(DataFileError, match=r"belongs to a fit with .* other training rows: remove it"):
        hasher.fit(Z, y)
    hasher.fit(Z, y, resume=False)  # replaces it
    hasher.fit(Z, y)


@pytest.mark.parametrize("kind", ["map", "list", "generator", "tensor", "npy", "shards"])
def test_a_checkpoint_is_of_values_however_they_are_stored(kind, rows, tmp_path, capsys):
    X, y = rows
    params = {"n_bits": 8, "n_anchors": 20, "checkpoint": tmp_path / "c"}
    DISHK(**params, n_iter=1).fit(X, y)
    DISHK(**params, n_iter=2, verbose=1).fit(stored(kind, X, tmp_path), y)
    assert "resumes after 1 iteration" in capsys.readouterr().err


# --- Forked processes; several processes are tested in tests/parallel/test_distributed_fit.py ---


FORKED = """
import multiprocessing
import numpy as np, torch
torch.set_num_threads(4)
from dish import DISH
rng = np.random.default_rng(0)
y = rng.integers(0, 5, 6000)
X = (rng.standard_normal((6000, 32)) + 2 * rng.standard_normal((5, 32))[y]).astype(np.float32)
Y = np.eye(5, dtype=int)[y] | np.eye(5, dtype=int)[(y * 2) % 5]
params = dict(n_bits=16, n_anchors=200, device="cpu", n_iter=1)
hasher = DISH(**params).fit(X, y)
DISH(**params).fit(X, Y)  # also numba's threads
codes = hasher.transform(X)

def child(queue):
    again, several = DISH(**params).fit(X, y), DISH(**params).fit(X, Y)
    queue.put((float((hasher.transform(X) == codes).mean()), len(again.codes_), len(several.codes_)))

context = multiprocessing.get_context("fork")
queue = context.Queue()
process = context.Process(target=child, args=(queue,))
process.start()
try:
    same, *fitted = queue.get(timeout=120)
finally:
    process.kill()
assert same > 0.999 and fitted == [6000, 6000], (same, fitted)
"""


@pytest.mark.long
@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system does not fork")
def test_fit_and_transform_work_in_a_forked_process_with_a_warning():
    """A forked process has none of its parent's threads: without care it would wait for them forever."""
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "get_context('spawn')" in done.stderr
