"""What the user asks for, and the method that follows from it. Nothing here loads a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from dish.errors import InputError
from dish.io import images
from dish.photos.folder import subfolder_labels
from dish.photos.state import LibraryState

BITS = {"pca_itq": 256, "dish": 64, "deep_dish": 64}  # 64 bits separate classes; similarity without labels needs more
GROWTH = 1.5  # codes are learned again once the library has grown by this factor
EPOCHS = 5  # default epochs per round of fine-tuning: enough for a pretrained network


@dataclass(frozen=True)
class PhotoOptions:
    """Options of a photo library. None: as in the last call, or what suits the folder.

    Parameters
    ----------
    bits : int or None
        Code length.
    labels : bool or None
        Whether sub-folders are labels.
    epochs : int or None
        Fine-tune a network, with this many epochs per round.
    relearn : bool
        Learn the codes again even if nothing has changed.
    """

    bits: int | None = None
    labels: bool | None = None
    epochs: int | None = None
    relearn: bool = False


def check_labels_early(files: Mapping[str, Path], options: PhotoOptions) -> None:
    """Raise InputError if labels are required but some photos have none, before features are computed."""
    if options.labels or options.epochs is not None:
        loose = (path for name, path in files.items() if "/" not in name)
        if any(images.is_readable(path) for path in loose):  # unreadable photos are skipped later
            next_state(options, None, subfolder_labels(list(files), options.labels))


def next_state(options: PhotoOptions, before: LibraryState | None, labels: NDArray[Any] | None) -> LibraryState:
    """Return how the codes are to be learned. A fine-tuned network is kept unless the options say otherwise."""
    if labels is None:
        if options.epochs is not None:
            raise InputError("--train needs labels: put the photos of each label into a sub-folder with its name")
        method = "pca_itq"
    else:
        tuned = before is not None and before.method == "deep_dish" and not options.relearn
        method = "deep_dish" if options.epochs is not None or tuned else "dish"
    bits = options.bits or (before.bits if before is not None and before.method == method else BITS[method])
    classes = () if labels is None else tuple(sorted(set(labels.tolist())))
    return LibraryState(method, bits, classes, 0 if before is None else before.rows)


def must_relearn(before: LibraryState, now: LibraryState, n: int) -> bool:
    """Return whether codes of n photos must be learned again: other method or labels, or many more photos."""
    changed = (before.method, before.bits, before.labels) != (now.method, now.bits, now.labels)
    return changed or n > GROWTH * before.rows
