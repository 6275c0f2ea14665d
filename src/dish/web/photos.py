"""A folder of photos as a collection: what ``dish photos`` shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dish.photos import Library, Wishes, open_library
from dish.photos.state import home_of, read_state
from dish.web.collection import Collection
from dish.web.journal import pending
from dish.web.server import open_collection


def open_photos(
    folder: Path, wishes: Wishes, home: Path | None, *, writable: bool, say: Callable[[str], None]
) -> tuple[Collection, Library]:
    """Bring a folder's library up to date and open it for the page."""
    home = home or home_of(folder)
    model, index = home / "model.dish", home / "index.dish"
    if read_state(home) is not None and pending(index.with_name(index.name + ".journal.db")):
        open_collection(model, index, writable=True).close()  # a server that was killed left something to write
    library = open_library(folder, wishes, home, say)
    found = open_collection(
        model, index, images=folder, takes=library.takes, writable=writable, duplicates=library.duplicates
    )
    return found, library
