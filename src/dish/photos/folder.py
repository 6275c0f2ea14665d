"""The photos in a folder, and the labels that its sub-folders give them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dish.errors import InputError
from dish.io import images

LEAST_PHOTOS = 3  # least median number of photos per sub-folder for sub-folders to be labels by default

Say = Callable[[str], None]  # prints a line for the user


def find_photos(folder: Path) -> dict[str, Path]:
    """Return the photos below a folder by their relative path, without hidden files and links that lead outside."""
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
        kinds = ", ".join(sorted(readable))
        raise InputError(f"FOLDER: {folder} must have at least two photos ({kinds}), found {len(found)}")
    return found


def report_unsupported(folder: Path, say: Say) -> None:
    """Say which photos are skipped because Pillow needs a plug-in that is not installed."""
    missing = images.PLUGGED.keys() - images.suffixes()
    skipped = Counter(path.suffix.lower() for path in folder.rglob("*") if path.suffix.lower() in missing)
    for suffix, n in sorted(skipped.items()):
        say(f"{n:,} {suffix} files are skipped; to read them, run pip install {images.PLUGGED[suffix]}")


def subfolder_labels(names: Sequence[str], wanted: bool | None) -> NDArray[np.str_] | None:
    """Return the sub-folder of every photo as its label, or None if sub-folders are not labels.

    ``wanted``: True requires labels, False ignores them; None uses them if every photo is in a sub-folder and there
    are enough photos per sub-folder.
    """
    if wanted is False:
        return None
    tops = [name.partition("/")[0] if "/" in name else "" for name in names]
    sizes = Counter(tops)
    problem = ""
    if "" in sizes:
        problem = f"{sizes['']:,} photos are not in a sub-folder"
    elif len(sizes) < 2:
        problem = "there are fewer than two sub-folders"
    elif wanted is None and np.median(list(sizes.values())) < LEAST_PHOTOS:
        problem = f"most sub-folders have fewer than {LEAST_PHOTOS} photos"
    if problem and wanted:
        raise InputError(f"--labels uses sub-folders as labels, but {problem}")
    return None if problem else np.array(tops)
