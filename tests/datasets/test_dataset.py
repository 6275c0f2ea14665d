"""Splits, and data sets by name."""

import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp

from dish import datasets
from dish.datasets import Dataset, load_features, make_split
from dish.errors import DataFileError
from dish.io.readers import ColumnNames


def test_the_split_of_classes_follows_the_paper():
    y = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 600))
    split = Dataset("d", np.zeros((6000, 2)), y).split(trial=3, n_train=500)
    assert np.bincount(y[split.query]).tolist() == [100] * 10
    assert np.bincount(y[split.train]).tolist() == [50] * 10
    assert len(split.database) == 5000
    assert not set(split.query) & set(split.database)
    assert set(split.train) <= set(split.database)
    whole = make_split(y, trial=3)
    assert np.array_equal(whole.train, whole.database)
    assert np.array_equal(whole.query, split.query)  # the training size does not change the queries


def test_trials_are_seeded_and_differ():
    y = np.arange(3000) % 10
    assert np.array_equal(make_split(y, trial=1).query, make_split(y, trial=1).query)
    assert not np.array_equal(make_split(y, trial=1).query, make_split(y, trial=2).query)


def test_every_label_gets_its_queries():
    rng = np.random.default_rng(0)
    Y = (rng.random((2000, 5)) < [0.5, 0.3, 0.2, 0.1, 0.08]).astype(int)
    stored_zeros = sp.csr_array(np.ones((2000, 5), int))
    stored_zeros.data = Y.ravel().copy()
    for given in (Y, sp.csr_array(Y), stored_zeros):
        split = make_split(given, queries=20, n_train=300)
        assert len(split.query) == 100
        assert (Y[split.query].sum(0) >= 20).all()
        assert len(split.train) == 300
        assert set(split.train) <= set(split.database)
        assert len(split.database) == 1900
        assert not set(split.query) & set(split.database)


@pytest.mark.parametrize(
    ("y", "options", "message"),
    [
        (np.arange(100) % 10, {"queries": 10}, "class 0 has 10 rows"),
        (np.arange(300) % 10, {"queries": 10, "n_train": 300}, "class 0 has 30 rows.*30 training"),
        (np.eye(4)[np.arange(40) % 4], {"queries": 11}, "label 0 needs 11 query rows, but only 10"),
        (np.eye(4)[np.arange(40) % 4], {"queries": 5, "n_train": 30}, "at most the 20 database rows, got 30"),
        (np.arange(300) % 10, {"queries": 0}, "queries must be"),
        (np.arange(300) % 10, {"queries": 1, "trial": -1}, "trial must be"),
        (np.arange(300) % 10, {"queries": 1, "n_train": 0}, "n_train must be"),
    ],
)
def test_impossible_splits_are_rejected(y, options, message):
    with pytest.raises(ValueError, match=message):
        make_split(y, **options)


def test_digits_and_the_names_of_data_sets():
    data = datasets.DATASETS["digits"]()
    assert data.X.shape == (1797, 64)
    assert data.X.max() == 1
    assert len(data.split().query) == 200
    synthetic = {name for name in datasets.DATASETS if name.startswith("synthetic_")}
    assert synthetic == {"synthetic_nuswide", "synthetic_imagenet"}


