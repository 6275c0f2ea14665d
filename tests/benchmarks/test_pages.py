"""Tables of pages that a benchmark makes of its results."""

import importlib.util
import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("name", ["load", "index", "busy"])
def test_the_table_of_a_page_is_that_of_the_committed_results(name):
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    table = script.table(json.loads(script.RESULTS.read_text()))
    assert f"{script.MARKS[0]}\n{table}\n{script.MARKS[1]}" in script.PAGE.read_text()
