"""Labelled data sets by name: real ones with the paper's splits, the user's own files, synthetic stand-ins.

Files are verified, and no code in them is executed. A stand-in is always called synthetic.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dish.datasets.cifar import cifar10_gist, load_cifar10
from dish.datasets.dataset import Dataset, Split, load_features, make_split
from dish.datasets.nuswide import is_nuswide, load_nuswide
from dish.datasets.synthetic import SyntheticImageNet, synthetic_imagenet, synthetic_nuswide
from dish.datasets.tinyimagenet import load_tinyimagenet
from dish.io.data_cache import cache_folder
from dish.io.rows import Shards

__all__ = [
    "DATASETS",
    "Dataset",
    "Shards",
    "Split",
    "SyntheticImageNet",
    "cache_folder",
    "cifar10_gist",
    "digits",
    "is_nuswide",
    "load_cifar10",
    "load_features",
    "load_nuswide",
    "load_tinyimagenet",
    "make_split",
    "synthetic_imagenet",
    "synthetic_nuswide",
]


def digits() -> Dataset:
    """Return scikit-learn's 1,797 handwritten digits: 8 × 8 pixels as float32 (n, 64) in [0, 1]."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return Dataset("digits", (X / 16).astype(np.float32), y, queries=20, label_names=tuple("0123456789"))


DATASETS: dict[str, Callable[..., Dataset]] = {
    "cifar10": load_cifar10,
    "cifar10_gist": cifar10_gist,
    "nuswide": load_nuswide,
    "tinyimagenet": load_tinyimagenet,
    "features": load_features,
    "digits": digits,
    "synthetic_nuswide": synthetic_nuswide,
    "synthetic_imagenet": synthetic_imagenet,
}
