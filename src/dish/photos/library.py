"""Open a folder of photos: what is new gets features and codes, what is gone leaves the index, the rest is read.

Photos without labels get PCA-ITQ codes of their features; where every photo lies in a sub-folder, the sub-folders are
labels and DISH learns from them. Either takes seconds, since the network that makes the features stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from dish.io import images
from dish.io.feature_cache import NET, FeatureCache, Stamp
from dish.photos import fine_tune
from dish.photos.options import (
    EPOCHS,
    Say,
    Wishes,
    labels_of,
    note_unreadable,
    outdated,
    refuse_loose,
    scan,
    taken_out,
    wanted,
)
from dish.photos.reopen import Library
from dish.photos.state import State, home_of, read_state, write_state
from dish.posterior.dish import DISH
from dish.registry import load

AT_ONCE = 64  # photos whose pixels are in memory


def open_library(folder: Path, wishes: Wishes | None = None, home: Path | None = None, say: Say = print) -> Library:
    """Bring the library of a folder up to date, and open it."""
    wishes, home = wishes or Wishes(), home or home_of(folder)
    files = scan(folder)
    note_unreadable(folder, say)
    before = read_state(home)
    if before is None:
        refuse_loose(files, wishes)
    with FeatureCache(home / "features.db", NET) as kept:
        known = kept.stamps()
        new = [name for name in files if name not in known]
        gone = [name for name in known if name not in files]
        if new:
            say(f"{len(new):,} new of {len(files):,} photos: computing their features, once")
        changed = file_features(files, kept)
        problems = kept.problems()
        work = _Work(folder, home, files, kept, say)
        hasher, index, state = work.bring_up_to_date(wishes, before, changed)
    return Library(folder, home, hasher, index, state.method, len(new), len(gone), problems)


@dataclass(frozen=True)
class _Work:
    """One opening of a library: the files there are now, and what is kept of them."""

    folder: Path
    home: Path
    files: Mapping[str, Path]
    kept: FeatureCache
    say: Say

    def bring_up_to_date(
        self, wishes: Wishes, before: State | None, changed: list[str]
    ) -> tuple[Hasher, HammingIndex, State]:
        """Hasher and index as the folder is now; written to disk if anything is new."""
        hasher, index = self._read(before)
        problems = self.kept.problems()
        sound = [name for name in self.files if name not in problems]
        removed = taken_out(before, index, sound, changed)
        members = [name for name in sound if name not in removed]
        if len(members) < 2:
            raise InputError(f"FOLDER: {self.folder} has {len(members)} photos that can be read; it needs two")
        labels = labels_of(members, wishes.labels)
        state = wanted(wishes, before, labels)
        if hasher is None or before is None or wishes.again or outdated(before, state, len(members)):
            hasher, index, state = (
                self._learn(state, labels, members, wishes),
                None,
                replace(state, rows=len(members)),
            )
            hasher.save(self.home / "model.dish")
        stamp = tuple(Stamp.of(self.home / "model.dish"))
        state = replace(state, members=tuple(members), removed=tuple(sorted(removed)))
        state = replace(state, model=hasher.fingerprint_, stamp=stamp)
        if index is None:
            index = HammingIndex(hasher.n_bits, model=hasher.fingerprint_)
            self._put(index, hasher, members, labels)
        else:
            there = set(index.ids.tolist())
            index.remove(sorted(there - set(members)) or np.empty(0, object))
            fresh = set(changed) | set(members) - there
            self._put(index, hasher, [name for name in members if name in fresh], labels, members)
        if state != before or changed:
            index.save(self.home / "index.dish")
            write_state(self.home, state)
        return hasher, index, state

    def _read(self, before: State | None) -> tuple[Hasher | None, HammingIndex | None]:
        """What the last time left; an index of another model than the one there is made again."""
        if before is None:
            return None, None
        try:
            hasher = load(self.home / "model.dish")
            index = HammingIndex.load(self.home / "index.dish")
        except (OSError, ModelFileError):
            return None, None
        return hasher, index if index.model == hasher.fingerprint_ else None

    def _learn(self, state: State, labels: NDArray[Any] | None, names: list[str], wishes: Wishes) -> Hasher:
        if state.method == "pca_itq":
            self.say(f"learning {state.bits}-bit codes of {len(names):,} photos without labels")
            return PCAITQ(n_bits=state.bits).fit(self.kept.read(names))
        assert labels is not None
        self.say(
            f"learning {state.bits}-bit codes: {len(state.labels)} sub-folders are labels (--no-labels: ignore them)"
        )
        if state.method == "dish":
            return DISH(n_bits=state.bits, n_anchors=min(1000, len(names))).fit(self.kept.read(names), labels)
        return self._fine_tune(state, labels, names, wishes)

    def _fine_tune(self, state: State, labels: NDArray[Any], names: list[str], wishes: Wishes) -> Hasher:
        epochs = wishes.epochs or EPOCHS
        time = fine_tune.in_words(fine_tune.seconds_needed(len(names), epochs))
        self.say(
            f"fine-tuning the network: {fine_tune.passes(epochs)} passes over {len(names):,} photos, {time} here"
        )
        checkpoint = self.home / "tuning.checkpoint"
        deep = fine_tune.tuner(state.bits, epochs, checkpoint)
        pixels = np.concatenate(list(self._pixels(names, deep.image_side)))
        deep.fit(pixels, labels)
        checkpoint.unlink(missing_ok=True)
        return deep

    def _put(
        self,
        index: HammingIndex,
        hasher: Hasher,
        names: list[str],
        labels: NDArray[Any] | None,
        labelled: list[str] | None = None,
    ) -> None:
        """Codes of these photos into the index, with their labels (which are those of ``labelled``)."""
        if not names:
            return
        if getattr(hasher, "takes_images", False):
            codes = np.concatenate([hasher.transform(p) for p in self._pixels(names, hasher.image_side)])
        else:
            codes = hasher.transform(self.kept.read(names))
        label = None if labels is None else dict(zip(labelled or names, labels.tolist(), strict=True))
        index.upsert(codes, names, None if label is None else [label[name] for name in names])

    def _pixels(self, names: list[str], side: int) -> Iterator[images.Pixels]:
        for i in range(0, len(names), AT_ONCE):
            some = [self.files[name] for name in names[i : i + AT_ONCE]]
            yield np.stack([images.decode(path, side, max_pixels=MOST_PIXELS) for path in some])
