"""The journal."""

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from dish.errors import JournalError, ModelMismatchError
from dish.index.hamming import HammingIndex
from dish.index.index_file import JournalMark
from dish.web.journal import Base, Journal, count_pending, journal_path

INDEX = Path("ix.dish")
MARK = JournalMark("0123456789abcdef", open=True)


def new_journal(path, n_bits=16, model=None):
    """A journal that continues the index with the mark MARK."""
    journal = Journal(path, None, INDEX)
    journal.expect(Base(MARK.id, 0, model, n_bits))
    return journal


def records_of(path, mark=MARK):
    with closing(Journal(path, mark, INDEX)) as journal:
        return journal.records


def test_records_survive_reopening(tmp_path):
    records = [{"ids": [i, "ä"], "codes": "00ff" * i, "labels": None} for i in range(5)]
    journal = new_journal(tmp_path / "j")
    for n, record in enumerate(records):
        assert journal.append(record) == n + 1
    with pytest.raises(JournalError, match="in use"):
        Journal(tmp_path / "j", MARK, INDEX)
    journal.close()
    assert records_of(tmp_path / "j") == records
    with pytest.raises(JournalError, match="closed"):
        journal.append({})


def test_second_process_is_locked_out(tmp_path):
    path = str(tmp_path / "j")
    with closing(new_journal(tmp_path / "j")):
        program = f"from dish.web.journal import Journal, Path\nJournal(Path({path!r}), None, Path('ix.dish'))"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "is in use: another server writes to this index" in done.stderr


def test_numbers_continue_after_a_new_base(tmp_path):
    base = Base("fedcba9876543210", 3, None, 16)
    with closing(new_journal(tmp_path / "j")) as journal:
        sizes = []
        for i in range(4):
            journal.append({"n": i})
            sizes.append(journal.size)
        journal.expect(base)
        journal.rebase(base)
        assert journal.size == sizes[3] - sizes[2]
        assert journal.append({"n": 4}) == 5
        journal.withdraw(5)
        assert journal.size == sizes[3] - sizes[2]
        assert journal.append({"n": "new"}) == 5
    assert records_of(tmp_path / "j", JournalMark(base.id, open=True)) == [{"n": 3}, {"n": "new"}]
    with pytest.raises(JournalError, match="another index file"):  # the file at record 0 is of the past
        records_of(tmp_path / "j")


def test_a_journal_continues_every_file_that_a_crash_can_leave(tmp_path):
    """The new index file is announced, written, and then the records are deleted."""
    later = JournalMark("fedcba9876543210", open=True)
    with closing(new_journal(tmp_path / "j")) as journal:
        for i in range(3):
            journal.append({"n": i})
        journal.expect(Base(later.id, 2, None, 16))
    assert records_of(tmp_path / "j") == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert records_of(tmp_path / "j", later) == [{"n": 2}]


@pytest.mark.parametrize("mark", [None, JournalMark("fedcba9876543210", open=False)])
def test_changes_to_another_index_are_refused(tmp_path, mark):
    with closing(new_journal(tmp_path / "j")) as journal:
        journal.append({"n": 0})
    with pytest.raises(JournalError, match=r"1 changes to another index file.*--discard-journal"):
        Journal(tmp_path / "j", mark, INDEX)
    with closing(Journal(tmp_path / "j", MARK, INDEX)) as journal:
        journal.withdraw(1)
    assert records_of(tmp_path / "j", mark) == []  # nothing is lost
    with pytest.raises(JournalError, match="another index file"):
        Journal(tmp_path / "j", JournalMark("fedcba9876543210", open=True), INDEX)


@pytest.mark.parametrize("n_bytes", [None, 0, 1])
def test_journal_that_must_exist_is_missed(tmp_path, n_bytes):
    with closing(new_journal(tmp_path / "j")) as journal:
        journal.append({"n": 0})
    (tmp_path / "j").unlink() if n_bytes is None else os.truncate(tmp_path / "j", n_bytes)
    (tmp_path / "j-wal").unlink(missing_ok=True)
    with pytest.raises(JournalError, match=r"j is (missing|empty|damaged).*--discard-journal"):
        Journal(tmp_path / "j", MARK, INDEX)
    assert (tmp_path / "j").exists() == (n_bytes is not None)  # it is not created


