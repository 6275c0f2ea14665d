import json
from pathlib import Path

import numpy as np
import pytest

from dish import datasets, metrics
from dish.experiments import bench, paper, report
from dish.experiments.bench import Run
from dish.io.rows import Rows


@pytest.fixture(scope="module")
def data():
    return {"digits": datasets.digits()}


def test_a_run_measures_what_it_says(data):
    run = Run("digits", "dish", 16, None, 0, (("n_anchors", 50),))
    result = bench.execute(run, data["digits"])
    split = data["digits"].split(0)
    X, y = bench.unit_rows(data["digits"].rows()), data["digits"].y
    hasher = bench.make_method(run).fit(X[split.train], y[split.train])
    q, b = hasher.transform(X[split.query]), hasher.transform(X[split.database])
    yq, yb = y[split.query], y[split.database]
    assert result["map"] == pytest.approx(metrics.mean_average_precision(q, yq, b, yb))
    learned = metrics.mean_average_precision(q, yq, hasher.codes_, y[split.train])
    assert result["map_learned_codes"] == pytest.approx(learned)
    assert result["n_database"] == len(split.database)
    assert result["fit_s"] > 0
    assert set(result["precision_at"]) == {"1", "2", "5", "10", "20", "50", "100", "200", "500", "1000"}


def test_finished_runs_are_skipped_and_failures_recorded(data, tmp_path, monkeypatch):
    good = Run("digits", "lsh", 8)
    bad = Run("digits", "lsh", 8, params=(("n_bits_typo", 3),))
    results = bench.run_all([bad, good], tmp_path, datasets=data)
    assert "n_bits_typo" in results[bad]["failed"]
    assert results[good]["map"] > 0.1
    assert {"cpu", "versions", "commit"} <= set(results[good]["environment"])
    definition = json.loads(good.path(tmp_path).read_text())["definition"]
    assert (definition["data"], definition["method"], definition["synthetic"]) == ("digits", "lsh", False)

    def never(*_):
        raise AssertionError("a finished run was run again")

    monkeypatch.setattr(bench, "execute", never)
    assert bench.run_all([bad, good], tmp_path, datasets=data) == results
    again = bench.run_all([good], tmp_path, datasets=data, force=True)
    assert "a finished run was run again" in again[good]["failed"]


def test_interrupting_loses_nothing(data, tmp_path, monkeypatch):
    runs = [Run("digits", "lsh", 8, trial=t) for t in range(3)]
    real, calls = bench.execute, []

    def stop_at_the_second(run, dataset):
        calls.append(run)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(run, dataset)

    monkeypatch.setattr(bench, "execute", stop_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        bench.run_all(runs, tmp_path, datasets=data)
    assert [run.path(tmp_path).exists() for run in runs] == [True, False, False]
    monkeypatch.setattr(bench, "execute", lambda run, dataset: (calls.append(run), real(run, dataset))[1])
    bench.run_all(runs, tmp_path, datasets=data)
    assert calls == [runs[0], runs[1], runs[1], runs[2]]


def test_different_definitions_have_different_files(tmp_path):
    runs = [
        Run("a", "dish", 8),
        Run("b", "dish", 8),
        Run("a", "lsh", 8),
        Run("a", "dish", 9),
        Run("a", "dish", 8, 100),
        Run("a", "dish", 8, trial=1),
        Run("a", "dish", 8, params=(("nu", 1e-3),)),
        Run("a", "dish", 8, params=(("nu", 1e-4),)),
        Run("a", "dish", 8, cut=5),
        Run("a", "dish", 8, n_queries=5),
    ]
    assert len({run.path(tmp_path) for run in runs}) == len(runs)


def test_l2_and_unknown_names(data):
    assert 0.5 < bench.execute(Run("digits", "l2", 8), data["digits"])["map"] < 0.8
    with pytest.raises(ValueError, match="method must be one of dish"):
        bench.make_method(Run("digits", "magic", 8))
    with pytest.raises(ValueError, match="data must be"):
        bench.load_data("nothing-here")


def test_unit_rows():
    np.testing.assert_allclose(bench.unit_rows(np.array([[3.0, 4.0], [0, 0]])), [[0.6, 0.8], [0, 0]])


@pytest.fixture
def small(monkeypatch, data):
    """The first table shrunk to digits, a few lines and one trial."""
    lines = (
        paper.Line("DISH-K", "dish", None, (0.9, 0.95), 3.0, params=(("n_anchors", 40),)),
        paper.Line("Other", "not_there", None, (0.5, 0.6), 1.0),
        paper.Line("LSH", "lsh", 500, bits=(12,)),
    )
    table = paper.Table("Table 1. digits: MAP", "digits", (8, 12), 12, lines, note="a note")
    monkeypatch.setattr(paper, "TABLES", {"table1": table})
    monkeypatch.setattr(paper, "SENSITIVITY_DATA", "digits")
    monkeypatch.setattr(paper, "SENSITIVITY_TRAIN", 200)
    monkeypatch.setattr(paper, "SENSITIVITY_BITS", 8)
    monkeypatch.setattr(paper, "NUS", (1e-4, 1e-2))
    monkeypatch.setattr(paper, "ITERATIONS", (0, 1))
    return table


def test_reproduce_writes_tables_figures_and_a_page(small, tmp_path):
    said = []
    page = report.reproduce("all", tmp_path / "runs", tmp_path / "out", trials=2, say=said.append)
    text = (tmp_path / "out" / "table1.md").read_text()
    runs = [small.run(small.lines[0], 8, t) for t in range(2)]
    found = [json.loads(run.path(tmp_path / "runs").read_text())["map"] for run in runs]
    assert f"{np.mean(found):.3f} ± {np.std(found):.3f} (0.900)" in text
    assert "| Other | all | – (0.500) | – (0.600) | – (1) |" in text
    assert "learned codes as the database" in text
    for name in ("table1_curves.png", "table1_curves.svg", "sensitivity.png", "sensitivity.svg"):
        assert (tmp_path / "out" / name).stat().st_size > 5000
    content = page.read_text()
    assert content.count("<svg") == 2
    assert "a note" in content
    assert "http://" not in content.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )
    assert any("digits/dish" in line for line in said)


