"""Reads the journals that were written before SQLite: checksummed records one after another, each a JSON object.

A record is a header (mark, length, checksum of the length, checksum of the content) and JSON. A crash can only cut
off the last record, which nobody was told about: that tail is dropped. Anything else that is wrong is damage.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from dish.io.modelfile import ModelFileError

HEADER = struct.Struct("<4sIII")
MARK = b"DJ1\n"


class OldJournal:
    """The whole records of a file, locked while it is open."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "rb")  # noqa: SIM115 (closed by __exit__)
        try:
            _lock(self._file.fileno(), path)
            data = self._file.read()
            found = list(_whole_records(data, path))
        except BaseException:
            self._file.close()
            raise
        self.records: list[dict[str, Any]] = [record for record, _ in found]
        self.torn_bytes = len(data) - (found[-1][1] if found else 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _whole_records(data: bytes, path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Every record, and where it ends."""
    at = 0
    while len(data) - at >= HEADER.size:
        mark, length, length_sum, content_sum = HEADER.unpack_from(data, at)
        if mark != MARK or zlib.crc32(struct.pack("<I", length)) != length_sum:
            if not data[at:].strip(b"\0"):
                return  # the file grew, but the record never reached the disk
            raise ModelFileError(f"{path} is damaged at byte {at:,}: no record starts there")
        end = at + HEADER.size + length
        content = data[at + HEADER.size : end]
        if end > len(data):
            return
        if zlib.crc32(content) != content_sum:
            if end == len(data):
                return
            raise ModelFileError(f"{path} is damaged: the record at byte {at:,} does not match its checksum")
        yield json.loads(content), end
        at = end


def _lock(file: int, path: Path) -> None:
    """A server of an earlier version may have the file open."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system: those servers had no lock there
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise ModelFileError(f"{path} is in use: another server writes to this index") from None


def holds_records(path: Path) -> bool:
    """Whether a file of this format is there and not empty."""
    return path.exists() and os.path.getsize(path) > 0
