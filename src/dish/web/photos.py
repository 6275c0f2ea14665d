"""A folder of photos as a collection: what ``dish photos`` shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dish.photos import Library, PhotoOptions, reopen
from dish.photos.state import default_home, read_state

if TYPE_CHECKING:
    from dish.web.collection import Collection


def open_photos(
    folder: Path, options: PhotoOptions, home: Path | None, *, writable: bool, say: Callable[[str], None]
) -> tuple[Collection, Library]:
    """Bring a folder's library up to date and open it for the page; one that is up to date opens without torch."""
    from dish.web.journal import pending
    from dish.web.server import open_collection

    home = home or default_home(folder)
    model, index = home / "model.dish", home / "index.dish"
    if read_state(home) is not None and pending(index.with_name(index.name + ".journal.db")):
        open_collection(model, index, writable=True).close()  # a server that was killed left something to write
    library = open_quickly(folder, options, home, say)
    found = open_collection(
        model,
        index,
        images=folder,
        takes=library.takes,
        writable=writable,
        duplicates=library.duplicates,
        hasher=library.hasher,
    )
    return found, library


def open_quickly(folder: Path, options: PhotoOptions, home: Path, say: Callable[[str], None]) -> Library:
    """The library of a folder; torch is loaded only if there is something to compute."""
    found = reopen(folder, options, home, _load, say)
    if found is not None:
        return found
    from dish.photos.library import open_library

    return open_library(folder, options, home, say)


def _load(path: Path) -> Any:
    from dish.registry import load

    return load(path)
