"""Scores of files, block by block: rows that the model was trained on apart from all others."""

import copy
import warnings

import numpy as np
import pytest

from dish import DISHK, metrics
from dish.errors import InputError
from dish.evaluation.files import evaluate_files
from dish.io import batch_jobs
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


def test_evaluate_files_equals_evaluate(data, hasher):
    X, y = data
    queries = X[::10] + 0.01, y[::10]
    scores = evaluate_files(hasher, queries, (X, y), 50, ALONE)
    assert (list(scores.reports), scores.trained_rows, scores.trained_queries) == (["all"], None, None)
    report = scores.reports["all"]
    q, codes = hasher.transform(queries[0]), hasher.transform(X)
    assert report.map == pytest.approx(metrics.mean_average_precision(q, queries[1], codes, y, k=50))
    within = metrics.precision_within_radius(q, queries[1], codes, y, radius=2)
    assert report.precision_within_2 == pytest.approx(within)


def test_tags_of_queries_and_database_share_their_columns(data, hasher):
    X, y = data
    tags = [[["a"], ["b", "c"], ["c"]][c] for c in y]
    scores = evaluate_files(hasher, (X[150:] + 0.01, tags[150:]), (X, np.array(tags, object)), None, ALONE)
    Y = np.array([[c == 0, c == 1, c >= 1] for c in y], int)
    codes = hasher.transform(X)
    expected = metrics.mean_average_precision(hasher.transform(X[150:] + 0.01), Y[150:], codes, Y)
    assert scores.reports["all"].map == pytest.approx(expected)


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


@pytest.fixture
def remembering(hasher, data):
    """The hasher, which was trained on rows 0, 3, 6, …"""
    return copy.copy(hasher).remember_rows(data[0][::3])


@pytest.mark.parametrize("k", [None, 50, 250])  # more than one part has
def test_trained_and_other_rows_are_scored_apart(data, remembering, k):
    X, y = data
    Xq, yq = X[::10] + 0.01, y[::10]
    scores = evaluate_files(remembering, (Xq, yq), (X.astype(np.float32), y), k, ALONE)
    assert list(scores.reports) == ["untrained", "trained"]
    assert (scores.trained_rows, scores.trained_queries, scores.n_database) == (100, 0, 300)
    q, b, trained = remembering.transform(Xq), remembering.transform(X), np.arange(300) % 3 == 0
    for part, rows in (("untrained", ~trained), ("trained", trained)):
        expected = metrics.evaluate(q, yq, b[rows], y[rows], n_bits=12, k=k and min(k, rows.sum()))
        assert scores.reports[part] == expected
    found = scores.to_dict()
    assert found["map"] == found["parts"]["untrained"]["map"]
    assert (found["database"], found["n_trained_rows"], found["n_all_rows"]) == ("untrained", 100, 300)


def test_a_database_of_training_rows_alone_or_without_any(data, remembering):
    X, y = data
    Xq, yq = X[::10] + 0.01, y[::10]
    for rows, part, n in ((slice(0, None, 3), "trained", 100), (slice(1, None, 3), "untrained", 0)):
        scores = evaluate_files(remembering, (Xq, yq), (X[rows], y[rows]), None, ALONE)
        assert (list(scores.reports), scores.trained_rows) == ([part], n)


def test_queries_that_were_trained_on_cause_a_warning(data, remembering):
    X, y = data
    with pytest.warns(UserWarning, match="the model was trained on 10 of 30 queries"):
        scores = evaluate_files(remembering, (X[::10], y[::10]), (X + 0.5, y), None, ALONE)
    assert scores.trained_queries == 10
