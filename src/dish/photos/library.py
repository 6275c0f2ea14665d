"""Open a folder of photos: what is new gets features and codes, what is gone leaves the index, the rest is read.

Photos without labels get PCA-ITQ codes of their features; where every photo lies in a sub-folder, the sub-folders are
labels and DISH learns from them. Either takes seconds, since the network that makes the features stays as it is.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.baselines.itq import PCAITQ
from dish.deep.features import MOST_PIXELS, NET, file_features
from dish.hasher import Hasher
from dish.index.hamming import HammingIndex
from dish.io import images, modelfile
from dish.io.featurecache import FeatureCache
from dish.kernel.dish import DISH
from dish.photos import tuning
from dish.photos.alike import groups_alike
from dish.photos.state import State, home_of, read_state, write_state
from dish.registry import load

BITS = {"pca_itq": 256, "dish": 64, "dish_d": 64}  # 64 tell classes apart; without labels more bits see more
GROWTH = 1.5  # codes are learned anew once there are so many times the photos they were learned from
FEW = 3  # photos that a sub-folder has at the median, at least, where sub-folders are taken for labels
AT_ONCE = 64

Say = Callable[[str], None]


@dataclass(frozen=True)
class Wishes:
    """What somebody asks for. None: what was there before, or what suits the folder.

    ``labels``: whether sub-folders are labels; ``epochs``: fine-tune a network with that many passes in each round;
    ``again``: learn the codes anew.
    """

    bits: int | None = None
    labels: bool | None = None
    epochs: int | None = None
    again: bool = False


@dataclass(frozen=True)
class Library:
    """An open folder: its hasher and index are in ``home``, as files that ``dish serve`` reads too."""

    folder: Path
    home: Path
    hasher: Hasher
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


def open_library(folder: Path, wishes: Wishes | None = None, home: Path | None = None, say: Say = print) -> Library:
    """Bring the library of a folder up to date, and open it."""
    wishes, home = wishes or Wishes(), home or home_of(folder)
    files = scan(folder)
    _note_unreadable(folder, say)
    before = read_state(home)
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


def scan(folder: Path) -> dict[str, Path]:
    """The photos below a folder, by their path in it; hidden ones and links that lead out are left out."""
    if not folder.is_dir():
        raise NotADirectoryError(f"FOLDER: {folder} is not a folder")
    root, readable, found = folder.resolve(), images.suffixes(), {}
    for parent, inner, names in os.walk(root):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        for name in sorted(names):
            path = Path(parent, name)
            if name.startswith(".") or path.suffix.lower() not in readable or not path.is_file():
                continue
            if path.is_symlink() and not path.resolve().is_relative_to(root):
                continue
            found[path.relative_to(root).as_posix().encode("utf8", "replace").decode()] = path
    if len(found) < 2:
        raise ValueError(f"FOLDER: {folder} has {len(found)} photos ({', '.join(sorted(readable))}); it needs two")
    return found


def _note_unreadable(folder: Path, say: Say) -> None:
    """Photos of kinds that only a plug-in of Pillow reads, which is not here."""
    wanted = images.PLUGGED.keys() - images.suffixes()
    left = Counter(path.suffix.lower() for path in folder.rglob("*") if path.suffix.lower() in wanted)
    for suffix, n in sorted(left.items()):
        say(f"{n:,} {suffix} files are left out: pip install {images.PLUGGED[suffix]} reads them")


def labels_of(names: Sequence[str], wanted: bool | None) -> NDArray[np.str_] | None:
    """The sub-folder of every photo, or None where sub-folders are no labels."""
    if wanted is False:
        return None
    tops = [name.partition("/")[0] if "/" in name else "" for name in names]
    sizes = Counter(tops)
    problem = ""
    if "" in sizes:
        problem = f"{sizes['']:,} photos lie in no sub-folder"
    elif len(sizes) < 2:
        problem = "there are not two sub-folders"
    elif wanted is None and np.median(list(sizes.values())) < FEW:
        problem = "most sub-folders have hardly any photos"
    if problem and wanted:
        raise ValueError(f"--labels takes the sub-folders for labels, but {problem}")
    return None if problem else np.array(tops)


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
        removed = _taken_out(before, index, sound, changed)
        members = [name for name in sound if name not in removed]
        if len(members) < 2:
            raise ValueError(f"FOLDER: {self.folder} has {len(members)} photos that can be read; it needs two")
        labels = labels_of(members, wishes.labels)
        state = _wanted(wishes, before, labels)
        if hasher is None or before is None or wishes.again or _outdated(before, state, len(members)):
            hasher, index, state = (
                self._learn(state, labels, members, wishes),
                None,
                replace(state, rows=len(members)),
            )
            hasher.save(self.home / "model.dish")
        state = replace(state, members=tuple(members), removed=tuple(sorted(removed)))
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
        except (OSError, modelfile.ModelFileError):
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
        epochs = wishes.epochs or tuning.EPOCHS
        time = tuning.in_words(tuning.seconds_needed(len(names), epochs))
        self.say(f"fine-tuning the network: {tuning.passes(epochs)} passes over {len(names):,} photos, {time} here")
        checkpoint = self.home / "tuning.checkpoint"
        deep = tuning.tuner(state.bits, epochs, checkpoint)
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


def _taken_out(before: State | None, index: HammingIndex | None, sound: list[str], changed: list[str]) -> set[str]:
    """Photos that were removed by hand: they stay out until their file changes."""
    if before is None:
        return set()
    removed = set(before.removed)
    if index is not None:
        removed |= set(before.members) - set(index.ids.tolist())
    return (removed & set(sound)) - set(changed)


def _wanted(wishes: Wishes, before: State | None, labels: NDArray[Any] | None) -> State:
    """How the codes are to be learned. A network that was fine-tuned stays, if nothing else is asked for."""
    if labels is None:
        if wishes.epochs is not None:
            raise ValueError("--train learns from labels: put the photos of each label into a sub-folder of its name")
        method = "pca_itq"
    else:
        tuned = before is not None and before.method == "dish_d" and not wishes.again
        method = "dish_d" if wishes.epochs is not None or tuned else "dish"
    bits = wishes.bits or (before.bits if before is not None and before.method == method else BITS[method])
    classes = () if labels is None else tuple(sorted(set(labels.tolist())))
    return State(method, bits, classes, 0 if before is None else before.rows)


def _outdated(before: State, now: State, n: int) -> bool:
    """Whether the codes must be learned anew: another method, other labels, or far more photos than then."""
    other = (before.method, before.bits, before.labels) != (now.method, now.bits, now.labels)
    return other or n > GROWTH * before.rows