def test_codes_of_another_model_are_refused(tmp_path):
    with closing(new_journal(tmp_path / "j", 16, "a" * 16)) as journal:
        journal.append({"n": 0})
    with closing(Journal(tmp_path / "j", MARK, INDEX)) as journal:
        journal.check_owner("a" * 16, 16)
        with pytest.raises(ModelMismatchError, match="bbbbbbbb"):
            journal.check_owner("b" * 16, 16)
        with pytest.raises(JournalError, match="16 bits, but the model's have 8"):
            journal.check_owner("a" * 16, 8)


def test_pending_changes_are_counted_without_writing(tmp_path):
    index = tmp_path / "ix.dish"
    HammingIndex(8).save(index)
    assert count_pending(index) == 0
    with closing(Journal(journal_path(index), None, index)) as journal:
        journal.append({"ids": [1]})
    files = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()}
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(JournalError, match=r"ix\.dish\.journal\.db has 1 changes to another index"):
            count_pending(index)
    finally:
        tmp_path.chmod(0o700)
    assert files == {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()}


def test_crash_keeps_acknowledged_records(tmp_path):
    """The files as they are on disk after every append, with the log cut off anywhere."""
    with closing(new_journal(tmp_path / "j")) as journal:
        for i in range(5):
            journal.append({"n": i})
            files = {name: (tmp_path / name).read_bytes() for name in ("j", "j-wal")}
            for cut in (0, 1, 40, len(files["j-wal"]) // 2, len(files["j-wal"]) - 1, len(files["j-wal"])):
                (tmp_path / "crash").write_bytes(files["j"])
                (tmp_path / "crash-wal").write_bytes(files["j-wal"][:cut])
                assert records_of(tmp_path / "crash") == [{"n": n} for n in range(i + 1)], (i, cut)


@pytest.mark.slow
def test_damage_is_detected(tmp_path):
    records = [{"ids": [i], "codes": "00ff" * 40, "labels": None} for i in range(3)]
    with closing(new_journal(tmp_path / "j")) as journal:
        for record in records:
            journal.append(record)
    data, whole, damaged = (tmp_path / "j").read_bytes(), 0, []
    content = [data.index(json.dumps(record, separators=(",", ":")).encode()) for record in records]
    base = data.index(b'{"id": "0123456789abcdef", "last": 0') + 35
    steps = {*range(0, len(data), 31), *range(0, 100, 3), *(at + 5 for at in content), base}
    tables = data.index(b"CREATE TABLE")  # a damaged name of a table is not UTF-8: SQLite's message cannot be decoded
    steps |= set(range(tables - 40, tables + 120))
    for at in sorted(steps):
        for bit in (0x40, 0x80):
            (tmp_path / "d").write_bytes(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
            try:
                found = records_of(tmp_path / "d")
            except JournalError as error:
                damaged.append((at, str(error)))
            else:
                assert found == records, at
                whole += 1  # unused space and unused fields of SQLite
    assert all("damaged" in says or "another index" in says for _, says in damaged)
    assert {at + 5 for at in content} | {base} <= {at for at, says in damaged if "checksum" in says}
    assert len(damaged) > 20
    assert whole > 20
    with closing(sqlite3.connect(tmp_path / "j")) as connection:
        connection.execute("DELETE FROM records WHERE n = 2")
        connection.commit()
    with pytest.raises(JournalError, match="records are missing"):
        records_of(tmp_path / "j")
    (tmp_path / "j").write_bytes(b"this is no journal at all")
    with pytest.raises(JournalError, match="damaged"):
        records_of(tmp_path / "j")


def test_journal_that_cannot_be_created(tmp_path):
    (tmp_path / "j").mkdir()  # as in a folder that is read-only
    with pytest.raises(JournalError, match="j cannot be opened"):
        Journal(tmp_path / "j", None, INDEX)


def test_failed_write_leaves_nothing(tmp_path):
    with closing(new_journal(tmp_path / "j")) as journal:
        journal.append({"n": 0})
        size = journal.size
        (pages,) = journal._connection.execute("PRAGMA page_count").fetchone()
        journal._connection.execute(f"PRAGMA max_page_count = {pages}")  # the disk is full
        with pytest.raises(JournalError, match="full"):
            journal.append({"n": "x" * 100_000})
        assert (journal.size, journal.last) == (size, 1)
        journal._connection.execute("PRAGMA max_page_count = 1000000")
        journal.append({"n": 3})
    assert records_of(tmp_path / "j") == [{"n": 0}, {"n": 3}]
