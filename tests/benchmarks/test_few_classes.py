"""benchmarks/few_classes.py on digits, and the features of text that benchmarks/text_features.py writes for it."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def script(name, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)  # scripts import each other
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def few(monkeypatch):
    return script("few_classes", monkeypatch)


def rows_of(part):
    return {row.tobytes() for row in part.X}


@pytest.mark.parametrize("own_queries", [True, False])
def test_a_draw_separates_training_rows_database_and_queries(few, digits, own_queries):
    X, y, Xq, yq = digits
    rows, queries = few.Part(X, y), few.Part(Xq, yq) if own_queries else None
    parts = few.draw(rows, queries, 3, 8, seed=1)
    classes, counts = np.unique(parts.train.y, return_counts=True)
    assert counts.tolist() == [8, 8, 8]
    sets = [rows_of(part) for part in (parts.train, parts.base, parts.queries)]
    assert not sets[0] & sets[1]
    assert not (sets[0] | sets[1]) & sets[2]
    n = np.isin(y, classes).sum()
    if own_queries:
        assert len(parts.base.X) == n - 24
        np.testing.assert_array_equal(parts.queries.X, Xq[np.isin(yq, classes)])
    else:
        assert len(parts.base.X) + len(parts.queries.X) == n - 24
    others = few.draw(rows, queries, 3, 8, seed=2)
    assert rows_of(others.train) != sets[0]


def test_classes_without_enough_rows_or_queries_are_not_drawn(few):
    y = np.repeat(np.arange(4), [9, 8, 9, 9])
    rows, queries = few.Part(np.eye(len(y)), y), few.Part(np.eye(3), np.array([0, 1, 2]))
    assert set(few.draw(rows, queries, 2, 8, seed=0).train.y) == {0, 2}
    with pytest.raises(SystemExit, match="--classes 3: only 2 classes have more than --rows 8 rows and a query"):
        few.draw(rows, queries, 3, 8, seed=0)


def test_means_are_over_draws_and_failed_methods_have_none(few, digits, tmp_path, monkeypatch):
    X, y, Xq, yq = digits
    split = np.repeat([0, 2], [len(X), len(Xq)])
    np.savez(tmp_path / "digits.npz", X=np.concatenate([X, Xq]), y=np.concatenate([y, yq]), split=split)
    out = tmp_path / "few.json"
    asked = ["--methods", "cosine,ceiling,dish_0,agh", "--draws", "2", "--bits", "100", "--output", str(out)]
    monkeypatch.setattr(sys, "argv", ["few_classes.py", str(tmp_path / "digits.npz"), *asked])
    few.main()
    content = json.loads(out.read_text())
    assert content["environment"]["versions"]
    maps = {m: [run.get("map") for run in content["runs"] if run["method"] == m] for m in ("cosine", "dish_0", "agh")}
    assert maps["agh"] == [None, None]
    assert "n_bits" in next(run["failed"] for run in content["runs"] if run["method"] == "agh")
    assert set(content["means"]) == {"cosine", "dish_0"}  # there is no ceiling here
    a, b = maps["dish_0"]
    assert content["means"]["dish_0"]["map"] == pytest.approx((a + b) / 2)
    assert content["means"]["dish_0"]["standard_error"] == pytest.approx(abs(a - b) / 2)
    assert content["means"]["dish_0"]["map"] > content["means"]["cosine"]["map"] > 0.3


def test_text_features_are_those_of_the_training_rows(tmp_path, monkeypatch):
    text = script("text_features", monkeypatch)
    train = ["red apple pie", "red apple tree", "fast blue car", "blue car engine", "pie tree", "fast engine"]
    test = ["apple pie", "zebra zebra"]
    for name, texts in (("a", train), ("b", test)):
        lines = [f"{'food' if 'p' in t else 'cars'}\t{t}" for t in texts]
        (tmp_path / f"{name}.tab").write_text("\n".join(["Category\tText", "d\tstring", "class\t", "\t", *lines, ""]))
    paths = [str(tmp_path / name) for name in ("a.tab", "b.tab", "ab.npz")]
    monkeypatch.setattr(sys, "argv", ["text_features.py", *paths, "--features", "2"])
    text.main()
    file = np.load(paths[2])
    assert file["split"].tolist() == [0] * 6 + [2] * 2
    assert file["names"][file["y"]].tolist() == ["food", "food", "cars", "cars", "food", "cars", "food", "cars"]
    X = file["X"].astype(np.float32)
    np.testing.assert_allclose(np.linalg.norm(X, axis=1), [1] * 7 + [0], atol=1e-3)  # no training row has "zebra"
    assert X[6] @ X[0] > 0.9 > 0.5 > X[6] @ X[2]
