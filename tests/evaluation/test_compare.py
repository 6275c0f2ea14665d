"""``compare`` scores a model's codes and other rankings of the same rows."""

import numpy as np
import pytest

from dish import DISH, DISHK, metrics
from dish.evaluation import compare as module
from dish.evaluation.compare import compare

PROBABILITIES, LABELS = "class probabilities, float32", "DISH, label codes"


@pytest.fixture(scope="module")
def parts(digits):
    """Queries, database, and a model trained on the digits 0 … 7."""
    X, y, Xq, yq = digits
    X, y = X[:700].astype(np.float32), y[:700]
    model = DISH(n_bits=24, n_anchors=100).fit(X[y < 8], y[y < 8])
    return model, (Xq.astype(np.float32), yq), (X, y)


def by_name(lines, queries="all"):
    return {line.ranking: line for line in lines if line.queries == queries}


def test_scores_equal_those_of_metrics(parts):
    model, (Xq, yq), (X, y) = parts
    lines = by_name(compare(model, (Xq, yq), (X, y)))
    assert list(lines) == ["float cosine", "sign bits", "PCA-ITQ", PROBABILITIES, "DISH", LABELS]
    unit, unit_q = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (X, Xq))
    floats = metrics.l2_mean_average_precision(unit_q, yq, unit, y)
    assert lines["float cosine"].map == pytest.approx(floats, abs=1e-3)
    own = metrics.evaluate(model.transform(Xq), yq, model.transform(X), y, n_bits=24)
    ours = lines["DISH"]
    assert (ours.map, ours.precision_within_2) == pytest.approx((own.map, own.precision_within_2))
    assert (ours.precision_at[10], ours.recall_at[100]) == pytest.approx((own.precision_at[10], own.recall_at[100]))
    assert [lines[name].bytes for name in lines] == [256, 8, 3, 32, 3, 3]
    assert lines["float cosine"].precision_within_2 is None
    assert lines[PROBABILITIES].map > lines["DISH"].map > lines["PCA-ITQ"].map
    by_label = metrics.mean_average_precision(model.transform(Xq), yq, model.transform(X, labels=y), y)
    assert lines[LABELS].map == pytest.approx(by_label)


def test_rows_keep_their_number_type(parts):
    _, (Xq, yq), (X, y) = parts
    found = []
    for factor, offset in ((1.0, 0.0), (1e40, 0.0), (1.0, 1e9)):
        rows, queries = ((part.astype(np.float64) * factor + offset) for part in (X, Xq))
        model = DISHK(n_bits=16, n_anchors=50).fit(rows, y)
        found.append(by_name(compare(model, (queries, yq), (rows, y))))
    for lines in found[1:]:
        for name in ("sign bits", "PCA-ITQ", "DISHK"):
            assert lines[name].map == pytest.approx(found[0][name].map, abs=0.02)


def test_seen_and_unseen_classes_are_scored_separately(parts):
    model, queries, database = parts
    lines = compare(model, queries, database, seen=np.arange(8))
    every, seen, unseen = (by_name(lines, name)["DISH"] for name in ("all", "seen", "unseen"))
    assert seen.n_queries + unseen.n_queries == every.n_queries == 200
    mixed = (seen.map * seen.n_queries + unseen.map * unseen.n_queries) / 200
    assert every.map == pytest.approx(mixed)
    assert seen.map > 0.9 > unseen.map
    with pytest.raises(ValueError, match="seen needs exactly one label per row"):
        compare(model, (queries[0], np.eye(10)[queries[1]]), database, seen=np.arange(8))


def test_models_without_probabilities_and_multilabel_rows(parts):
    _, (Xq, yq), (X, y) = parts
    paper = DISHK(n_bits=16, n_anchors=50).fit(X, y)
    assert by_name(compare(paper, (Xq, yq), (X, y)))["logistic regression, float32"].map > 0.8
    Y, Yq = np.eye(10)[y], np.eye(10)[yq]
    multilabel = by_name(compare(paper, (Xq, Yq), (X, Y)))
    assert "logistic regression, float32" not in multilabel
    own = metrics.mean_average_precision(paper.transform(Xq), yq, paper.transform(X), y)
    assert multilabel["DISHK"].map == pytest.approx(own)


@pytest.fixture(scope="module")
def halves(digits):
    """Queries, database, and a model trained on rows 0, 2, 4, …"""
    X, y, Xq, yq = digits
    X, y = X[:600].astype(np.float32), y[:600]
    model = DISH(n_bits=16, n_anchors=60).fit(X[::2], y[::2]).remember_rows(X[::2])
    return model, (Xq[:80].astype(np.float32), yq[:80]), (X, y)


def test_rows_that_were_trained_on_are_scored_apart(halves):
    model, queries, (X, y) = halves
    lines = compare(model, queries, (X, y))
    assert [line.database for line in lines] == ["untrained"] * 6 + ["trained"] * 6
    for name, rows in (("untrained", slice(1, None, 2)), ("trained", slice(0, None, 2))):
        here = by_name([line for line in lines if line.database == name])
        q, b = model.transform(queries[0]), model.transform(X[rows])
        for ranking, base in (("DISH", b), (LABELS, model.transform(X[rows], labels=y[rows]))):
            assert here[ranking].map == pytest.approx(metrics.mean_average_precision(q, queries[1], base, y[rows]))
        assert here["DISH"].n_database == 300
        unit, unit_q = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (X[rows], queries[0]))
        expected = metrics.neighbour_recall(unit_q, q, unit, b, k=10, oversampling=(1, 10))
        assert list(here["DISH"].neighbours_at.values()) == pytest.approx(list(expected.values()))
        assert here["float cosine"].neighbours_at == {10: 1.0, 100: 1.0}
    groups = {line.group for line in lines}
    assert groups == {"all queries (80), 300 rows not trained on", "all queries (80), 300 rows that were trained on"}


def test_a_database_of_held_out_rows_is_one_part(halves):
    model, queries, (X, y) = halves
    lines = compare(model, queries, (X[1::2], y[1::2]))
    assert {(line.database, line.n_database) for line in lines} == {("untrained", 300)}


def test_a_logistic_regression_learns_no_label_of_a_row_that_was_not_trained_on(halves):
    _, queries, (X, y) = halves
    model = DISHK(n_bits=8, n_anchors=30).fit(X[::2], y[::2]).remember_rows(X[::2])
    shuffled = y.copy()
    shuffled[1::2] = np.random.default_rng(0).permutation(y[1::2])  # these labels would teach nothing
    name = "logistic regression, float32"
    true, wrong = (by_name(compare(model, queries, (X, labels))[5:])[name] for labels in (y, shuffled))
    assert (true.database, true.map) == ("trained", wrong.map)
    assert name not in by_name(compare(model, queries, (X[1::2], y[1::2])))


def test_queries_are_sampled_and_files_give_the_same_scores(halves, monkeypatch, tmp_path):
    model, queries, (X, y) = halves
    X, y = X[:200], y[:200]
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    assert compare(model, queries, (mapped, y)) == compare(model, queries, (X, y))
    monkeypatch.setattr(module, "MAX_QUERIES", 30)
    assert {line.n_queries for line in compare(model, queries, (X, y))} == {30}
    monkeypatch.setattr(module, "MAX_PAIRS", 200 * 10)
    monkeypatch.setattr(module, "FEW_QUERIES", 5)
    assert {line.n_queries for line in compare(model, queries, (X, y))} == {10}
