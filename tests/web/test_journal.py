"""The journal."""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from dish.errors import JournalError
from dish.web.journal import Journal, count_pending


def records_of(path):
    with closing(Journal(path)) as journal:
        return journal.records


def test_records_survive_reopening(tmp_path):
    records = [{"ids": [i, "ä"], "codes": "00ff" * i, "labels": None} for i in range(5)]
    journal = Journal(tmp_path / "j")
    for n, record in enumerate(records):
        assert journal.append(record) == n + 1
    with pytest.raises(JournalError, match="in use"):
        Journal(tmp_path / "j")
    with pytest.raises(JournalError, match="in use"):
        count_pending(tmp_path / "j")
    journal.close()
    assert records_of(tmp_path / "j") == records
    assert count_pending(tmp_path / "j") == 5
    with pytest.raises(JournalError, match="closed"):
        journal.append({})


def test_second_process_is_locked_out(tmp_path):
    with closing(Journal(tmp_path / "j")):
        program = f"from dish.web.journal import Journal\nJournal({str(tmp_path / 'j')!r})"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "is in use: another server writes to this index" in done.stderr


def test_numbers_continue_after_forgetting(tmp_path):
    with closing(Journal(tmp_path / "j")) as journal:
        sizes = []
        for i in range(4):
            journal.append({"n": i})
            sizes.append(journal.size)
        journal.forget(3)
        assert journal.size == sizes[3] - sizes[2]
        assert journal.append({"n": 4}) == 5
        journal.withdraw(5)
        assert journal.append({"n": "new"}) == 5
    assert records_of(tmp_path / "j") == [{"n": 3}, {"n": "new"}]
    with closing(Journal(tmp_path / "j")) as journal:
        journal.forget(journal.last)
        assert journal.size == 0
    assert records_of(tmp_path / "j") == []
    assert count_pending(tmp_path / "j") == 0


def test_crash_keeps_acknowledged_records(tmp_path):
    """The files as they are on disk after every append, with the log cut off anywhere."""
    with closing(Journal(tmp_path / "j")) as journal:
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
    with closing(Journal(tmp_path / "j")) as journal:
        for record in records:
            journal.append(record)
    data, whole, damaged = (tmp_path / "j").read_bytes(), 0, []
    content = [data.index(json.dumps(record, separators=(",", ":")).encode()) for record in records]
    steps = {*range(0, len(data), 31), *range(0, 100, 3), *(at + 5 for at in content)}
    for at in sorted(steps):
        (tmp_path / "d").write_bytes(data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :])
        try:
            found = records_of(tmp_path / "d")
        except JournalError as error:
            damaged.append((at, str(error)))
        else:
            assert found == records, at
            whole += 1  # unused space and unused fields of SQLite
    assert all("damaged" in says for _, says in damaged)
    assert {at + 5 for at in content} <= {at for at, says in damaged if "checksum" in says}
    assert len(damaged) > 20
    assert whole > 20
    with closing(sqlite3.connect(tmp_path / "j")) as base:
        base.execute("DELETE FROM records WHERE n = 2")
        base.commit()
    with pytest.raises(JournalError, match="records are missing"):
        Journal(tmp_path / "j")
    (tmp_path / "j").write_bytes(b"this is no journal at all")
    with pytest.raises(JournalError, match="damaged"):
        Journal(tmp_path / "j")
    with pytest.raises(JournalError, match="damaged"):
        count_pending(tmp_path / "j")


def test_failed_write_leaves_nothing(tmp_path):
    with closing(Journal(tmp_path / "j")) as journal:
        journal.append({"n": 0})
        size = journal.size
        (pages,) = journal._base.execute("PRAGMA page_count").fetchone()
        journal._base.execute(f"PRAGMA max_page_count = {pages}")  # the disk is full
        with pytest.raises(JournalError, match="full"):
            journal.append({"n": "x" * 100_000})
        assert (journal.size, journal.last) == (size, 1)
        journal._base.execute("PRAGMA max_page_count = 1000000")
        journal.append({"n": 3})
    assert records_of(tmp_path / "j") == [{"n": 0}, {"n": 3}]
