"""Confidence intervals and paired tests of benchmark runs."""

import csv

import numpy as np
import pytest
from scipy import stats

from dish.experiments import bench, significance, tables
from dish.experiments.bench import AVERAGE_PRECISIONS, Run


def test_intervals_have_the_right_coverage():
    rng = np.random.default_rng(0)
    found = [significance.interval(rng.normal(0.5, 0.2, 30)) for _ in range(1000)]
    assert np.mean([low < 0.5 < high for _, low, high in found]) == pytest.approx(0.95, abs=0.02)
    assert significance.interval(np.array([0.25]))[0] == 0.25


def test_intervals_have_only_possible_values():
    perfect, poor = np.append(np.ones(30), 0.8), np.append(np.zeros(30), 0.2)
    mean, low, high = significance.interval(perfect)
    assert low < mean < 1.0 < high  # values without limits, such as times
    assert significance.interval(perfect, 0.0, 1.0) == (mean, low, 1.0)
    runs = [Run("d", method, 16) for method in ("a", "b")]
    results = {run: {AVERAGE_PRECISIONS: v.tolist()} for run, v in zip(runs, (perfect, poor), strict=True)}
    rows = significance.grid(runs, results)[1]
    assert rows[0][3].endswith(", 1.000]")
    assert "[0.000, " in rows[1][3]
    assert "[-1.000, " in rows[1][4]


def test_holm_correction():
    assert significance.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert significance.holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])
    assert significance.holm([]) == []


def test_methods_are_compared_on_the_same_queries():
    rng = np.random.default_rng(1)
    base = rng.random(200)
    runs = [Run("d", method, 16, None, trial) for method in ("a", "b", "c", "old") for trial in range(2)]
    shift = {"a": 0.0, "b": 0.05, "c": 0.0}
    results = {
        run: {"map": 0.5, AVERAGE_PRECISIONS: (base + shift[run.method] + 0.01 * rng.random(200)).tolist()}
        for run in runs
        if run.method in shift
    } | {run: {"map": 0.4} for run in runs if run.method == "old"}  # a run without average precisions
    names, rows = significance.grid(runs, results)
    assert names[0] == "method"
    assert [row[0] for row in rows] == ["a", "b", "c"]
    assert rows[0][4:] == ["–", "–"]
    assert rows[1][4].startswith("+0.050")
    assert rows[1][5] == "< 0.001"
    a, c = (significance.of_queries([run for run in runs if run.method == m], results) for m in "ac")
    assert len(a) == 400
    assert significance.paired_p(a, c) == pytest.approx(stats.ttest_1samp(a - c, 0).pvalue)
    assert significance.paired_p(a, a) == 1.0


def test_runs_store_average_precisions_and_tables_show_the_tests(tmp_path, cli):
    code, out, err = cli(
        "bench", "--data", "digits", "--methods", "lsh,pca_itq", "--bits", 16, "--results", tmp_path / "runs",
        "--table", tmp_path / "t.md",
    )  # fmt: skip
    assert code == 0, err
    assert "difference" in out
    text = (tmp_path / "t.md").read_text()
    assert "paired t-test" in text
    runs = [Run("digits", method, 16) for method in ("lsh", "pca_itq")]
    found = bench.finished(runs, tmp_path / "runs")
    for result in found.values():
        assert np.mean(result[AVERAGE_PRECISIONS]) == pytest.approx(result["map"], abs=1e-4)
    tables.write_bench(tmp_path / "t.csv", "t", runs, found)
    with (tmp_path / "t.csv").open() as file:
        line = next(csv.DictReader(file))
    assert float(line["map_low"]) < float(line["map"]) < float(line["map_high"])
    _, _, err = cli("bench", "--data", "digits", "--methods", "lsh", "--bits", 16, "--results", tmp_path / "runs")
    assert "1 finished runs reused" in err
