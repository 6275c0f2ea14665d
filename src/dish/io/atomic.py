"""Atomic writes: a file or folder is written under a temporary name and renamed when it is complete.

Readers see the old content or the new, never a part of it, whatever stops the writer. On systems without ``fcntl``
(Windows) temporary files are not locked, and what a killed process left behind is removed a day later.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dish.errors import InputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

StrPath = str | os.PathLike[str]

STALE_SECONDS = 24 * 3600  # age at which a temporary file counts as left behind, where files cannot be locked
_ours: set[str] = set()  # names of the temporary files that this process is writing


def write_atomically(
    path: StrPath, data: bytes | Iterable[Any], before_rename: Callable[[], None] | None = None
) -> None:
    """Write a file from bytes, or from an iterable of them. An existing file keeps its permissions.

    ``before_rename`` is called when all is written. If it raises an error, the existing file stays.
    """
    with replacing(path) as temporary:
        with open(temporary, "wb") as file:
            pieces: Iterable[Any] = [data] if isinstance(data, bytes) else data
            file.writelines(pieces)
        if before_rename is not None:
            before_rename()


@contextmanager
def replacing(path: StrPath, *, folder: bool = False) -> Iterator[Path]:
    """Yield a temporary file (or folder) in the same folder as ``path``, and rename it to ``path`` at the end.

    If the block raises, the temporary file is removed and ``path`` is left unchanged. Temporary files of killed
    processes are removed by the next write to the same path. A folder can replace only an empty folder.
    """
    path = Path(os.path.realpath(path))  # a symbolic link stays: its target is replaced
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: the folder {path.parent} does not exist")
    if path.exists() and (not path.is_dir() if folder else not path.is_file()):
        raise InputError(f"cannot write {path}: it is not {'a folder' if folder else 'an ordinary file'}")
    with suppress(OSError):  # the folder may be writable, but not readable
        remove_stale(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    _ours.add(temporary.name)
    try:
        with _created(temporary, folder):
            yield temporary
            if not folder:
                with open(temporary, "rb+") as file:
                    os.fsync(file.fileno())
                if path.exists():
                    os.chmod(temporary, path.stat().st_mode & 0o7777)
            os.replace(temporary, path)
    except BaseException:
        _remove(temporary)
        raise
    finally:
        _ours.discard(temporary.name)


@contextmanager
def _created(temporary: Path, folder: bool) -> Iterator[None]:
    """Create the temporary file or folder, locked: processes on other machines or in other containers can tell."""
    if folder:
        temporary.mkdir()
    else:
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    if fcntl is None:
        yield  # without a handle: Windows cannot rename a file that is open
        return
    handle = os.open(temporary, os.O_RDONLY if folder else os.O_WRONLY)
    try:
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def remove_stale(path: Path) -> None:
    """Remove the temporary files for ``path`` that killed processes left behind."""
    form = re.compile(rf"\.{re.escape(path.name)}\.(\d+)\.[0-9a-f]{{8}}\.tmp")
    for entry in os.scandir(path.parent):
        match = form.fullmatch(entry.name)
        if match and not _in_use(Path(entry.path), int(match[1])):
            _remove(Path(entry.path))


def _in_use(temporary: Path, pid: int) -> bool:
    """Whether the process that made a temporary file is alive, or any process, on any machine, has it locked."""
    if pid == os.getpid():
        return temporary.name in _ours  # otherwise an earlier process had our process ID
    if fcntl is None:
        return time.time() - temporary.stat().st_mtime < STALE_SECONDS
    try:
        os.kill(pid, 0)
        return True
    except PermissionError:  # the process belongs to another user
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
