"""Encoding and scoring of files, block by block."""

import warnings

import numpy as np
import pytest

from dish import DISHK, metrics
from dish.errors import InputError
from dish.io import batch_jobs
from dish.io.batch_jobs import encode_file, evaluate_files
from dish.io.rows import RowSource
from dish.parallel import ALONE


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(1)
    y = np.repeat([0, 1, 2], 100)
    X = rng.standard_normal((300, 6)) + 3 * np.eye(3, 6)[y]
    return X, y


@pytest.fixture(scope="module")
def hasher(data):
    return DISHK(n_bits=12, n_anchors=30, n_iter=2).fit(*data)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(batch_jobs, "BLOCK_ROWS", 64)


@pytest.mark.parametrize("kind", ["array", "map", "shards"])
def test_encode_file_equals_transform(kind, data, hasher, tmp_path):
    X, _ = data
    np.save(tmp_path / "X.npy", X)
    given = {
        "array": lambda: X,
        "map": lambda: np.load(tmp_path / "X.npy", mmap_mode="r"),
        "shards": lambda: RowSource.of(np.array_split(X, [70, 71])).array,
    }[kind]
    assert encode_file(hasher, given(), tmp_path / "codes.npy", ALONE) == (300, 2)
    np.testing.assert_array_equal(np.load(tmp_path / "codes.npy"), hasher.transform(X))


def test_a_failed_encoding_leaves_no_file(data, hasher, tmp_path):
    bad = data[0].copy()
    bad[250] = np.nan
    with pytest.raises(InputError, match="row 250"):
        encode_file(hasher, bad, tmp_path / "codes.npy", ALONE)
    assert list(tmp_path.iterdir()) == []


def test_evaluate_files_equals_evaluate(data, hasher):
    X, y = data
    queries = X[::10] + 0.01, y[::10]
    report = evaluate_files(hasher, queries, (X, y), 50, ALONE)
    q, codes = hasher.transform(queries[0]), hasher.transform(X)
    assert report.map == pytest.approx(metrics.mean_average_precision(q, queries[1], codes, y, k=50))
    within = metrics.precision_within_radius(q, queries[1], codes, y, radius=2)
    assert report.precision_within_2 == pytest.approx(within)


def test_tags_of_queries_and_database_share_their_columns(data, hasher):
    X, y = data
    tags = [[["a"], ["b", "c"], ["c"]][c] for c in y]
    report = evaluate_files(hasher, (X[150:] + 0.01, tags[150:]), (X, np.array(tags, object)), None, ALONE)
    Y = np.array([[c == 0, c == 1, c >= 1] for c in y], int)
    codes = hasher.transform(X)
    expected = metrics.mean_average_precision(hasher.transform(X[150:] + 0.01), Y[150:], codes, Y)
    assert report.map == pytest.approx(expected)


def test_queries_in_the_database_cause_a_warning(data, hasher):
    X, y = data
    with pytest.warns(UserWarning, match="2 of 3 queries are also in the database"):
        evaluate_files(hasher, (np.stack([X[0], X[299], X[5] + 1]), y[[0, 299, 5]]), (X, y), None, ALONE)


@pytest.mark.parametrize("change", [lambda X: X + 1e9, lambda X: X * 1e40], ids=["offset", "large"])
def test_queries_are_compared_in_full_precision(data, change):
    X, y = data
    X = change(X)
    hasher = DISHK(n_bits=12, n_anchors=30, n_iter=2).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate_files(
            hasher, (X[::10], y[::10]), (np.delete(X, np.s_[::10], 0), np.delete(y, np.s_[::10])), 5, ALONE
        )


def test_equal_rows_of_other_number_types_are_found(data, hasher):
    X, y = data
    whole = np.round(10 * X)
    with pytest.warns(UserWarning, match="4 of 4 queries are also in the database"):
        evaluate_files(hasher, (whole[:4].astype(np.int64), y[:4]), (whole.astype(np.float32), y), None, ALONE)


def test_labels_must_match_the_rows(data, hasher):
    X, y = data
    with pytest.raises(InputError, match="the database has 300 rows but 299 labels"):
        evaluate_files(hasher, (X[:3], y[:3]), (X, y[:-1]), None, ALONE)
