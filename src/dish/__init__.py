"""Supervised learning to hash: short binary codes from labelled rows, in linear time and memory."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dish.lazy import quick_imports

__version__ = "0.1.0"

# Public name → where it lives. Loaded on first use, so that `import dish` brings in neither torch nor numba.
_NAMES = {
    "DISH": "dish.kernel.dish",
    "DeepDISH": "dish.deep.deep_dish",
    "HammingIndex": "dish.index",
    "load": "dish.registry",
    "recommend": "dish.evaluation.tune",
}
_MODULES = {
    "baselines": "dish.baselines",
    "cbcd": "dish.cbcd",
    "codes": "dish.codes",
    "datasets": "dish.datasets",
    "gist": "dish.datasets.gist",
    "images": "dish.io.images",
    "kernel": "dish.kernel",
    "metrics": "dish.metrics",
    "modelfile": "dish.io.modelfile",
    "nets": "dish.nets",
    "similarity": "dish.similarity",
}

if TYPE_CHECKING:
    from dish import baselines, cbcd, codes, datasets, kernel, metrics, nets, similarity
    from dish.datasets import gist
    from dish.deep.deep_dish import DeepDISH
    from dish.evaluation.tune import recommend
    from dish.index import HammingIndex
    from dish.io import images, modelfile
    from dish.kernel.dish import DISH
    from dish.registry import load

__all__ = [
    "DISH",
    "DeepDISH",
    "HammingIndex",
    "baselines",
    "cbcd",
    "codes",
    "datasets",
    "gist",
    "images",
    "kernel",
    "load",
    "metrics",
    "modelfile",
    "nets",
    "recommend",
    "similarity",
]


def __getattr__(name: str) -> Any:
    if name not in _NAMES and name not in _MODULES:
        raise AttributeError(f"module 'dish' has no attribute {name!r}")
    with quick_imports():
        module = importlib.import_module(_NAMES.get(name) or _MODULES[name])
    found = globals()[name] = getattr(module, name) if name in _NAMES else module  # asked for once
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
