"""A library that nothing has changed since the last time: opened from its files, before torch is loaded.

A photo counts as unchanged while its size and its time of change are what they were.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dish.errors import ModelFileError
from dish.index.hamming import HammingIndex
from dish.io import modelfile
from dish.io.feature_cache import NET, FeatureCache, Stamp
from dish.photos.duplicates import groups_alike
from dish.photos.options import Say, Wishes, labels_of, note_unreadable, outdated, scan, taken_out, wanted
from dish.photos.state import read_state, write_state

if TYPE_CHECKING:
    from dish.hasher import Hasher

Load = Callable[[Path], Any]


class LaterHasher:
    """The hasher of a model file, read when something must be encoded: what it is like is known before."""

    def __init__(self, path: Path, fingerprint: str, takes_images: bool, load: Load) -> None:
        self.kind, content, _ = modelfile.read(path, mmap=True, verify=False)
        self.n_bits = int(content["init"]["n_bits"])
        self.n_features_in_ = content["fitted"].get("n_features_in_")
        self.takes_images, self.fingerprint_ = takes_images, fingerprint
        self._path, self._load = path, load
        self._loading, self._loaded = threading.Lock(), None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        with self._loading:
            self._loaded = self._loaded or self._load(self._path)
        return getattr(self._loaded, name)


@dataclass(frozen=True)
class Library:
    """An open folder: its hasher and index are in ``home``, as files that ``dish serve`` reads too."""

    folder: Path
    home: Path
    hasher: Hasher | LaterHasher
    index: HammingIndex
    method: str
    new: int
    gone: int
    problems: dict[str, str]

    @property
    def takes(self) -> str:
        """How an uploaded picture becomes a row of the hasher: the ``--input`` of ``dish serve``."""
        return "image" if self.method == "dish_d" else NET

    def duplicates(self) -> list[list[str]]:
        """Groups of photos that are copies of each other, by their features."""
        with FeatureCache(self.home / "features.db", NET) as kept:
            there = kept.stamps().keys() - kept.problems().keys()
            names = [name for name in self.index.ids.tolist() if name in there]
            return groups_alike(names, kept.read(names)) if names else []


def reopen(folder: Path, wishes: Wishes, home: Path, load: Load, say: Say) -> Library | None:
    """The library as the last time left it; None if there is none, or if there is anything to compute.

    ``load`` reads the model file, once something must be encoded.
    """
    before, model = read_state(home), home / "model.dish"
    if before is None or wishes.again or not model.exists() or Stamp.of(model) != before.stamp:
        return None
    files = scan(folder)
    with FeatureCache(home / "features.db", NET) as kept:
        if kept.stamps() != {name: Stamp.of(path) for name, path in files.items()}:
            return None
        problems = kept.problems()
    try:
        index = HammingIndex.load(home / "index.dish")
    except (OSError, ModelFileError):
        return None
    sound = [name for name in files if name not in problems]
    removed = taken_out(before, index, sound, [])
    members = [name for name in sound if name not in removed]
    state = wanted(wishes, before, labels_of(members, wishes.labels))
    same = index.model == before.model and set(index.ids.tolist()) == set(members)
    if not same or outdated(before, state, len(members)):
        return None
    note_unreadable(folder, say)
    now = replace(before, members=tuple(members), removed=tuple(sorted(removed)))
    if now != before:
        write_state(home, now)
    hasher = LaterHasher(model, before.model, state.method == "dish_d", load)
    return Library(folder, home, hasher, index, state.method, 0, 0, problems)