def test_datasets_do_not_load_torch():
    program = "import sys, dish.datasets; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_users_split(tmp_path, digits):
    X, y, *_ = digits
    roles = np.array(["train", "train-only", "database", "query"] * 100)
    np.savez(tmp_path / "d.npz", X=X[:400], y=y[:400])
    np.save(tmp_path / "split.npy", roles)
    data = load_features(tmp_path / "d.npz", split=tmp_path / "split.npy")
    found = data.split(trial=3)
    np.testing.assert_array_equal(found.query % 4, 3)
    assert set(found.train % 4) == {0, 1}
    assert set(found.database % 4) == {0, 2}
    some = data.split(trial=3, n_train=50).train
    assert len(some) == 50
    assert set(some) < set(found.train)
    with pytest.raises(ValueError, match="at most the 200 training rows"):
        data.split(n_train=201)
    np.save(tmp_path / "split.npy", np.where(roles == "query", "test", roles))
    with pytest.raises(ValueError, match="must hold train, train-only, database, query; got test"):
        load_features(tmp_path / "d.npz", split=tmp_path / "split.npy")
    np.save(tmp_path / "split.npy", roles[:9])
    with pytest.raises(ValueError, match="one role per row, 400 in all; got 9"):
        load_features(tmp_path / "d.npz", split=tmp_path / "split.npy")
    np.save(tmp_path / "split.npy", np.full(400, "train"))
    with pytest.raises(ValueError, match="no rows with the role query"):
        load_features(tmp_path / "d.npz", split=tmp_path / "split.npy").split()


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array, "map"])
def test_centred_rows_have_the_mean_of_the_training_rows_subtracted(tmp_path, monkeypatch, kind):
    X = np.random.default_rng(0).normal(3, 1, (90, 5)).astype(np.float32)
    roles = np.array(["train", "train-only", "query"] * 30)
    np.save(tmp_path / "X.npy", X)
    stored = np.load(tmp_path / "X.npy", mmap_mode="r") if kind == "map" else kind(X)
    data = datasets.Dataset("d", stored, np.arange(90) % 2, roles=roles)
    monkeypatch.setattr("dish.datasets.dataset.BLOCK_VALUES", 35)  # blocks of seven rows
    some = np.array([4, 80, 2])
    np.testing.assert_allclose(data.centred().rows(some), X[some] - X[roles != "query"].mean(axis=0), atol=1e-5)
    np.testing.assert_array_equal(data.rows(some), X[some])
    drawn = datasets.Dataset("d", X, np.arange(90) % 2, queries=10)
    for trial in range(2):
        mean = X[drawn.split(trial).train].mean(axis=0)
        np.testing.assert_allclose(drawn.centred(trial).mean, mean, atol=1e-5)


def test_training_rows_of_the_users_split_are_drawn_equally_from_every_class():
    y = np.repeat([0, 1, 2], [200, 20, 80])
    roles = np.where(np.arange(300) % 10 == 0, "query", "train")
    draws = [datasets.Dataset("d", np.zeros((300, 2)), y, roles=roles).split(t, 60).train for t in range(2)]
    for train in draws:  # the second class has only 18 rows
        assert (np.bincount(y[train])[1], len(train)) == (18, 60)
        assert set(np.bincount(y[train])[[0, 2]]) == {21}
        assert set(roles[train]) == {"train"}
    assert not np.array_equal(*draws)


def test_rows_with_gaps_are_refused_or_left_out_with_their_roles(tmp_path):
    X, y = np.arange(24.0).reshape(12, 2), np.array(["a", "b"] * 5 + ["", "a"])
    X[3, 1] = np.nan
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    np.save(tmp_path / "roles.npy", np.array(["train", "query"] * 6))
    files = {"labels": tmp_path / "y.npy", "split": tmp_path / "roles.npy"}
    with pytest.raises(DataFileError, match=r"1 of 12 rows without a complete vector \(row 3, .*--drop-missing"):
        load_features(tmp_path / "X.npy", **files)
    with pytest.warns(UserWarning, match="rows without") as noted:
        data = load_features(tmp_path / "X.npy", **files, columns=ColumnNames(gaps=True))
    assert [str(one.message).partition(" rows ")[2] for one in noted] == [
        "without a complete vector (row 3, counted from 0) are left out",
        "without a label (row 10, counted from 0) are left out",
    ]
    kept = [i for i in range(12) if i not in (3, 10)]
    np.testing.assert_array_equal(data.X[:], X[kept])
    assert data.y.tolist() == y[kept].tolist()
    assert data.roles.tolist() == [("train", "query")[i % 2] for i in kept]
    X[:] = np.nan
    np.save(tmp_path / "X.npy", X)
    with pytest.warns(UserWarning, match="12 of 12 rows"), pytest.raises(DataFileError, match="no row has both"):
        load_features(tmp_path / "X.npy", columns=ColumnNames(gaps=True))
