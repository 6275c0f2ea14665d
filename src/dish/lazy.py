"""torch, loaded when something of it is first used: ``from dish import DISH`` need not wait for it.

``from dish.lazy import Tensor, torch`` stands for ``import torch`` and ``from torch import Tensor``.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

__all__ = ["Tensor", "torch"]

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:

    class _Later:
        """A module by name."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            return getattr(importlib.import_module(self._name), name)

    class _TensorType(type):
        def __instancecheck__(cls, one: Any) -> bool:
            loaded = sys.modules.get("torch")  # if torch is not, nothing is a tensor
            return loaded is not None and isinstance(one, loaded.Tensor)

    class Tensor(metaclass=_TensorType):
        """``torch.Tensor``, for annotations and ``isinstance``."""

    torch = _Later("torch")
