"""What only DuckDBStore has: one process per file."""

import subprocess
import sys

import pytest

from dish.errors import StoreError
from dish.stores import DuckDBStore

pytest.importorskip("duckdb", reason="DuckDBStore is NOT tested: duckdb is not installed")

HOLDER = """
import sys
from dish.stores import DuckDBStore
with DuckDBStore(sys.argv[1], "rows") as store:
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_told_why_it_cannot_open_the_file(tmp_path):
    file = tmp_path / "codes.db"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"ready\n"
    with pytest.raises(StoreError, match=r"one process at a time .* use SQLite or PostgreSQL"):
        DuckDBStore(file, "rows")
    holder.communicate(b"")
    DuckDBStore(file, "rows").close()


def test_other_files_are_not_opened(tmp_path):
    (tmp_path / "text.db").write_text("not a database" * 1000)
    with pytest.raises(StoreError, match=r"cannot open the DuckDB file .*text\.db"):
        DuckDBStore(tmp_path / "text.db", "rows")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(ImportError, match=r"pip install 'dish-hash\[duckdb\]'"):
        DuckDBStore("codes.db", "rows")
