"""Durable changes of a served index: first to the journal, then to the index in memory, later to the index file."""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from dish.codes import n_bytes
from dish.errors import FileReplacedError, InputError, JournalError
from dish.index.hamming import HammingIndex
from dish.index.index_file import IndexFile, JournalMark, advice, in_use, read_mark
from dish.web.journal import Base, Journal, count_pending, journal_path, sync_folder

JOURNAL_LIMIT = 64 << 20  # bytes of journal beyond which the index file is written again

log = logging.getLogger("dish.web")


class IndexWriter:
    """The one writer of an index file. Its methods are thread-safe; searches use ``index`` and never wait.

    The file is locked before it is read: a server that is stopping writes its changes to the file first and releases
    the lock afterwards, so that none is missed. Call ``start`` before the first change.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.file = IndexFile(path)
        if not self.file.path.exists():
            raise FileNotFoundError(f"there is no index file {path}")
        try:
            self._mark = read_mark(self.file.path)
            self.journal = Journal(journal_path(self.file.path), self._mark, self.file.path)
            try:
                self.index = HammingIndex.load(self.file.path)
            except BaseException:
                self.journal.close()
                raise
        except BaseException:
            self.file.close()
            raise
        self._lock = threading.Lock()  # keeps the journal and the index in step
        self._saving = threading.Lock()  # held while the file is written
        self._compacting: threading.Thread | None = None
        self.model: str | None = None

    def start(self, model: str | None) -> None:
        """Replay the journal, and mark the index file: from now on it needs its journal."""
        self.model = model
        self.journal.check_owner(model, self.index.n_bits)
        log.info("journal", extra={"fields": {"records": len(self.journal.records)}})
        self._apply(self.journal.records)
        self.journal.records.clear()
        self.sign()
        if self._mark is None or not self._mark.open:
            self._write_file(*self._now(), open=True)

    def sign(self, url: str | None = None) -> None:
        """Tell other processes that a server writes to the index, and at which address once it is known."""
        self.file.sign("a server with --writable", url)

    def change(self, record: dict[str, Any], require: Callable[[], None] = lambda: None) -> int:
        """Write a change to the journal, then to the index; return the new size.

        A change that the index would refuse never gets into the journal, so that every record can be replayed.
        ``require`` may raise an error while no other change can come in between.
        """
        with self._lock:
            require()
            self.file.check_unchanged()
            check(self.index, record)
            n = self.journal.append(record)
            try:
                self._apply([record])
            except BaseException:  # out of memory, for example
                self.journal.withdraw(n)
                raise
            size = len(self.index)
            if self.journal.size > JOURNAL_LIMIT and not (self._compacting and self._compacting.is_alive()):
                self._compacting = threading.Thread(target=self.compact, name="compact")
                self._compacting.start()
        return size

    def _apply(self, records: list[dict[str, Any]]) -> None:
        """Apply records to the index. With the first codes, an index that names no model gets the model's name."""
        apply(self.index, records)
        if self.index.model is None and any("codes" in record for record in records):
            self.index.model = self.model

    def save(self) -> None:
        """Write the index file while searches and changes go on. Later records stay in the journal."""
        with self._saving:
            with self._lock:
                now = self._now()
            self._write_file(*now, open=True)

    def compact(self) -> None:
        """Save, in a thread of its own."""
        try:
            self.save()
        except Exception:  # the changes are safe in the journal, and the next change tries again
            log.exception("the index could not be written")

    def close(self) -> None:
        """Write all changes to the index file, delete the journal, and release the lock."""
        if self._compacting is not None:
            self._compacting.join()
        with self._saving, self._lock:
            try:
                self._write_file(*self._now(), open=False)
                self.journal.close(delete=True)
            except FileReplacedError:
                if self.journal.size:
                    log.error("the changes since the index was last written stay in the journal")
                    raise
                log.exception("the index file is not written; no changes are lost")
                self.journal.close(delete=True)
            finally:
                self.release()

    def release(self) -> None:
        """Close all files without writing the index, as the end of the process would."""
        self.journal.close()
        self.file.close()

    def _now(self) -> tuple[Callable[[], dict[str, Any]], int]:
        """Return the state of the index, and the number of the last record in it."""
        return self.index.pinned_state(), self.journal.last

    def _write_file(self, state: Callable[[], dict[str, Any]], last: int, *, open: bool) -> None:
        """Write the index file, then delete the records up to ``last`` from the journal.

        The journal knows the new file before it exists. After a crash at any point it continues the file that is
        there, and only the records that are not in it are replayed.
        """
        base = Base(secrets.token_hex(8), last, self.model, self.index.n_bits)
        self.journal.expect(base)
        self.file.write(state(), JournalMark(base.id, open))
        sync_folder(self.file.path)  # the new file must be durable before the records are deleted
        self.journal.rebase(base)


def check(index: HammingIndex, record: dict[str, Any]) -> None:
    """Raise InputError if an index cannot apply a record."""
    if "codes" in record:
        index.check_upsert(_codes(index, record), record["ids"], record["labels"])


def apply(index: HammingIndex, records: Iterable[dict[str, Any]]) -> None:
    """Apply records to an index, in two steps instead of one per record. The last record of an id wins."""
    kept: dict[Any, tuple[Any, Any]] = {}  # id → code and label
    removed: dict[Any, None] = {}
    for record in records:
        codes = _codes(index, record) if "codes" in record else None
        for i, id in enumerate(record["ids"]):
            kept.pop(id, None)  # a replaced item moves to the end, as in the index
            removed[id] = None
            if codes is not None:
                kept[id] = codes[i], record["labels"] and record["labels"][i]
    for kind in (int, str):  # an index that was empty in between may have had both
        index.remove([id for id in removed if isinstance(id, kind) and id not in kept])
    if kept:
        codes = np.stack([code for code, _ in kept.values()])
        index.upsert(codes, list(kept), labels=[label for _, label in kept.values()])


def _codes(index: HammingIndex, record: dict[str, Any]) -> np.ndarray[Any, Any]:
    codes = np.frombuffer(bytes.fromhex(record["codes"]), np.uint8)
    return codes.reshape(len(record["ids"]), n_bytes(index.n_bits))


def check_served_alone(index: Path) -> None:
    """Raise an error if a read-only server would miss changes to an index. Opens nothing for writing."""
    for _ in range(2):  # a server that replaces the file has no lock on it for a moment
        if in_use(index):
            raise InputError(f"{index} is in use: {advice(index)}")
        if count_pending(index):
            raise JournalError(
                f"{journal_path(index)} has changes that are not in {index.name} yet: start once with --writable"
            )
