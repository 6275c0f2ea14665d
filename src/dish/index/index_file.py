"""The file of an index: it has one writer at a time, and a file that another program replaced is not overwritten."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dish.errors import FileInUseError, FileReplacedError, ModelFileError
from dish.index.writer_note import WriterNote, read_note, remove_note, write_note
from dish.io import modelfile

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

StrPath = str | os.PathLike[str]
LOCK_SECONDS = 0.3  # a process that only looks whether the file is in use holds the lock for an instant
UNKNOWN = (
    "another process writes to this index (a server with --writable, or `dish index`). Stop it, or change items over "
    "HTTP"
)


@dataclass(frozen=True)
class JournalMark:
    """What the file of a served index says about the journal, which has the changes that are not in the file."""

    id: str  # of this file alone: the journal lists the files that it continues
    open: bool  # the journal may have changes, so it must be there: a server is running, or was killed


def read_mark(path: StrPath) -> JournalMark | None:
    """Return the mark of an index file; None if it belongs to no journal, or is not an index."""
    if not Path(path).is_file():
        return None
    try:
        kind, content, _ = modelfile.read(path, mmap=True, verify=False)
    except (FileNotFoundError, ModelFileError):  # the reader of the whole file explains it
        return None
    mark = content.get("journal") if kind == "HammingIndex" else None
    if mark is None:
        return None
    try:
        return JournalMark(str(mark["id"]), bool(mark["open"]))
    except (KeyError, TypeError) as error:
        raise ModelFileError(f"{path} is not a valid index file: {error!r}") from None


class IndexFile:
    """An index file that only this process may write, until ``close``.

    The lock (flock) is on the file itself, so that all its names share it: relative paths, symbolic and hard links.
    A write replaces the file. The lock of the replaced file is kept as long as other hard links to it remain.
    Systems without flock have no lock here; there, SQLite's lock on the journal keeps a second server out.
    """

    def __init__(self, path: StrPath) -> None:
        self.path = Path(os.path.realpath(path))
        self._handles: list[int] = []
        self._stamp: tuple[int, ...] | None = None  # of the file as we know it; None: there is none
        self._signed = False
        self._replacing = threading.RLock()  # held from before a rename until the stamp is that of the new file
        self._lock()

    def sign(self, program: str, url: str | None = None) -> None:
        """Leave a note next to the file that tells other processes who writes to it, and at which address."""
        write_note(self.path, WriterNote.of_this_process(program, url))
        self._signed = True

    def check_settled(self) -> None:
        """Raise an error if a server may have changes in its journal that are not in the file."""
        mark = read_mark(self.path)
        if mark is not None and mark.open:
            raise ModelFileError(
                f"{self.path} has a journal with changes of a server that was killed (or still runs, if this file "
                "system has no locks): start `dish serve --writable` once and stop it, so that they are written to "
                "the index"
            )

    def write(self, state: dict[str, Any], mark: JournalMark | None = None) -> None:
        """Replace the file with the state of an index (``HammingIndex.__getstate__``)."""
        content = {name: value for name, value in state.items() if name != "arrays"}
        content |= {} if mark is None else {"journal": asdict(mark)}
        with ExitStack() as held:

            def before_rename() -> None:
                held.enter_context(self._replacing)
                self.check_unchanged()

            modelfile.save(self.path, "HammingIndex", content, state["arrays"], before_rename)
            self._lock(seconds=10.0)  # it is ours: whoever was quicker finds the mark, or the journal's lock
            self._close_handles(
                lambda handle: os.fstat(handle).st_nlink == 0
            )  # they keep the space of a deleted file

    def check_unchanged(self) -> None:
        """Raise an error if another program has replaced, changed or deleted the file."""
        if self._is_known():
            return
        with self._replacing:  # perhaps it is our own new file, whose stamp is known in a moment
            if not self._is_known():
                raise FileReplacedError(
                    f"{self.path} was replaced by another program while this one was writing to it. It is left as "
                    "it is"
                )

    def _is_known(self) -> bool:
        return self._stamp == (_stamp(os.stat(self.path)) if self.path.is_file() else None)

    def close(self) -> None:
        """Release the lock."""
        if self._signed:
            remove_note(self.path)
            self._signed = False
        self._close_handles(lambda handle: True)

    def _close_handles(self, is_done: Callable[[int], bool]) -> None:
        done = [handle for handle in self._handles if is_done(handle)]
        self._handles = [handle for handle in self._handles if handle not in done]
        for handle in done:
            os.close(handle)

    def _lock(self, seconds: float = LOCK_SECONDS) -> None:
        """Lock the file that the path names now, if there is one."""
        end = time.monotonic() + seconds
        while self.path.is_file():
            handle = os.open(self.path, os.O_RDONLY)
            if _flock(handle):
                self._handles.append(handle)
                self._stamp = _stamp(os.fstat(handle))
                if fcntl is None:  # Windows cannot replace a file that is open
                    self.close()
                if self._stamp == _stamp(os.stat(self.path)):  # else it was replaced in between
                    return
                continue
            os.close(handle)
            if time.monotonic() > end:
                raise FileInUseError(f"{self.path} is in use: {advice(self.path)}")
            time.sleep(0.01)


def advice(path: Path) -> str:
    """Return who writes to an index that is locked, as far as it is known, and what to do."""
    note = read_note(path)
    return UNKNOWN if note is None else note.advice()


def in_use(path: StrPath) -> bool:
    """Return whether another process writes to an index. Opens the file only for reading."""
    try:
        IndexFile(path).close()
    except FileInUseError:
        return True
    return False


def _flock(handle: int) -> bool:
    if fcntl is not None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # this file system has no locks
            pass
    return True


def _stamp(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
