"""What a library saves between calls: how its codes were learned, its photos, and those removed by hand."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dish.errors import InputError
from dish.index.hamming import HammingIndex
from dish.io.atomic import write_atomically
from dish.io.data_cache import cache_folder


@dataclass(frozen=True)
class LibraryState:
    """The state of a library when it was last open.

    ``method`` is a registry name, ``rows`` the number of photos it learned from. ``model`` is the fingerprint of the
    model file and ``stamp`` its size and modification time; an unchanged file need not be read.
    """

    method: str
    bits: int
    labels: tuple[str, ...] = ()
    rows: int = 0
    members: tuple[str, ...] = field(default=(), repr=False)
    removed: tuple[str, ...] = field(default=(), repr=False)
    model: str = ""
    stamp: tuple[int, ...] = ()


def default_home(folder: Path) -> Path:
    """Return the folder for a library's files: in the user's cache, since the photo folder may be read-only."""
    place = str(folder.resolve())
    stem = re.sub(r"[^\w-]+", "_", folder.resolve().name)[:40]
    return cache_folder() / "photos" / f"{stem}-{hashlib.sha256(place.encode('utf8', 'replace')).hexdigest()[:12]}"


def claim_home(home: Path, folder: Path) -> None:
    """Record the photo folder whose files ``home`` holds. Raises InputError if it holds those of another folder."""
    note, place = home / "folder.json", str(folder.resolve())
    try:
        owner = json.loads(note.read_text())["folder"]
    except FileNotFoundError:
        home.mkdir(parents=True, exist_ok=True)
        write_atomically(note, json.dumps({"folder": place}).encode())
        return
    except (OSError, ValueError, TypeError, KeyError):
        owner = f"an unknown folder ({note} is damaged)"
    if owner != place:
        raise InputError(
            f"--cache {home} holds features and codes of {owner}, not of {place}: give every folder a --cache of its "
            f"own. If the photos were moved, remove {note.name} there"
        )


def read_state(home: Path) -> LibraryState | None:
    """Return the saved state; None if there is none or it is damaged, and then only the features are reused."""
    try:
        found: dict[str, Any] = json.loads((home / "library.json").read_text())
        content: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
        return LibraryState(**content)
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def write_state(home: Path, state: LibraryState) -> None:
    """Save the state atomically."""
    write_atomically(home / "library.json", json.dumps(asdict(state)).encode())


def removed_by_hand(
    before: LibraryState | None, index: HammingIndex | None, readable: list[str], changed: list[str]
) -> set[str]:
    """Return the photos that the user removed from the index; they stay out until their file changes."""
    if before is None:
        return set()
    removed = set(before.removed)
    if index is not None:
        removed |= set(before.members) - set(index.ids.tolist())
    return (removed & set(readable)) - set(changed)
