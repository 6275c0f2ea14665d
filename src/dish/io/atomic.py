"""Files and folders written under a temporary name and renamed: readers and crashes see the old or the new."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dish.errors import InputError

StrPath = str | os.PathLike[str]

_ours: set[str] = set()  # temporary names in use by this process


def write_atomically(path: StrPath, data: bytes | Iterable[Any]) -> None:
    """Write a file (bytes, or pieces of bytes) whole or not at all; its permissions stay as they were."""
    with replacing(path) as temporary, open(temporary, "wb") as file:
        pieces: Iterable[Any] = [data] if isinstance(data, bytes) else data
        file.writelines(pieces)


@contextmanager
def replacing(path: StrPath, *, folder: bool = False) -> Iterator[Path]:
    """A temporary file (or folder) beside ``path`` that takes its place at the end of the block.

    After an error in the block it is removed, and ``path`` stays as it was. One that a killed process left behind is
    removed by the next write to the same path. A folder can only take the place of an empty one, or of none.
    """
    path = Path(os.path.realpath(path))  # a link stays a link: what it points to is replaced
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: the folder {path.parent} does not exist")
    if path.exists() and (not path.is_dir() if folder else not path.is_file()):
        raise InputError(f"cannot write {path}: it is not {'a folder' if folder else 'an ordinary file'}")
    with suppress(OSError):  # a folder that may be written to, but not listed
        remove_stale(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    _ours.add(temporary.name)
    try:
        with _created(temporary, folder) as handle:
            yield temporary
            if not folder:
                if path.exists():
                    os.chmod(temporary, path.stat().st_mode & 0o7777)
                os.fsync(handle)
            os.replace(temporary, path)
    except BaseException:
        _remove(temporary)
        raise
    finally:
        _ours.discard(temporary.name)


@contextmanager
def _created(temporary: Path, folder: bool) -> Iterator[int]:
    """A locked handle of a new file or folder. The lock tells machines and containers that do not see our process."""
    if folder:
        temporary.mkdir()
    flags = os.O_RDONLY if folder else os.O_WRONLY | os.O_CREAT | os.O_EXCL
    handle = os.open(temporary, flags, 0o666)
    try:
        with suppress(OSError):  # not every file system has locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)


def remove_stale(path: Path) -> None:
    """Remove temporary files for ``path`` whose process is dead."""
    form = re.compile(rf"\.{re.escape(path.name)}\.(\d+)\.[0-9a-f]{{8}}\.tmp")
    for entry in os.scandir(path.parent):
        match = form.fullmatch(entry.name)
        if match and not _in_use(Path(entry.path), int(match[1])):
            _remove(Path(entry.path))


def _in_use(temporary: Path, pid: int) -> bool:
    """Whether the process of a temporary file is alive, or anyone, perhaps on another machine, has it locked."""
    if pid == os.getpid():
        return temporary.name in _ours  # if not, it is of an earlier process with our number
    try:
        os.kill(pid, 0)
        return True
    except PermissionError:  # it is another user's
        return True
    except (ProcessLookupError, OverflowError):
        pass
    try:
        handle = os.open(temporary, os.O_RDONLY)
    except OSError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(handle)


def _remove(temporary: Path) -> None:
    if temporary.is_dir():
        shutil.rmtree(temporary, ignore_errors=True)
    else:
        temporary.unlink(missing_ok=True)
