"""Tables in the docs that benchmarks write."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("name", ["load", "index", "busy", "billions", "updates", "stores"])
def test_table_in_the_docs_equals_the_committed_results(name, monkeypatch):
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, script)  # dataclasses look their module up
    spec.loader.exec_module(script)
    table = script.table(json.loads(script.RESULTS.read_text()))
    assert f"{script.MARKS[0]}\n{table}\n{script.MARKS[1]}" in script.PAGE.read_text()
