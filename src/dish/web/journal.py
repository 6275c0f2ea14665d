"""The journal: changes that are on disk but not in the index file yet. It is a SQLite database next to the index.

SQLite makes a commit durable before ``append`` returns (write-ahead log, ``synchronous=FULL``), leaves only whole
records after a crash, and keeps a second server out with its exclusive lock. It does not notice flipped bits.
Therefore every record has a checksum and the records are numbered without gaps. Each commit is also copied from the
write-ahead log to the database at once, so that a damaged log cannot hide acknowledged records.

A journal knows what it belongs to. Each index file that it continues is one of its *bases*: the id of the file, the
number of the last record that is in the file, the model and the code length. The index file has the same id in its
``JournalMark``, and says whether the journal must exist.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sqlite3
import tempfile
import threading
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dish.errors import JournalError
from dish.index.index_file import JournalMark, read_mark
from dish.io.modelfile import check_same_model

FORMAT = 2  # the database's user_version
TABLES = f"""
BEGIN IMMEDIATE;
CREATE TABLE records (n INTEGER PRIMARY KEY, content BLOB NOT NULL, sum INTEGER NOT NULL);
CREATE TABLE span (first INTEGER NOT NULL, last INTEGER NOT NULL);
CREATE TABLE bases (content BLOB NOT NULL, sum INTEGER NOT NULL);
INSERT INTO span VALUES (1, 0);
PRAGMA user_version = {FORMAT};
COMMIT;
"""
CHECKPOINT = "PRAGMA wal_checkpoint(PASSIVE)"  # afterwards the next transaction starts the log from its beginning
GIVE_UP = "`dish index -o {} --discard-journal` deletes these changes"

log = logging.getLogger("dish.web")


@dataclass(frozen=True)
class Base:
    """An index file that the journal continues."""

    id: str
    last: int  # number of the last record that is in the file
    model: str | None  # fingerprint of the model of its codes
    n_bits: int


class Journal:
    """The journal of an index file with this mark, opened by one process at a time. The methods are thread-safe.

    ``records`` are the records that are not in the index file. A journal that belongs to another file is refused,
    and one that must exist is not created. ``index`` is the index file, for error messages.
    """

    def __init__(self, path: Path, mark: JournalMark | None, index: Path) -> None:
        self.path, self.index = path, index
        expected = mark is not None and mark.open
        if expected and (not path.exists() or not path.stat().st_size):
            raise self._lost("is missing" if not path.exists() else "is empty")
        self._lock = threading.Lock()
        try:
            self._connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise self._explain(error) from None
        try:
            self._open(expected)
            self.records = self._pending(mark)
            sync_folder(path)
        except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite quotes damaged bytes in its messages
            self._connection.close()
            raise self._explain(error) from None
        except BaseException:
            self._connection.close()
            raise

    def _open(self, expected: bool) -> None:
        """Take the lock, and read and check what is there."""
        execute = self._connection.execute
        execute("PRAGMA locking_mode = EXCLUSIVE")  # until the connection is closed
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = FULL")
        execute("BEGIN EXCLUSIVE")
        execute("COMMIT")
        (found,) = execute("PRAGMA user_version").fetchone()
        if found == 0 and not execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            if expected:
                raise self._lost("is empty")
            self._connection.executescript(TABLES)
        elif found != FORMAT:
            raise self._damaged(f"it has format {found}, not {FORMAT}, or was written by another version of dish")
        execute(CHECKPOINT)
        (state,) = execute("PRAGMA integrity_check(1)").fetchone()
        if state != "ok":
            raise self._damaged(state.splitlines()[-1])

    def _pending(self, mark: JournalMark | None) -> list[dict[str, Any]]:
        """Return the records that are not in the index file."""
        records = self._read_records()
        bases = [Base(**json.loads(c)) for c in self._checked("SELECT rowid, content, sum FROM bases").values()]
        self.base = next((base for base in bases if mark is not None and base.id == mark.id), None)
        if self.base is None:
            if records or (mark is not None and mark.open):
                raise JournalError(
                    f"{self.path} has {len(records):,} changes to another index file: {self.index} was replaced. "
                    f"Put back the file that they belong to, or {GIVE_UP.format(self.index)}"
                )
            return []
        if not self.first - 1 <= self.base.last <= self.last:
            raise self._damaged(f"it has the records {self.first} to {self.last} of an index at {self.base.last}")
        return [json.loads(content) for n, content in records.items() if n > self.base.last]

    def _read_records(self) -> dict[int, bytes]:
        """Return all records by number."""
        records = self._checked("SELECT n, content, sum FROM records ORDER BY n")
        spans = self._connection.execute("SELECT first, last FROM span").fetchall()
        if len(spans) != 1 or list(records) != list(range(spans[0][0], spans[0][1] + 1)):
            raise self._damaged("records are missing")
        self.first, self.last = spans[0]
        self.size = sum(map(len, records.values()))
        return records

    def _checked(self, query: str) -> dict[int, bytes]:
        """Return contents by number after comparing them with their checksums."""
        rows = self._connection.execute(query).fetchall()
        for n, content, checksum in rows:
            if not isinstance(content, bytes) or zlib.crc32(content) != checksum:
                raise self._damaged(f"record {n} does not match its checksum")
        return {n: content for n, content, _ in rows}

    def check_owner(self, model: str | None, n_bits: int) -> None:
        """Raise an error if the pending records are codes of another model or another length."""
        if self.base is not None and self.records:
            check_same_model(self.base.model, model, str(self.path), "the given model")
            if self.base.n_bits != n_bits:
                raise JournalError(f"{self.path} has codes of {self.base.n_bits} bits, but the model's have {n_bits}")

    def append(self, record: dict[str, Any]) -> int:
        """Write a record and return its number. It is on disk when this returns; after an error nothing is stored."""
        content = json.dumps(record, separators=(",", ":")).encode()
        with self._transaction() as execute:
            n = self.last + 1
            execute("INSERT INTO records VALUES (?, ?, ?)", (n, content, zlib.crc32(content)))
            execute("UPDATE span SET last = ?", (n,))
        self.last = n
        self.size += len(content)
        return n

    def withdraw(self, n: int) -> None:
        """Delete the newest record, which the index rejected."""
        with self._transaction() as execute:
            execute("DELETE FROM records WHERE n = ?", (n,))
            execute("UPDATE span SET last = ?", (n - 1,))
            size = _size(execute)
        self.last, self.size = n - 1, size

    def expect(self, base: Base) -> None:
        """Announce an index file. Call it before the file is written."""
        content = json.dumps(asdict(base)).encode()
        with self._transaction() as execute:
            execute("INSERT INTO bases VALUES (?, ?)", (content, zlib.crc32(content)))

    def rebase(self, base: Base) -> None:
        """Delete the records that are in the index file, and forget all other files. Call it after it is written."""
        content = json.dumps(asdict(base)).encode()
        with self._transaction() as execute:
            execute("DELETE FROM records WHERE n <= ?", (base.last,))
            execute("UPDATE span SET first = ?", (base.last + 1,))
            execute("DELETE FROM bases WHERE content != ?", (content,))
            size = _size(execute)
        self.first, self.size = base.last + 1, size

    def close(self, delete: bool = False) -> None:
        """Close the file and release the lock. ``delete`` removes the file: all its records are in the index file."""
        with self._lock:
            if delete:  # while it is locked, and its log first, so that the next server's log stays
                with suppress(sqlite3.Error, OSError):  # a journal that is left behind has no pending records
                    self._connection.execute("PRAGMA journal_mode = DELETE")
                    self.path.unlink(missing_ok=True)
            self._connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        """Run the statements of the block as one transaction. SQLite's errors become ``JournalError``."""
        with self._lock:
            execute = self._connection.execute
            try:
                execute("BEGIN IMMEDIATE")
                yield execute
                execute("COMMIT")
            except sqlite3.Error as error:
                with suppress(sqlite3.Error):  # BEGIN may have failed, or the connection is closed
                    execute("ROLLBACK")
                raise JournalError(f"{self.path} cannot be written: {error}") from error
            try:
                execute(CHECKPOINT)
            except sqlite3.Error:  # the record is safe in the log, and the next commit tries again
                log.warning("the journal's checkpoint failed", exc_info=True)

    def _lost(self, what: str) -> JournalError:
        return JournalError(
            f"{self.path} {what}, but {self.index} was served with --writable and not closed: changes may be lost. "
            f"Put the journal back, or {GIVE_UP.format(self.index)}"
        )

    def _damaged(self, what: str) -> JournalError:
        return JournalError(
            f"{self.path} is damaged: {what}. Restore it from a copy, or {GIVE_UP.format(self.index)}"
        )

    def _explain(self, error: sqlite3.Error | UnicodeDecodeError) -> JournalError:
        if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
            return JournalError(f"{self.path} is in use: another server writes to this index. Stop it first")
        if isinstance(error, sqlite3.OperationalError) and ("disk" in str(error) or "unable" in str(error)):
            return JournalError(f"{self.path} cannot be opened: {error}")
        return self._damaged(str(error))


