"""Bring the library of a photo folder up to date: encode new photos, drop deleted ones, keep the rest.

Photos without labels get PCA-ITQ codes of their features. If every photo is in a sub-folder, the sub-folders are
labels and DISH learns from them. Both take seconds, since the network that computes the features is not trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.baselines.pca_itq import PCAITQ
from dish.deep.image_features import MOST_PIXELS, file_features
from dish.errors import InputError, ModelFileError
from dish.hasher import Hasher
from dish.index.hamming import HammingIndex
from dish.index.index_file import IndexFile
from dish.io import checkpoint as checkpoints
from dish.io import images
from dish.io.feature_cache import NET, FeatureCache, Stamp
from dish.photos import fine_tune
from dish.photos.folder import Say, find_photos, report_unsupported, subfolder_labels
from dish.photos.options import EPOCHS, PhotoOptions, check_labels_early, must_relearn, next_state
from dish.photos.reopen import Library
from dish.photos.state import LibraryState, claim_home, default_home, read_state, removed_by_hand, write_state
from dish.posterior.dish import DISH
from dish.registry import load

AT_ONCE = 64  # photos whose pixels are in memory at a time


def open_library(
    folder: Path, options: PhotoOptions | None = None, home: Path | None = None, say: Say = print
) -> Library:
    """Bring the library of a folder up to date and return it.

    ``home`` is the folder for features, codes and index; None: one in the user's cache. ``say`` prints progress.
    The index is locked from the start: beside a server that writes to it, nothing may change, not even the model.
    """
    options, home = options or PhotoOptions(), home or default_home(folder)
    files = find_photos(folder)
    claim_home(home, folder)
    report_unsupported(folder, say)
    before = read_state(home)
    if before is None:
        check_labels_early(files, options)
    with closing(IndexFile(home / "index.dish")) as index_file, FeatureCache(home / "features.db", NET) as cache:
        index_file.check_settled()
        index_file.sign("`dish photos`")
        known = cache.stamps()
        new = [name for name in files if name not in known]
        gone = [name for name in known if name not in files]
        if new:
            say(f"{len(new):,} new of {len(files):,} photos: computing their features, once")
        changed = file_features(files, cache)
        update = _Update(folder, home, files, cache, index_file, say)
        hasher, index, state = update.run(options, before, changed)
        return Library(folder, home, hasher, index, state.method, len(new), len(gone), cache.problems())


@dataclass(frozen=True)
class _Update:
    """One update of a library: the files there are now, the features of each, and the index file, locked."""

    folder: Path
    home: Path
    files: Mapping[str, Path]
    cache: FeatureCache
    index_file: IndexFile
    say: Say

    def run(
        self, options: PhotoOptions, before: LibraryState | None, changed: list[str]
    ) -> tuple[Hasher, HammingIndex, LibraryState]:
        """Return hasher, index and state for the folder as it is now; save them if anything has changed."""
        hasher, index = self._load(before)
        problems = self.cache.problems()
        readable = [name for name in self.files if name not in problems]
        removed = removed_by_hand(before, index, readable, changed)
        members = [name for name in readable if name not in removed]
        if len(members) < 2:
            raise InputError(f"FOLDER: {self.folder} must have at least two readable photos, found {len(members)}")
        labels = subfolder_labels(members, options.labels)
        state = next_state(options, before, labels)
        if hasher is None or before is None or options.relearn or must_relearn(before, state, len(members)):
            hasher, index = self._learn(state, labels, members, options), None
            hasher.save(self.home / "model.dish")
            state = replace(state, rows=len(members))
        state = replace(
            state,
            members=tuple(members),
            removed=tuple(sorted(removed)),
            model=hasher.fingerprint_,
            stamp=tuple(Stamp.of(self.home / "model.dish")),
        )
        label_of = None if labels is None else dict(zip(members, labels.tolist(), strict=True))
        rebuilt = index is None
        index = self._update_index(index, hasher, members, set(changed), label_of)
        if state != before or changed or rebuilt:
            self.index_file.write(index.__getstate__())
            write_state(self.home, state)
        return hasher, index, state

    def _load(self, before: LibraryState | None) -> tuple[Hasher | None, HammingIndex | None]:
        """Return the saved hasher and index; None for what is missing, damaged or of another model."""
        if before is None:
            return None, None
        try:
            hasher = load(self.home / "model.dish")
            index = HammingIndex.load(self.home / "index.dish")
        except (OSError, ModelFileError):
            return None, None
        return hasher, index if index.model == hasher.fingerprint_ else None

    def _learn(
        self, state: LibraryState, labels: NDArray[Any] | None, names: list[str], options: PhotoOptions
    ) -> Hasher:
        """Return a hasher fitted to the photos by the state's method."""
        if state.method == "pca_itq":
            self.say(f"learning {state.bits}-bit codes of {len(names):,} photos without labels")
            return PCAITQ(n_bits=state.bits).fit(self.cache.read(names))
        assert labels is not None
        self.say(
            f"learning {state.bits}-bit codes; the {len(state.labels)} sub-folders are labels "
            "(--no-labels ignores them)"
        )
        if state.method == "dish":
            return DISH(n_bits=state.bits, n_anchors=min(1000, len(names))).fit(self.cache.read(names), labels)
        return self._fine_tune(state, labels, names, options.epochs or EPOCHS)

    def _fine_tune(self, state: LibraryState, labels: NDArray[Any], names: list[str], epochs: int) -> Hasher:
        time = fine_tune.format_duration(fine_tune.estimate_seconds(len(names), epochs))
        self.say(
            f"fine-tuning the network: {fine_tune.total_epochs(epochs)} epochs over {len(names):,} photos, {time}"
        )
        checkpoint = self.home / "tuning.checkpoint"
        hasher = fine_tune.make_hasher(state.bits, epochs, checkpoint)
        hasher.fit(np.concatenate(list(self._pixels(names, hasher.image_side))), labels)
        checkpoints.remove(checkpoint)
        return hasher

    def _update_index(
        self,
        index: HammingIndex | None,
        hasher: Hasher,
        members: list[str],
        changed: set[str],
        label_of: dict[str, Any] | None,
    ) -> HammingIndex:
        """Remove photos that are no longer members; encode new and changed ones. None: build a new index."""
        if index is None:
            index = HammingIndex(hasher.n_bits, model=hasher.fingerprint_)
        present = set(index.ids.tolist())
        index.remove(sorted(present - set(members)))
        names = [name for name in members if name in changed or name not in present]
        if names:
            labels = None if label_of is None else [label_of[name] for name in names]
            index.upsert(self._encode(hasher, names, labels), names, labels)
        return index

    def _encode(self, hasher: Hasher, names: list[str], labels: list[str] | None) -> NDArray[np.uint8]:
        """Return the codes of photos; those of DISH are codes of their labels, which are all known."""
        if getattr(hasher, "takes_images", False):
            return np.concatenate([hasher.transform(p) for p in self._pixels(names, hasher.image_side)])
        return hasher.transform(self.cache.read(names), labels=labels, unknown="error")

    def _pixels(self, names: list[str], side: int) -> Iterator[images.Pixels]:
        for i in range(0, len(names), AT_ONCE):
            some = [self.files[name] for name in names[i : i + AT_ONCE]]
            yield np.stack([images.decode(path, side, max_pixels=MOST_PIXELS) for path in some])
