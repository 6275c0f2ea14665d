"""Rows of every kind, from memory, files and iterables, give the same codes."""

import numpy as np
import pytest
import torch

from dish import DISH, DISHK
from dish.errors import InputError
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


@pytest.mark.parametrize("cls", [DISH, DISHK])
@pytest.mark.parametrize("kind", ["map", "list", "generator", "tensor", "tensors", "npy", "shards", "parquet"])
def test_rows_of_every_kind_give_the_same_codes(kind, cls, rows, fitted, tmp_path):
    X, y = rows
    np.save(tmp_path / "X.npy", X)
    folder = tmp_path / "folder"
    folder.mkdir()
    for i, part in enumerate(pieces(X)):
        if kind == "parquet":
            table = pytest.importorskip("pyarrow").table({"x": list(part)})
            pytest.importorskip("pyarrow.parquet").write_table(table, folder / f"{i}.parquet")
        else:
            np.save(folder / f"{i}.npy", part)
    given = {
        "map": lambda: np.load(tmp_path / "X.npy", mmap_mode="r"),
        "list": lambda: pieces(X),
        "generator": lambda: (part for part in pieces(X)),
        "tensor": lambda: torch.from_numpy(X),
        "tensors": lambda: (torch.from_numpy(part) for part in pieces(X)),
        "npy": lambda: tmp_path / "X.npy",
        "shards": lambda: str(folder),
        "parquet": lambda: folder,
    }[kind]
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
