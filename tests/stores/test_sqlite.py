"""What only SQLiteStore has: a file that other programs may hold."""

import sys

import pytest

from dish.errors import StoreError
from dish.stores import SQLiteStore, sqlite
from helpers.codes import make_codes

apsw = pytest.importorskip("apsw", reason="SQLiteStore is NOT tested: apsw is not installed")
pytest.importorskip("sqlite_vec", reason="SQLiteStore is NOT tested: sqlite-vec is not installed")


def test_readers_do_not_wait_for_a_writer_and_writers_give_up(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite, "WAIT_MS", 50)
    B = make_codes("random", 5, 64)
    with SQLiteStore(tmp_path / "codes.db", "rows") as store:
        store.create()
        store.push(B)
        other = apsw.Connection(str(tmp_path / "codes.db"))
        other.execute("BEGIN IMMEDIATE")
        assert store.search(B[:1], 1)[1].tolist() == [[0]]
        with pytest.raises(StoreError, match="another program has been writing"):
            store.remove([0])
        other.execute("COMMIT")
        other.close()
        assert store.remove([0]) == 1


def test_other_files_are_not_opened(tmp_path):
    (tmp_path / "text.db").write_text("not a database" * 1000)
    with pytest.raises(StoreError, match=r"cannot open the SQLite file .*text\.db"):
        SQLiteStore(tmp_path / "text.db", "rows")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sqlite_vec", None)
    with pytest.raises(ImportError, match=r"pip install 'dish-hash\[sqlite\]'"):
        SQLiteStore("codes.db", "rows")
