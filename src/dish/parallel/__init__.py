"""Several processes that learn together, each with a contiguous range of the rows, in the order of their ranks.

``transport`` sends, ``ranks`` shares out rows and errors, ``selection`` finds the k largest values of all processes.
One process alone needs no torch: ``selection``, which works on tensors, is loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dish.parallel.ranks import ALONE, Ranks, current, from_environment

if TYPE_CHECKING:
    from dish.parallel.selection import between, kth_largest, sample

_NAMES = dict.fromkeys(("between", "kth_largest", "sample"), "selection")
__all__ = ["ALONE", "Ranks", "between", "current", "from_environment", "kth_largest", "sample"]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(f"dish.parallel.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'dish.parallel' has no attribute {name!r}")
