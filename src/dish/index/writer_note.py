"""A note next to an index file that says which process writes to it. Error messages quote it; the lock is elsewhere.

The note of a killed process stays until the next writer replaces it, and is ignored as soon as the process is gone.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from dish.errors import InputError
from dish.io.atomic import write_atomically


@dataclass(frozen=True)
class WriterNote:
    """Who writes to an index."""

    program: str  # such as "a server with --writable"
    process: int
    machine: str
    url: str | None = None  # of a server, once it listens; ends with a slash

    @classmethod
    def of_this_process(cls, program: str, url: str | None = None) -> WriterNote:
        """Return a note about this process."""
        return cls(program, os.getpid(), socket.gethostname(), url)

    def is_current(self) -> bool:
        """Return whether the process may still be there. On another machine nobody can tell."""
        if self.machine != socket.gethostname():
            return True
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return False
        except OSError:  # it belongs to another user
            pass
        return True

    def advice(self) -> str:
        """Return who writes, and what to do instead of writing at the same time."""
        who = f"{self.program} (process {self.process} on {self.machine}) writes to it"
        if self.url is None:
            return f"{who}. Try again when it has ended"
        return (
            f"{who} and serves it on {self.url}. Change items there: POST {self.url}items adds, and "
            f"POST {self.url}items/delete removes. Or stop the server first"
        )


def note_path(index: Path) -> Path:
    """Return the path of the note next to an index file."""
    return index.with_name(index.name + ".writer.json")


def write_note(index: Path, note: WriterNote) -> None:
    """Write a note. The caller has the lock. An error is ignored: nothing but messages depends on the note."""
    with suppress(OSError, InputError):
        write_atomically(note_path(index), json.dumps(asdict(note)).encode())


def remove_note(index: Path) -> None:
    """Delete the note. The caller still has the lock, so that it is not the note of the next writer."""
    with suppress(OSError):
        note_path(index).unlink(missing_ok=True)


def read_note(index: Path) -> WriterNote | None:
    """Return the note next to an index file; None if there is none, or if its process has ended."""
    try:
        note = WriterNote(**json.loads(note_path(index).read_bytes()))
        return note if note.is_current() else None
    except (OSError, ValueError, TypeError, OverflowError):
        return None
