"""The kernel hash function F(x) = Wᵀ k(x): anchors, feature map, whitening, spectral start, F-steps, polish.

``DISH`` puts them together. Names are loaded on first use: ``import dish.kernel`` brings in neither torch nor numba.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dish.kernel.anchors import choose_anchors
    from dish.kernel.dish import DISH
    from dish.kernel.features import FeatureMap, KernelRows
    from dish.kernel.fit_data import Problem, prepare
    from dish.kernel.fstep import LOSSES, ClassifierStep, LinearStep, Loss
    from dish.kernel.functions import Classifiers, HashFunction, Linear
    from dish.kernel.kernel_hasher import KernelHasher
    from dish.kernel.spectral import Relaxation, spectral_start
    from dish.kernel.whitening import Whitening, gram

_NAMES = {
    "DISH": "dish",
    "KernelHasher": "hasher",
    "Problem": "problem",
    "prepare": "problem",
    "HashFunction": "functions",
    "Linear": "functions",
    "Classifiers": "functions",
    "FeatureMap": "features",
    "KernelRows": "features",
    "choose_anchors": "anchors",
    "Whitening": "whitening",
    "gram": "whitening",
    "Relaxation": "spectral",
    "spectral_start": "spectral",
    "LOSSES": "fstep",
    "Loss": "fstep",
    "LinearStep": "fstep",
    "ClassifierStep": "fstep",
}

__all__ = [
    "DISH",
    "LOSSES",
    "ClassifierStep",
    "Classifiers",
    "FeatureMap",
    "HashFunction",
    "KernelHasher",
    "KernelRows",
    "Linear",
    "LinearStep",
    "Loss",
    "Problem",
    "Relaxation",
    "Whitening",
    "choose_anchors",
    "gram",
    "prepare",
    "spectral_start",
]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(f"dish.kernel.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'dish.kernel' has no attribute {name!r}")
