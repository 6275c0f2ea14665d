"""What a folder of photos asks for: its files, which of them are labelled, and how the codes are to be learned.

Nothing here needs a network: a library that has not changed is opened by this alone.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.errors import InputError
from dish.index.hamming import HammingIndex
from dish.io import images
from dish.photos.state import State

BITS = {"pca_itq": 256, "dish": 64, "dish_d": 64}  # 64 tell classes apart; without labels more bits see more
GROWTH = 1.5  # codes are learned anew once there are so many times the photos they were learned from
EPOCHS = 5  # passes in each round of fine-tuning: enough for a network that knows photos
FEW = 3  # photos that a sub-folder has at the median, at least, where sub-folders are taken for labels

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
        raise InputError(f"FOLDER: {folder} has {len(found)} photos ({', '.join(sorted(readable))}); it needs two")
    return found


def note_unreadable(folder: Path, say: Say) -> None:
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
        raise InputError(f"--labels takes the sub-folders for labels, but {problem}")
    return None if problem else np.array(tops)


def refuse_loose(files: Mapping[str, Path], wishes: Wishes) -> None:
    """Refuse to take sub-folders for labels where photos lie in none, before minutes of work on their features."""
    if wishes.labels or wishes.epochs is not None:
        loose = (path for name, path in files.items() if "/" not in name)
        if any(images.is_readable(path) for path in loose):  # what cannot be read is left out later
            wanted(wishes, None, labels_of(list(files), wishes.labels))


def taken_out(before: State | None, index: HammingIndex | None, sound: list[str], changed: list[str]) -> set[str]:
    """Photos that were removed by hand: they stay out until their file changes."""
    if before is None:
        return set()
    removed = set(before.removed)
    if index is not None:
        removed |= set(before.members) - set(index.ids.tolist())
    return (removed & set(sound)) - set(changed)


def wanted(wishes: Wishes, before: State | None, labels: NDArray[Any] | None) -> State:
    """How the codes are to be learned. A network that was fine-tuned stays, if nothing else is asked for."""
    if labels is None:
        if wishes.epochs is not None:
            raise InputError("--train learns from labels: put the photos of each label into a sub-folder of its name")
        method = "pca_itq"
    else:
        tuned = before is not None and before.method == "dish_d" and not wishes.again
        method = "dish_d" if wishes.epochs is not None or tuned else "dish"
    bits = wishes.bits or (before.bits if before is not None and before.method == method else BITS[method])
    classes = () if labels is None else tuple(sorted(set(labels.tolist())))
    return State(method, bits, classes, 0 if before is None else before.rows)


def outdated(before: State, now: State, n: int) -> bool:
    """Whether the codes must be learned anew: another method, other labels, or far more photos than then."""
    other = (before.method, before.bits, before.labels) != (now.method, now.bits, now.labels)
    return other or n > GROWTH * before.rows
