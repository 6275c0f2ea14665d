"""The collection that ``dish photos`` serves: a folder of photos."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dish.photos import Library, PhotoOptions, reopen
from dish.photos.state import default_home

if TYPE_CHECKING:
    from dish.web.collection import Collection


def open_photos(
    folder: Path, options: PhotoOptions, home: Path | None, *, writable: bool, say: Callable[[str], None]
) -> tuple[Collection, Library]:
    """Update the library of a folder and open it for the page. An unchanged library opens without torch."""
    from dish.web.server import open_collection

    home = home or default_home(folder)
    library = open_or_update(folder, options, home, say)
    collection = open_collection(
        home / "model.dish",
        home / "index.dish",
        images=folder,
        takes=library.takes,
        writable=writable,
        duplicates=library.duplicates,
        hasher=library.hasher,
    )
    return collection, library


def open_or_update(folder: Path, options: PhotoOptions, home: Path, say: Callable[[str], None]) -> Library:
    """Return the library of a folder. torch is imported only if there is something to compute."""
    _replay_journal(home)
    unchanged = reopen(folder, options, home, _load, say)
    if unchanged is not None:
        return unchanged
    from dish.photos.library import open_library

    return open_library(folder, options, home, say)


def _replay_journal(home: Path) -> None:
    """Write to the index what a killed server left in its journal. Raises FileInUseError beside a running one."""
    from dish.index.index_file import read_mark
    from dish.web.server import open_collection

    mark = read_mark(home / "index.dish")
    if mark is not None and mark.open:
        open_collection(home / "model.dish", home / "index.dish", writable=True).close()


def _load(path: Path) -> Any:
    from dish.registry import load

    return load(path)
