"""benchmarks/literal.py on digits."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

PATH = Path(__file__).parents[2] / "benchmarks" / "literal.py"


@pytest.fixture
def literal():
    spec = importlib.util.spec_from_file_location("literal", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def call(literal, tmp_path, monkeypatch):
    """Run the script on digits; returns what it wrote."""
    X, y = load_digits(return_X_y=True)
    np.savez(tmp_path / "digits.npz", X=X, y=y)

    def run(*options):
        out = tmp_path / "out.json"
        data = ["--data", str(tmp_path / "digits.npz"), "--anchors", "40", "--output", str(out)]
        monkeypatch.setattr(sys, "argv", ["literal.py", *data, *options])
        literal.main()
        return json.loads(out.read_text())

    return run


@pytest.mark.slow
def test_every_variant_is_fitted_once_and_compared_on_the_same_rows(literal, call, monkeypatch, capsys):
    first = call("--bits", "8", "--trials", "1")
    assert [run["variant"] for run in first["runs"]] == list(literal.VARIANTS)
    assert not [run for run in first["runs"] if "failed" in run]
    objectives = {run["variant"]: run["objective"] for run in first["runs"]}
    assert objectives["start"] == objectives["literal start"] == []
    assert objectives["init"] != objectives["default"]
    assert all(run["map"] > 0.2 for run in first["runs"])
    alone = next(row for row in first["differences"] if row["variant"] == "init")
    assert len(alone["map_difference"]) == 1  # one trial has no interval
    assert "nan" not in capsys.readouterr().out.lower()
    second = call("--bits", "8", "--trials", "2", "--only", "default,init")
    assert second["runs"][: len(first["runs"])] == first["runs"]
    assert [(run["trial"], run["seed"], run["variant"]) for run in second["runs"][len(first["runs"]) :]] == [
        (1, 1, "default"),
        (1, 1, "init"),
    ]
    gaps = [a["map"] - b["map"] for a, b in zip(*(runs_of(second, v) for v in ("init", "default")), strict=True)]
    row = next(row for row in second["differences"] if row["variant"] == "init")
    mean, low, high = row["map_difference"]
    assert mean == pytest.approx(np.mean(gaps))
    assert low < mean < high
    assert f"{mean:+.4f} [{low:+.4f}, {high:+.4f}]" in capsys.readouterr().out


def runs_of(content, variant):
    return sorted((run for run in content["runs"] if run["variant"] == variant), key=lambda run: run["trial"])


def test_a_failed_fit_is_recorded_and_not_compared(call):
    found = call("--bits", "4", "--trials", "1", "--only", "default,ridge", "--anchors", "797")
    by_name = {run["variant"]: run for run in found["runs"]}
    assert "KᵀK is singular" in by_name["ridge"]["failed"]
    assert [row["variant"] for row in found["differences"]] == ["default"]


def test_runs_of_another_commit_are_refused(literal, call, monkeypatch):
    call("--bits", "4", "--trials", "1", "--only", "start")
    monkeypatch.setattr(literal.machine, "environment", lambda: {"commit": "another"})
    with pytest.raises(SystemExit, match=r"has runs of commit .*, and this is commit another: move it away"):
        call("--bits", "4", "--trials", "1", "--only", "start")


def test_an_unknown_variant_is_refused(call, capsys):
    with pytest.raises(SystemExit):
        call("--only", "default,starts")
    assert "no variant starts; there are default, init" in capsys.readouterr().err
