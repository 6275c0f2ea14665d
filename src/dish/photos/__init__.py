"""A folder of somebody's photos: features, codes and an index, kept up to date from one day to the next.

``plan`` says what there is to do, ``reopen`` opens a library in which nothing has changed, ``library`` brings one up
to date. ``state`` is what is remembered between two calls, ``tuning`` fine-tunes a network, ``alike`` finds copies.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dish.photos.options import Wishes
from dish.photos.reopen import Library, reopen

if TYPE_CHECKING:
    from dish.photos.library import open_library

__all__ = ["Library", "Wishes", "open_library", "reopen"]


_LATER = {"open_library": "dish.photos.library"}  # loads torch, which an unchanged library does without


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module 'dish.photos' has no attribute {name!r}")
