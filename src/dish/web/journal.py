"""An append-only, checksummed journal: what it has taken is on the disk, and comes back after a crash.

A record is a header (mark, length, checksum of the length, checksum of the content) and JSON. A crash can only
cut off the last record, which nobody was told about: that tail is dropped. Anything else that is wrong is damage,
and an error.
"""

from __future__ import annotations

import json
import os
import struct
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dish.io.modelfile import ModelFileError

HEADER = struct.Struct("<4sIII")
MARK = b"DJ1\n"


class JournalError(ModelFileError):
    """A journal that is damaged, in use by another process, or can no longer be written."""


class Journal:
    """Opened for one process at a time. ``records`` first, then ``append``."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._broken = False
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock_file(self._file, self.path)
            sync_folder(self.path)
            data = self.path.read_bytes()
            self.records, self.size = _parse(data, self.path)
            self.dropped = len(data) - self.size  # bytes of a record that was never acknowledged
            if self.dropped:
                os.ftruncate(self._file, self.size)
                os.fsync(self._file)
        except BaseException:
            os.close(self._file)
            raise

    def append(self, record: dict[str, Any]) -> None:
        """Write a record. On return it is on the disk; on an error nothing of it stays."""
        content = json.dumps(record, separators=(",", ":")).encode()
        length = struct.pack("<I", len(content))
        data = HEADER.pack(MARK, len(content), zlib.crc32(length), zlib.crc32(content)) + content
        with self._lock:
            if self._file < 0:
                raise JournalError(f"{self.path} is closed")
            if self._broken:
                raise JournalError(f"{self.path} could not be repaired after a failed write: restart the server")
            try:
                _write_all(self._file, data, self.size)
                os.fsync(self._file)
            except BaseException:
                self._broken = True  # until the half-written record is gone again
                os.ftruncate(self._file, self.size)
                os.fsync(self._file)
                self._broken = False
                raise
            self.size += len(data)

    def clear(self) -> None:
        """Forget all records: call it once what they say is safe elsewhere."""
        with self._lock:
            os.ftruncate(self._file, 0)
            os.fsync(self._file)
            self.size = 0

    def close(self) -> None:
        """Give the file back; nothing can be written after that."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1  # the number may soon be another file's


def _parse(data: bytes, path: Path) -> tuple[list[dict[str, Any]], int]:
    """The whole records, and where they end."""
    found = list(_whole_records(data, path))
    return [record for record, _ in found], found[-1][1] if found else 0


def _whole_records(data: bytes, path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    at = 0
    while len(data) - at >= HEADER.size:
        mark, length, length_sum, content_sum = HEADER.unpack_from(data, at)
        if mark != MARK or zlib.crc32(struct.pack("<I", length)) != length_sum:
            if not data[at:].strip(b"\0"):
                return  # the file grew, but the record never reached the disk
            raise JournalError(f"{path} is damaged at byte {at:,}: no record starts there")
        end = at + HEADER.size + length
        content = data[at + HEADER.size : end]
        if end > len(data):
            return
        if zlib.crc32(content) != content_sum:
            if end == len(data):
                return
            raise JournalError(f"{path} is damaged: the record at byte {at:,} does not match its checksum")
        yield json.loads(content), end
        at = end


def _write_all(file: int, data: bytes, at: int) -> None:
    """pwrite may take less than it is given."""
    while data:
        done = os.pwrite(file, data, at)
        data, at = data[done:], at + done


def _lock_file(file: int, path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # not a POSIX system: nothing stops a second server there
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise JournalError(f"{path} is in use: another server writes to this index") from None


def sync_folder(path: Path) -> None:
    """Make a new or renamed file's entry in its folder durable."""
    folder = os.open(path.absolute().parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
