"""Open a library that has not changed since the last call, without loading torch.

A photo counts as unchanged if its size and modification time are the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from dish.errors import ModelFileError
from dish.index.hamming import HammingIndex
from dish.index.index_file import IndexFile
from dish.io import modelfile
from dish.io.feature_cache import NET, FeatureCache, Stamp
from dish.photos.duplicates import find_duplicates
from dish.photos.folder import Say, find_photos, report_unsupported, subfolder_labels
from dish.photos.options import PhotoOptions, must_relearn, next_state
from dish.photos.state import claim_home, read_state, removed_by_hand, write_state

if TYPE_CHECKING:
    from dish.hasher import Hasher

Load = Callable[[Path], Any]


class LazyHasher:
    """A saved hasher whose parameters are loaded when something must be encoded; its header is read at once."""

    def __init__(self, path: Path, fingerprint: str, takes_images: bool, load: Load) -> None:
        self.kind, content, _ = modelfile.read(path, mmap=True, verify=False)
        self.n_bits = int(content["init"]["n_bits"])
        self.n_features_in_ = content["fitted"].get("n_features_in_")
        self.takes_images, self.fingerprint_ = takes_images, fingerprint
        self._path, self._load = path, load
        self._lock, self._loaded = threading.Lock(), None

    @property
    def image_side(self) -> int:
        """Width and height of the images that ``transform`` takes."""
        return int(self._hasher().image_side)

    def transform(self, X: Any, *, labels: Any = None) -> NDArray[Any]:
        """Return the packed codes of the rows of X."""
        codes: NDArray[Any] = self._hasher().transform(X, labels=labels)
        return codes

    def knows_labels(self, labels: Sequence[Any]) -> NDArray[Any]:
        """Return which labels have codes, (n,)."""
        known: NDArray[Any] = self._hasher().knows_labels(labels)
        return known

    def _hasher(self) -> Any:
        with self._lock:
            if self._loaded is None:
                self._loaded = self._load(self._path)
            return self._loaded


@dataclass(frozen=True)
class Library:
    """An open photo library. Its hasher and index are files in ``home`` that ``dish serve`` can read too.

    ``new`` and ``gone`` count the photos that appeared and disappeared since the last call; ``problems`` says why a
    photo cannot be read.
    """

    folder: Path
    home: Path
    hasher: Hasher | LazyHasher
    index: HammingIndex
    method: str
    new: int
    gone: int
    problems: dict[str, str]

    @property
    def takes(self) -> str:
        """What the hasher encodes: "image", or the name of the network whose features it takes (``--input``)."""
        return "image" if self.method == "deep_dish" else NET

    def duplicates(self) -> list[list[str]]:
        """Return groups of photos that are copies of each other."""
        with FeatureCache(self.home / "features.db", NET) as cache:
            usable = cache.stamps().keys() - cache.problems().keys()
            names = [name for name in self.index.ids.tolist() if name in usable]
            return find_duplicates(names, cache.read(names)) if names else []


def reopen(folder: Path, options: PhotoOptions, home: Path, load: Load, say: Say) -> Library | None:
    """Return the library as the last call left it; None if there is none or something must be computed.

    ``load`` reads the model file when something must be encoded. The index is locked meanwhile, because the state
    that is written must agree with it.
    """
    with closing(IndexFile(home / "index.dish")) as index_file:
        index_file.check_settled()
        return _unchanged(folder, options, home, load, say)


def _unchanged(folder: Path, options: PhotoOptions, home: Path, load: Load, say: Say) -> Library | None:
    before, model = read_state(home), home / "model.dish"
    if before is None or options.relearn or not model.exists() or Stamp.of(model) != before.stamp:
        return None
    files = find_photos(folder)
    claim_home(home, folder)
    with FeatureCache(home / "features.db", NET) as cache:
        if cache.stamps() != {name: Stamp.of(path) for name, path in files.items()}:
            return None
        problems = cache.problems()
    try:
        index = HammingIndex.load(home / "index.dish")
    except (OSError, ModelFileError):
        return None
    readable = [name for name in files if name not in problems]
    removed = removed_by_hand(before, index, readable, [])
    members = [name for name in readable if name not in removed]
    state = next_state(options, before, subfolder_labels(members, options.labels))
    same = index.model == before.model and set(index.ids.tolist()) == set(members)
    if not same or must_relearn(before, state, len(members)):
        return None
    report_unsupported(folder, say)
    now = replace(before, members=tuple(members), removed=tuple(sorted(removed)))
    if now != before:
        write_state(home, now)
    hasher = LazyHasher(model, before.model, state.method == "deep_dish", load)
    return Library(folder, home, hasher, index, state.method, 0, 0, problems)
