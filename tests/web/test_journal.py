"""The journal, and the journals of earlier versions."""

import json
import shutil
import sqlite3
import struct
import subprocess
import sys
import zlib
from contextlib import closing

import pytest

from dish.errors import ModelFileError
from dish.web.journal import Journal, JournalError, pending


def records_of(path, old=None):
    with closing(Journal(path, old)) as journal:
        return journal.records


def test_the_journal_gives_back_what_it_took(tmp_path):
    records = [{"ids": [i, "ä"], "codes": "00ff" * i, "labels": None} for i in range(5)]
    journal = Journal(tmp_path / "j")
    for n, record in enumerate(records):
        assert journal.append(record) == n + 1
    with pytest.raises(JournalError, match="in use"):
        Journal(tmp_path / "j")
    with pytest.raises(JournalError, match="in use"):
        pending(tmp_path / "j")
    journal.close()
    assert records_of(tmp_path / "j") == records
    assert pending(tmp_path / "j") == 5
    with pytest.raises(JournalError, match="closed"):
        journal.append({})


def test_another_process_is_kept_out_from_the_first_moment(tmp_path):
    with closing(Journal(tmp_path / "j")):
        program = f"from dish.web.journal import Journal\nJournal({str(tmp_path / 'j')!r})"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "is in use: another server writes to this index" in done.stderr


def test_records_are_forgotten_and_the_numbers_go_on(tmp_path):
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
    assert pending(tmp_path / "j") == 0


def test_a_crash_at_any_moment_keeps_what_was_acknowledged(tmp_path):
    """The files as they lie on the disk after every append, with the log cut off anywhere."""
    with closing(Journal(tmp_path / "j")) as journal:
        for i in range(5):
            journal.append({"n": i})
            files = {name: (tmp_path / name).read_bytes() for name in ("j", "j-wal")}
            for cut in (0, 1, 40, len(files["j-wal"]) // 2, len(files["j-wal"]) - 1, len(files["j-wal"])):
                (tmp_path / "crash").write_bytes(files["j"])
                (tmp_path / "crash-wal").write_bytes(files["j-wal"][:cut])
                assert records_of(tmp_path / "crash") == [{"n": n} for n in range(i + 1)], (i, cut)


@pytest.mark.slow
def test_damage_is_an_error_not_a_loss(tmp_path):
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
            whole += 1  # free space, and fields that SQLite does not use
    assert all("damaged" in says for _, says in damaged)
    assert {at + 5 for at in content} <= {at for at, says in damaged if "checksum" in says}
    assert len(damaged) > 20
    assert whole > 20
    with closing(sqlite3.connect(tmp_path / "j")) as base:
        base.execute("DELETE FROM records WHERE n = 2")
        base.commit()
    with pytest.raises(JournalError, match="does not hold the records"):
        Journal(tmp_path / "j")
    (tmp_path / "j").write_bytes(b"this is no journal at all")
    with pytest.raises(JournalError, match="damaged"):
        Journal(tmp_path / "j")
    with pytest.raises(JournalError, match="damaged"):
        pending(tmp_path / "j")


def test_a_failed_write_is_refused_and_leaves_nothing(tmp_path):
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


# --- the format before SQLite ---


def old_record(content):
    data = json.dumps(content).encode()
    length = struct.pack("<I", len(data))
    return struct.pack("<4sIII", b"DJ1\n", len(data), zlib.crc32(length), zlib.crc32(data)) + data


def test_an_old_journal_is_taken_over_once(tmp_path):
    records = [{"n": i} for i in range(3)]
    (tmp_path / "old").write_bytes(b"".join(map(old_record, records)))
    shutil.copy(tmp_path / "old", tmp_path / "copy")
    with closing(Journal(tmp_path / "j", tmp_path / "old")) as journal:
        assert journal.records == records
        assert not (tmp_path / "old").exists()
        journal.append({"n": "new"})
    assert records_of(tmp_path / "j", tmp_path / "old") == [*records, {"n": "new"}]
    with closing(Journal(tmp_path / "k", tmp_path / "copy")):
        pass
    assert pending(tmp_path / "k") == 3


def test_an_old_record_cut_off_anywhere_is_dropped_and_the_rest_kept(tmp_path):
    parts = [old_record({"n": i}) for i in range(3)]
    data, whole = b"".join(parts), len(parts[0]) + len(parts[1])
    for cut in range(whole, len(data)):
        (tmp_path / "old").write_bytes(data[:cut])
        with closing(Journal(tmp_path / f"j{cut}", tmp_path / "old")) as journal:
            assert journal.records == [{"n": 0}, {"n": 1}]
            assert journal.torn_bytes == cut - whole
    (tmp_path / "old").write_bytes(data + b"\0" * 50)  # grown, but never written
    assert len(records_of(tmp_path / "j", tmp_path / "old")) == 3


def test_damage_within_an_old_journal_is_an_error_not_a_loss(tmp_path):
    parts = [old_record({"n": i}) for i in range(3)]
    data = b"".join(parts)
    for at in range(len(parts[0]) + len(parts[1])):  # every byte of the first two records
        (tmp_path / "old").write_bytes(data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :])
        with pytest.raises(ModelFileError, match="damaged"):
            Journal(tmp_path / "j", tmp_path / "old")
        assert (tmp_path / "old").stat().st_size == len(data)
    assert records_of(tmp_path / "j") == []


def test_an_old_journal_of_a_running_server_is_left_alone(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    (tmp_path / "old").write_bytes(old_record({"n": 0}))
    with open(tmp_path / "old", "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ModelFileError, match="in use"):
            Journal(tmp_path / "j", tmp_path / "old")
    assert records_of(tmp_path / "j", tmp_path / "old") == [{"n": 0}]
