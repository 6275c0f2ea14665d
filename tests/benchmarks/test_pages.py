"""Tables in the docs that benchmarks write."""

import importlib
import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # scripts import each other
import pages


@pytest.mark.parametrize("name", ["load", "index", "busy", "billions", "updates", "stores"])
def test_table_in_the_docs_equals_the_committed_results(name):
    script = importlib.import_module(name)
    table = script.table(json.loads(script.RESULTS.read_text()))
    assert pages.block(name, table) in pages.page(name).read_text()


def test_every_table_has_its_marks_once_on_its_page():
    for name in pages.TABLES:
        first, last = pages.block(name, "").split("\n\n")
        text = pages.page(name).read_text()
        assert (text.count(f"{first}\n"), text.count(f"\n{last}")) == (1, 1), name


def test_a_table_is_replaced_between_its_marks(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    page = tmp_path / "docs/searching.md"
    page.parent.mkdir()
    marked = "# One\n\n<!-- table: index -->\n{}\n<!-- end of table: index -->\n\nEnd.\n"
    page.write_text(marked.format("old"))
    pages.write("index", "| a |\n| b |\n")
    assert page.read_text() == marked.format("| a |\n| b |")
    page.write_text("# One\n")
    with pytest.raises(ValueError, match="must have the lines <!-- table: index -->"):
        pages.write("index", "new")
    assert page.read_text() == "# One\n"
