"""torch, loaded when something of it is first used: ``from dish import DISH`` need not wait for it.

``from dish.lazy import Tensor, torch`` stands for ``import torch`` and ``from torch import Tensor``. Torch's threads
then sleep while they wait: spinning ones starve each other beside a busy neighbour.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

__all__ = ["Tensor", "threads_that_sleep", "torch"]


@contextmanager
def threads_that_sleep() -> Iterator[None]:
    """OpenMP libraries that are loaded inside let their threads sleep while they wait, unless the user chose.

    Each reads the variable once, when it is loaded, so that nothing has to stay in the environment.
    """
    if "OMP_WAIT_POLICY" in os.environ:
        yield
        return
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    try:
        yield
    finally:
        os.environ.pop("OMP_WAIT_POLICY", None)


if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:

    class _Later:
        """torch itself, from its first use on."""

        def __getattr__(self, name: str) -> Any:
            with threads_that_sleep():
                module = importlib.import_module("torch")
            self.__dict__ = module.__dict__  # from now on its names are found without coming here
            return getattr(module, name)

    class _TensorType(type):
        def __instancecheck__(cls, one: Any) -> bool:
            loaded = sys.modules.get("torch")  # if torch is not, nothing is a tensor
            return loaded is not None and isinstance(one, loaded.Tensor)

    class Tensor(metaclass=_TensorType):
        """``torch.Tensor``, for annotations and ``isinstance``."""

    torch = _Later()
