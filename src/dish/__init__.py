"""Supervised learning to hash: short binary codes from labelled rows, in linear time and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dish.lazy import attach

__version__ = "0.1.0"

if TYPE_CHECKING:
    from dish import baselines, codes, datasets, metrics, nets, registry, similarity
    from dish.deep.deep_dish import DeepDISH
    from dish.deep.dish_d import DISHD
    from dish.evaluation.tune import recommend
    from dish.index.hamming import HammingIndex
    from dish.kernel.dish_k import DISHK
    from dish.posterior.dish import DISH
    from dish.registry import load

__all__ = [
    "DISH",
    "DISHD",
    "DISHK",
    "DeepDISH",
    "HammingIndex",
    "baselines",
    "codes",
    "datasets",
    "load",
    "metrics",
    "nets",
    "recommend",
    "registry",
    "similarity",
]

_MODULES = ("baselines", "codes", "datasets", "metrics", "nets", "registry", "similarity")
__getattr__, __dir__ = attach(  # importing dish loads neither torch nor numba
    "dish",
    {
        "DISH": "dish.posterior.dish",
        "DISHD": "dish.deep.dish_d",
        "DISHK": "dish.kernel.dish_k",
        "DeepDISH": "dish.deep.deep_dish",
        "HammingIndex": "dish.index.hamming",
        "load": "dish.registry",
        "recommend": "dish.evaluation.tune",
        **{name: f"dish.{name}" for name in _MODULES},
    },
)
