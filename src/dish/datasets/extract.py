"""Features of images by a network, as files: of a folder, of Tiny ImageNet's official folder, or of a named set."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.datasets import cifar
from dish.datasets.tinyimagenet import is_tinyimagenet, list_tinyimagenet
from dish.deep import image_features
from dish.errors import ImageError, InputError
from dish.io import images
from dish.io.data_cache import save_npy
from dish.io.feature_cache import FeatureCache
from dish.progress import progress

SETS: dict[str, Callable[[], Any]] = {"cifar10": cifar.load_cifar10}  # images by name


@dataclass(frozen=True)
class Extracted:
    """What was written: rows, their width, and whether there are labels; files that could not be read, and why."""

    n: int
    width: int
    labelled: bool
    problems: dict[str, str]


def write_features(source: str, output: Path, net: str) -> Extracted:
    """Features of images as ``output`` (.npy, rows of length one), with labels and names beside it.

    ``source`` is a folder of images or a name of ``SETS``. Sub-folders are labels (``X_labels.npy``, where
    ``read_features`` finds them), names of files go to ``X.ids.npy``. Until all are done, what is computed is kept
    beside the output, so that the same call resumes one that was cut off.
    """
    if source in SETS and not Path(source).exists():
        data = SETS[source]()
        return _write(output, array_features(data.X, net), np.asarray(data.label_names)[data.y], None, {})
    files, labels = list_images(Path(source))
    unfinished = output.with_name(f".{output.name}.unfinished.db")
    with FeatureCache(unfinished, net) as kept:
        image_features.file_features(files, kept, net)
        problems = kept.problems()
        if 2 * len(problems) > len(files):
            first = next(iter(problems.values()))
            raise ImageError(f"{len(problems)} of {len(files)} images cannot be read; the first: {first}")
        names = [name for name in files if name not in problems]
        X = kept.read(names)
    y = None if labels is None else np.array([labels[name] for name in names])
    written = _write(output, X, y, np.array(names), problems)
    unfinished.unlink()
    return written


def list_images(folder: Path) -> tuple[dict[str, Path], dict[str, str] | None]:
    """Image files by their name in the folder, and their labels: None where images lie beside the sub-folders."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is neither a folder of images nor one of {', '.join(SETS)}")
    if is_tinyimagenet(folder):
        listing = list_tinyimagenet(folder)
        return listing.files, dict(zip(listing.files, listing.labels, strict=True))
    found = {file.relative_to(folder).as_posix(): file for file in images.image_files(folder)}
    if not found:
        raise InputError(f"{folder} holds no images ({', '.join(sorted(images.suffixes()))})")
    loose = [name for name in found if "/" not in name]
    if loose and len(loose) < len(found):
        warnings.warn(
            f"{len(loose)} images of {folder} are in none of its sub-folders (such as {loose[0]}), so that "
            "sub-folders are not taken for labels",
            stacklevel=3,
        )
    return found, None if loose else {name: name.split("/")[0] for name in found}


def array_features(pixels: NDArray[np.uint8], net: str) -> NDArray[np.float32]:
    """Features (n, D) of images (n, H, W, 3), each resized to what the network takes."""
    Image = importlib.import_module("PIL.Image")
    phi = image_features.extractor(net)
    X = np.empty((len(pixels), phi.width), np.float32)
    with progress("computing features", len(pixels)) as step:
        for i in range(0, len(pixels), image_features.BATCH):
            some = pixels[i : i + image_features.BATCH]
            size = (phi.side, phi.side)
            larger = [np.asarray(Image.fromarray(x).resize(size, Image.Resampling.BILINEAR)) for x in some]
            X[i : i + len(some)] = phi(np.stack(larger))
            step(len(some))
    return X


def _write(
    output: Path, X: NDArray[np.float32], y: NDArray[Any] | None, ids: NDArray[Any] | None, problems: dict[str, str]
) -> Extracted:
    """The rows last: where they are, the rest is."""
    if y is not None:
        save_npy(output.with_name(f"{output.stem}_labels.npy"), y)
    if ids is not None:
        save_npy(output.with_suffix(".ids.npy"), ids)
    save_npy(output, X)
    return Extracted(len(X), X.shape[1], y is not None, problems)
