"""The journal: items that are on the disk, but not in the index file yet. A SQLite database beside the index.

SQLite does the hard parts: a commit is on the disk before ``append`` returns (write-ahead log, ``synchronous=FULL``),
a crash leaves whole records only, and the exclusive lock keeps a second server out. What it does not do is notice a
flipped bit: every record carries a checksum, the records are numbered without gaps, and each commit is also brought
into the database itself, so that a damaged log cannot hide acknowledged records.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dish.io.modelfile import ModelFileError
from dish.web.old_journal import OldJournal

FORMAT = 1  # the database's user_version
TABLES = """
BEGIN IMMEDIATE;
CREATE TABLE records (n INTEGER PRIMARY KEY, content BLOB NOT NULL, sum INTEGER NOT NULL);
CREATE TABLE span (first INTEGER NOT NULL, last INTEGER NOT NULL);
INSERT INTO span VALUES (1, 0);
PRAGMA user_version = 1;
COMMIT;
"""
CHECKPOINT = "PRAGMA wal_checkpoint(PASSIVE)"  # the next transaction starts the log anew, so it holds one at a time

log = logging.getLogger("dish.web")


class JournalError(ModelFileError):
    """A journal that is damaged, in use by another process, or can no longer be written."""


class Journal:
    """Opened by one process at a time: ``records`` first, then ``append``. Its methods may be called from any thread.

    ``old``: a journal of the format before SQLite. Its records are taken over, and the file is removed.
    """

    def __init__(self, path: str | os.PathLike[str], old: str | os.PathLike[str] | None = None) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self.torn_bytes = 0  # of an old journal's last record, which was never acknowledged
        self._base = _connect(self.path)
        try:
            with self._reading():
                self._open()
            if old is not None and os.path.exists(old):
                self._take_over(Path(old))
            sync_folder(self.path)
        except BaseException:
            self._base.close()
            raise

    def _open(self) -> None:
        """Take the lock, then look at what is there."""
        self._base.execute("PRAGMA locking_mode = EXCLUSIVE")  # from the first access to the end of the connection
        self._base.execute("PRAGMA journal_mode = WAL")
        self._base.execute("PRAGMA synchronous = FULL")
        self._base.execute("BEGIN EXCLUSIVE")
        self._base.execute("COMMIT")
        (found,) = self._base.execute("PRAGMA user_version").fetchone()
        if found == 0 and not self._base.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            self._base.executescript(TABLES)
        elif found != FORMAT:
            raise JournalError(f"{self.path} is damaged, or of a later version: its format is {found}, not {FORMAT}")
        self._base.execute(CHECKPOINT)
        self.records = [json.loads(content) for content in self._read()]

    def _read(self) -> list[bytes]:
        """The content of every record, checked."""
        (state,) = self._base.execute("PRAGMA integrity_check(1)").fetchone()
        if state != "ok":
            raise JournalError(f"{self.path} is damaged: {state.splitlines()[-1]}")
        rows = self._base.execute("SELECT n, content, sum FROM records ORDER BY n").fetchall()
        for n, content, checksum in rows:
            if not isinstance(content, bytes) or zlib.crc32(content) != checksum:
                raise JournalError(f"{self.path} is damaged: record {n} does not match its checksum")
        spans = self._base.execute("SELECT first, last FROM span").fetchall()
        if len(spans) != 1 or [n for n, _, _ in rows] != list(range(spans[0][0], spans[0][1] + 1)):
            raise JournalError(f"{self.path} is damaged: it does not hold the records it says it does")
        self.last = int(spans[0][1])
        self.size = sum(len(content) for _, content, _ in rows)
        return [content for _, content, _ in rows]

    def append(self, record: dict[str, Any]) -> int:
        """Write a record and return its number. On return it is on the disk; on an error nothing of it stays."""
        content = json.dumps(record, separators=(",", ":")).encode()
        with self._transaction():
            n = self.last + 1
            self._base.execute("INSERT INTO records VALUES (?, ?, ?)", (n, content, zlib.crc32(content)))
            self._base.execute("UPDATE span SET last = ?", (n,))
        self.last = n
        self.size += len(content)
        return n

    def forget(self, last: int) -> None:
        """Drop the records up to this number: call it once what they say is safe elsewhere."""
        with self._transaction():
            self._base.execute("DELETE FROM records WHERE n <= ?", (last,))
            self._base.execute("UPDATE span SET first = ?", (last + 1,))
            (size,) = self._base.execute("SELECT coalesce(sum(length(content)), 0) FROM records").fetchone()
        self.size = int(size)

    def withdraw(self, n: int) -> None:
        """Take back the record written last, which could not be carried out."""
        with self._transaction():
            self._base.execute("DELETE FROM records WHERE n = ?", (n,))
            self._base.execute("UPDATE span SET last = ?", (n - 1,))
        self.last = n - 1

    def close(self) -> None:
        """Release the file; nothing can be written after that."""
        with self._lock:
            self._base.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All of it or nothing; what SQLite says becomes a ``JournalError``."""
        with self._lock:
            try:
                self._base.execute("BEGIN IMMEDIATE")
                yield
                self._base.execute("COMMIT")
            except sqlite3.Error as error:
                with suppress(sqlite3.Error):  # there may be none, or the connection may be closed
                    self._base.execute("ROLLBACK")
                raise JournalError(f"{self.path} cannot be written: {error}") from error
            try:
                self._base.execute(CHECKPOINT)
            except sqlite3.Error:  # the record is safe in the log; the next commit tries again
                log.warning("the journal's log could not be brought into its database", exc_info=True)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _explained(error, self.path) from None

    def _take_over(self, old: Path) -> None:
        """The records of an old journal; a crash on the way takes them over again, which changes nothing."""
        with OldJournal(old) as journal:
            for record in journal.records:
                self.append(record)
            self.records += journal.records
            self.torn_bytes = journal.torn_bytes
            old.unlink()


def pending(path: Path) -> int:
    """How many records a journal holds that no server has open."""
    if not path.exists():
        return 0
    base = _connect(path)
    try:
        found = base.execute("SELECT count(*) FROM sqlite_master WHERE name = 'records'").fetchone()[0]
        return int(base.execute("SELECT count(*) FROM records").fetchone()[0]) if found else 0
    except sqlite3.Error as error:
        raise _explained(error, path) from None
    finally:
        base.close()


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)


def _explained(error: sqlite3.Error, path: Path) -> JournalError:
    if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
        return JournalError(f"{path} is in use: another server writes to this index")
    if isinstance(error, sqlite3.OperationalError) and "disk" in str(error):
        return JournalError(f"{path} cannot be opened: {error}")
    return JournalError(f"{path} is damaged: {error}")


def sync_folder(path: Path) -> None:
    """Make a new or renamed file's entry in its folder durable."""
    folder = os.open(path.absolute().parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
