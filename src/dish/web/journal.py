"""The journal: items that are on disk but not in the index file yet. It is a SQLite database next to the index.

SQLite makes a commit durable before ``append`` returns (write-ahead log, ``synchronous=FULL``), leaves only whole
records after a crash, and keeps a second server out with its exclusive lock. It does not notice flipped bits.
Therefore every record has a checksum and the records are numbered without gaps. Each commit is also copied from the
write-ahead log to the database at once, so that a damaged log cannot hide acknowledged records.
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

from dish.errors import JournalError

FORMAT = 1  # the database's user_version
TABLES = """
BEGIN IMMEDIATE;
CREATE TABLE records (n INTEGER PRIMARY KEY, content BLOB NOT NULL, sum INTEGER NOT NULL);
CREATE TABLE span (first INTEGER NOT NULL, last INTEGER NOT NULL);
INSERT INTO span VALUES (1, 0);
PRAGMA user_version = 1;
COMMIT;
"""
CHECKPOINT = "PRAGMA wal_checkpoint(PASSIVE)"  # afterwards the next transaction starts the log from its beginning

log = logging.getLogger("dish.web")


class Journal:
    """A journal, opened by one process at a time. The methods are thread-safe.

    ``records`` are the records found when it was opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._base = _connect(self.path)
        try:
            self._open()
            sync_folder(self.path)
        except sqlite3.Error as error:
            self._base.close()
            raise _explain(error, self.path) from None
        except BaseException:
            self._base.close()
            raise

    def _open(self) -> None:
        """Take the lock, then read the records."""
        self._base.execute("PRAGMA locking_mode = EXCLUSIVE")  # until the connection is closed
        self._base.execute("PRAGMA journal_mode = WAL")
        self._base.execute("PRAGMA synchronous = FULL")
        self._base.execute("BEGIN EXCLUSIVE")
        self._base.execute("COMMIT")
        (found,) = self._base.execute("PRAGMA user_version").fetchone()
        if found == 0 and not self._base.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            self._base.executescript(TABLES)
        elif found != FORMAT:
            raise JournalError(
                f"{self.path} is damaged or was written by a newer version: its format is {found}, not {FORMAT}"
            )
        self._base.execute(CHECKPOINT)
        self.records = [json.loads(content) for content in self._read()]

    def _read(self) -> list[bytes]:
        """Return the content of every record after checking it."""
        (state,) = self._base.execute("PRAGMA integrity_check(1)").fetchone()
        if state != "ok":
            raise JournalError(f"{self.path} is damaged: {state.splitlines()[-1]}")
        rows = self._base.execute("SELECT n, content, sum FROM records ORDER BY n").fetchall()
        for n, content, checksum in rows:
            if not isinstance(content, bytes) or zlib.crc32(content) != checksum:
                raise JournalError(f"{self.path} is damaged: record {n} does not match its checksum")
        spans = self._base.execute("SELECT first, last FROM span").fetchall()
        if len(spans) != 1 or [n for n, _, _ in rows] != list(range(spans[0][0], spans[0][1] + 1)):
            raise JournalError(f"{self.path} is damaged: records are missing")
        self.last = int(spans[0][1])
        self.size = sum(len(content) for _, content, _ in rows)
        return [content for _, content, _ in rows]

    def append(self, record: dict[str, Any]) -> int:
        """Write a record and return its number. It is on disk when this returns; after an error nothing is stored."""
        content = json.dumps(record, separators=(",", ":")).encode()
        with self._transaction():
            n = self.last + 1
            self._base.execute("INSERT INTO records VALUES (?, ?, ?)", (n, content, zlib.crc32(content)))
            self._base.execute("UPDATE span SET last = ?", (n,))
        self.last = n
        self.size += len(content)
        return n

    def forget(self, last: int) -> None:
        """Delete the records up to this number. Call it once their items are in the index file."""
        with self._transaction():
            self._base.execute("DELETE FROM records WHERE n <= ?", (last,))
            self._base.execute("UPDATE span SET first = ?", (last + 1,))
            (size,) = self._base.execute("SELECT coalesce(sum(length(content)), 0) FROM records").fetchone()
        self.size = int(size)

    def withdraw(self, n: int) -> None:
        """Delete the newest record, which the index rejected."""
        with self._transaction():
            self._base.execute("DELETE FROM records WHERE n = ?", (n,))
            self._base.execute("UPDATE span SET last = ?", (n - 1,))
        self.last = n - 1

    def close(self) -> None:
        """Close the file and release the lock."""
        with self._lock:
            self._base.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Run the statements of the block as one transaction. SQLite's errors become ``JournalError``."""
        with self._lock:
            try:
                self._base.execute("BEGIN IMMEDIATE")
                yield
                self._base.execute("COMMIT")
            except sqlite3.Error as error:
                with suppress(sqlite3.Error):  # BEGIN may have failed, or the connection is closed
                    self._base.execute("ROLLBACK")
                raise JournalError(f"{self.path} cannot be written: {error}") from error
            try:
                self._base.execute(CHECKPOINT)
            except sqlite3.Error:  # the record is safe in the log, and the next commit tries again
                log.warning("the journal's checkpoint failed", exc_info=True)


def count_pending(path: Path) -> int:
    """Return the number of records in a journal that no server has open."""
    if not path.exists():
        return 0
    base = _connect(path)
    try:
        found = base.execute("SELECT count(*) FROM sqlite_master WHERE name = 'records'").fetchone()[0]
        return int(base.execute("SELECT count(*) FROM records").fetchone()[0]) if found else 0
    except sqlite3.Error as error:
        raise _explain(error, path) from None
    finally:
        base.close()


def journal_path(index: Path) -> Path:
    """Return the path of the journal of an index file."""
    return index.with_name(index.name + ".journal.db")


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)


def _explain(error: sqlite3.Error, path: Path) -> JournalError:
    if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
        return JournalError(f"{path} is in use: another server writes to this index")
    if isinstance(error, sqlite3.OperationalError) and "disk" in str(error):
        return JournalError(f"{path} cannot be opened: {error}")
    return JournalError(f"{path} is damaged: {error}")


def sync_folder(path: Path) -> None:
    """Make the directory entry of a new or renamed file durable."""
    if os.name == "nt":  # Windows cannot open a folder, and writes its entries with the file
        return
    folder = os.open(path.absolute().parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
