"""What a library remembers: how its codes were learned, which photos are in it, and which were taken out by hand."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dish.io.atomic import write_atomically
from dish.io.data_cache import cache_folder


@dataclass(frozen=True)
class State:
    """The last time the library was open.

    ``method`` is a name of the registry; ``rows`` it learned from. ``model`` is the fingerprint of the model file,
    ``stamp`` its size and time of change: while they are the same, the file need not be read to be known.
    """

    method: str
    bits: int
    labels: tuple[str, ...] = ()
    rows: int = 0
    members: tuple[str, ...] = field(default=(), repr=False)
    removed: tuple[str, ...] = field(default=(), repr=False)
    model: str = ""
    stamp: tuple[int, ...] = ()


def home_of(folder: Path) -> Path:
    """Where the files of a folder's library are kept: in the user's cache, since a photo folder may be read-only."""
    place = str(folder.resolve())
    stem = re.sub(r"[^\w-]+", "_", folder.resolve().name)[:40]
    return cache_folder() / "photos" / f"{stem}-{hashlib.sha256(place.encode('utf8', 'replace')).hexdigest()[:12]}"


def read_state(home: Path) -> State | None:
    """None if there is none, or none that this version can read: then everything but the features is made again."""
    try:
        found: dict[str, Any] = json.loads((home / "library.json").read_text())
        content: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
        return State(**content)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_state(home: Path, state: State) -> None:
    """Whole or not at all."""
    write_atomically(home / "library.json", json.dumps(asdict(state)).encode())
