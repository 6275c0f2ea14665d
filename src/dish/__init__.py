"""Supervised learning to hash: short binary codes from labelled rows, in linear time and memory."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name → module. Loaded on first use, so that `import dish` brings in neither torch nor numba.
_PUBLIC = {"DISH": "estimator", "HammingIndex": "index", "load": "base"}

if TYPE_CHECKING:
    from dish import baselines, cbcd, codes, datasets, gist, kernel, metrics, modelfile, similarity
    from dish.base import load
    from dish.estimator import DISH
    from dish.index import HammingIndex

__all__ = [
    "DISH",
    "HammingIndex",
    "baselines",
    "cbcd",
    "codes",
    "datasets",
    "gist",
    "kernel",
    "load",
    "metrics",
    "modelfile",
    "similarity",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(f"dish.{_PUBLIC[name]}"), name)
    if name in __all__:
        return importlib.import_module(f"dish.{name}")
    raise AttributeError(f"module 'dish' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