def _size(execute: Any) -> int:
    return int(execute("SELECT coalesce(sum(length(content)), 0) FROM records").fetchone()[0])


def count_pending(index: Path) -> int:
    """Return the number of changes to an index file that are only in its journal.

    Nothing next to the index is opened for writing, not even by SQLite: the journal is read from a copy. No server
    may be writing meanwhile (``index_file.in_use``).
    """
    index = Path(os.path.realpath(index))
    mark, path = read_mark(index), journal_path(index)
    if not path.exists() and (mark is None or not mark.open):
        return 0
    with tempfile.TemporaryDirectory(prefix="dish-journal-") as folder:
        copy = Path(folder, path.name)
        for suffix in ("", "-wal"):
            if Path(f"{path}{suffix}").exists():
                shutil.copyfile(f"{path}{suffix}", f"{copy}{suffix}")
        try:
            with closing(Journal(copy, mark, index)) as journal:
                return len(journal.records)
        except JournalError as error:
            raise JournalError(str(error).replace(str(copy), str(path))) from None


def delete_journal(index: Path) -> bool:
    """Delete the journal of an index file, if there is one, with the changes in it."""
    path = journal_path(index)
    found = path.exists()
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    return found


def journal_path(index: Path) -> Path:
    """Return the path of the journal of an index file."""
    return index.with_name(index.name + ".journal.db")


def sync_folder(path: Path) -> None:
    """Make the directory entry of a new or renamed file durable."""
    if os.name == "nt":  # Windows cannot open a folder, and writes its entries with the file
        return
    folder = os.open(path.absolute().parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
