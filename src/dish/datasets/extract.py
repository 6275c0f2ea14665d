"""Write a network's features of images: of a folder, of Tiny ImageNet's official folder, or of a named data set."""

from __future__ import annotations

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

SETS: dict[str, Callable[[], Any]] = {"cifar10": cifar.load_cifar10}  # named data sets of images


@dataclass(frozen=True)
class Extracted:
    """What ``write_features`` wrote; ``problems`` says why a file could not be read."""

    n: int
    width: int
    labelled: bool
    problems: dict[str, str]


def write_features(source: str, output: Path, net: str) -> Extracted:
    """Write features with rows of norm one to ``output`` (.npy), and labels and file names next to it.

    ``source`` is a folder of images or a name in ``SETS``. Sub-folders are labels: for X.npy they go to
    ``X_labels.npy``, where ``read_features`` finds them, and file names to ``X.ids.npy``. Finished features are kept
    next to the output until all are done, so calling again resumes an interrupted call.
    """
    if source in SETS and not Path(source).exists():
        data = SETS[source]()
        return _write(output, array_features(data.X, net), np.asarray(data.label_names)[data.y], None, {})
    files, labels = list_images(Path(source))
    unfinished = output.with_name(f".{output.name}.unfinished.db")
    with FeatureCache(unfinished, net) as cache:
        image_features.file_features(files, cache, net)
        problems = cache.problems()
        if 2 * len(problems) > len(files):
            first = next(iter(problems.values()))
            raise ImageError(f"{len(problems)} of {len(files)} images cannot be read; the first: {first}")
        names = [name for name in files if name not in problems]
        X = cache.read(names)
    y = None if labels is None else np.array([labels[name] for name in names])
    written = _write(output, X, y, np.array(names), problems)
    unfinished.unlink()
    return written


def list_images(folder: Path) -> tuple[dict[str, Path], dict[str, str] | None]:
    """Return image files by relative path, and their labels; None if some images are not in a sub-folder."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is neither a folder of images nor a data set ({', '.join(SETS)})")
    if is_tinyimagenet(folder):
        listing = list_tinyimagenet(folder)
        return listing.files, dict(zip(listing.files, listing.labels, strict=True))
    found = {file.relative_to(folder).as_posix(): file for file in images.image_files(folder)}
    if not found:
        raise InputError(f"{folder} contains no images ({', '.join(sorted(images.suffixes()))})")
    loose = [name for name in found if "/" not in name]
    if loose and len(loose) < len(found):
        warnings.warn(
            f"sub-folders are not used as labels: {len(loose)} images of {folder} are in none of them, such as "
            f"{loose[0]}",
            stacklevel=3,
        )
    return found, None if loose else {name: name.split("/")[0] for name in found}


def array_features(pixels: NDArray[np.uint8], net: str) -> NDArray[np.float32]:
    """Return features (n, D) of images (n, H, W, 3), resized to the network's input size."""
    from PIL import Image

    phi = image_features.extractor(net)
    X = np.empty((len(pixels), phi.width), np.float32)
    with progress("computing features", len(pixels)) as step:
        for i in range(0, len(pixels), image_features.BATCH):
            some = pixels[i : i + image_features.BATCH]
            size = (phi.side, phi.side)
            resized = [np.asarray(Image.fromarray(x).resize(size, Image.Resampling.BILINEAR)) for x in some]
            X[i : i + len(some)] = phi(np.stack(resized))
            step(len(some))
    return X


def _write(
    output: Path, X: NDArray[np.float32], y: NDArray[Any] | None, ids: NDArray[Any] | None, problems: dict[str, str]
) -> Extracted:
    """Write the features last, so that their file exists only if the others do."""
    if y is not None:
        save_npy(output.with_name(f"{output.stem}_labels.npy"), y)
    if ids is not None:
        save_npy(output.with_suffix(".ids.npy"), ids)
    save_npy(output, X)
    return Extracted(len(X), X.shape[1], y is not None, problems)
