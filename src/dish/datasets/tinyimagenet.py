"""Tiny ImageNet from its official folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dish.datasets.dataset import Dataset
from dish.errors import DataFileError
from dish.io import images
from dish.io.readers import StrPath

SIDE = 64
ANNOTATIONS = Path("val") / "val_annotations.txt"


@dataclass(frozen=True)
class Listing:
    """Image files and their labels, which are WordNet ids such as n01443537: ``train`` first, then ``val``."""

    files: dict[str, Path]  # by path relative to the folder
    labels: list[str]
    n_train: int


def is_tinyimagenet(path: Path) -> bool:
    """Return whether a folder has the official layout."""
    return (path / "train").is_dir() and (path / ANNOTATIONS).is_file()


def list_tinyimagenet(path: StrPath) -> Listing:
    """List ``train/<wnid>/images/*.JPEG``, and ``val/images/*.JPEG`` with labels from ``val/val_annotations.txt``."""
    root = Path(path)
    if not is_tinyimagenet(root):
        raise FileNotFoundError(f"no Tiny ImageNet at {root}: a folder train and a file {ANNOTATIONS} are needed")
    files: dict[str, Path] = {}
    labels: list[str] = []
    for folder in sorted(p for p in (root / "train").iterdir() if p.is_dir()):
        found = images.image_files(folder / "images")
        if not found:
            raise DataFileError(f"{folder / 'images'} contains no images: the data set is incomplete")
        files |= {file.relative_to(root).as_posix(): file for file in found}
        labels += [folder.name] * len(found)
    n_train, known = len(files), set(labels)
    for number, line in enumerate((root / ANNOTATIONS).read_text(encoding="utf-8").splitlines(), 1):
        name, wnid, *_ = [*line.split("\t"), "", ""]
        file = root / "val" / "images" / name
        if wnid not in known:
            raise DataFileError(f"{root / ANNOTATIONS}, line {number}: train has no class {wnid!r}")
        if not file.is_file():
            raise DataFileError(f"{root / ANNOTATIONS}, line {number}: there is no {file}")
        files[file.relative_to(root).as_posix()] = file
        labels.append(wnid)
    return Listing(files, labels, n_train)


def load_tinyimagenet(path: StrPath) -> Dataset:
    """Return Tiny ImageNet: 110,000 images, uint8 (n, 64, 64, 3), 550 in each of 200 classes; 1.4 GB of memory.

    ``path`` is the official folder tiny-imagenet-200. Rows of ``train`` come first, then ``val``; the images in
    ``test`` have no labels and are not read. ``ids`` are the paths of the files relative to the folder.
    """
    listing = list_tinyimagenet(path)
    pixels, kept = images.read_files(list(listing.files.values()), SIDE)
    classes, y = np.unique(listing.labels, return_inverse=True)
    names = _words(Path(path) / "words.txt")
    ids = np.array(list(listing.files))[kept]
    label_names = tuple(names.get(wnid, wnid) for wnid in classes.tolist())
    return Dataset("tinyimagenet", pixels, y[kept], queries=50, label_names=label_names, ids=ids)


def _words(path: Path) -> dict[str, str]:
    """Return the name of each WordNet id; empty if there is no such file."""
    if not path.is_file():
        return {}
    lines = (line.split("\t") for line in path.read_text(encoding="utf-8").splitlines() if "\t" in line)
    return {line[0]: line[1].split(",")[0] for line in lines}