def test_figures_come_from_finished_runs_and_say_what_is_missing(small, tmp_path):
    said = []
    report.reproduce("figures", tmp_path / "runs", tmp_path / "out", trials=1, say=said.append)
    assert any("no runs of table1 yet" in line for line in said)
    assert not (tmp_path / "out" / "table1_curves.png").exists()
    assert (tmp_path / "out" / "sensitivity.png").exists()


def test_a_synthetic_stand_in_is_named_in_the_title(small):
    run = small.run(small.lines[0], 8, 0)
    for synthetic in (True, False):
        results = {run: {"definition": {"data": "digits", "synthetic": synthetic}, "map": 0.5, "fit_s": 1.0}}
        assert ("a synthetic stand-in" in report.markdown(small, results, 1)) == synthetic


def test_reproduce_names_what_there_is(tmp_path):
    with pytest.raises(ValueError, match="table1, table2"):
        report.reproduce("table9", tmp_path, tmp_path)


def test_the_papers_tables_are_complete():
    for table in paper.TABLES.values():
        for line in table.lines:
            assert not line.map or len(line.map) == len(table.bits)
    assert len(paper.sensitivity_runs(5)) == 5 * (len(paper.NUS) + 2 * len(paper.ITERATIONS))


def test_deep_tables_without_a_gpu_show_what_is_finished(small, tmp_path, monkeypatch):
    import dataclasses

    monkeypatch.setattr(paper, "TABLES", {"table1": dataclasses.replace(small, deep=True)})
    monkeypatch.setattr(report, "_has_gpu", lambda: False)
    said = []
    report.reproduce("table1", tmp_path / "runs", tmp_path / "out", trials=1, say=said.append)
    assert any("no GPU here" in line for line in said)
    assert not (tmp_path / "runs").exists()


def test_part_of_the_database(data):
    whole, part = (bench.execute(Run("digits", "lsh", 16, n_database=n), data["digits"]) for n in (None, 300))
    assert whole["map"] != part["map"]
    assert Run("digits", "lsh", 16, n_database=300).path(Path("x")).stem.endswith("database300")


def test_methods_by_kind_of_data_and_the_papers_training_sizes():
    vectors, images = bench.method_names(), bench.method_names(images=True)
    assert {"dish", "ksh", "l2"} <= set(vectors)
    assert {"dish_d", "cnnbh", "ftde"} <= set(images)
    assert not set(vectors) & set(images)
    assert bench.paper_sizes("cifar10", "ksh") == [5000, None]
    assert bench.paper_sizes("cifar10", "minhash") == [None]


def test_rows_that_would_fill_the_memory_are_streamed(data, monkeypatch):
    run = Run("digits", "dish", 16, None, 0, (("n_anchors", 50),))
    whole = bench.execute(run, data["digits"])
    monkeypatch.setattr("dish.machine.free_memory", lambda: 1000)
    monkeypatch.setattr("dish.machine.memory_budget", lambda _: 10**9)
    split = data["digits"].split(0)
    assert isinstance(bench.training_rows(run, data["digits"], split.train), Rows)
    streamed = bench.execute(run, data["digits"])
    assert streamed["map"] == pytest.approx(whole["map"], abs=1e-9)
