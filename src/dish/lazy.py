"""torch and numba, loaded when something of them is first used: ``from dish import DISH`` need not wait for them.

``from dish.lazy import Tensor, torch`` stands for ``import torch`` and ``from torch import Tensor``. Their threads
then sleep while they wait: spinning ones starve each other beside a busy neighbour.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

__all__ = ["Tensor", "numba", "quick_imports", "threads_that_sleep", "torch"]

NAMED_ONLY = ("scipy.stats", "pandas")  # scikit-learn imports them for a few functions: half of its time


@contextmanager
def quick_imports() -> Iterator[None]:
    """Imports inside take as little time as they can, and let OpenMP's threads sleep."""
    with ExitStack() as entered:
        entered.enter_context(threads_that_sleep())
        entered.enter_context(_no_garbage())
        for name in NAMED_ONLY:
            entered.enter_context(_named_only(name))
        yield


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


@contextmanager
def _no_garbage() -> Iterator[None]:
    """No search for garbage inside: modules leave little of it, and a search goes through all that is loaded."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def _named_only(name: str) -> Iterator[None]:
    """A module that imports inside may name is loaded when they use it; afterwards all is as if nobody had."""
    spec = None if name in sys.modules else importlib.util.find_spec(name)
    if spec is None:  # it is loaded, or not installed, which whoever asks for it has to see
        yield
        return
    later = sys.modules[name] = Later(name)  # type: ignore[assignment]
    later.__spec__ = spec  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if sys.modules.get(name) is later:
            del sys.modules[name]


class Later:
    """A module, from its first use on."""

    __slots__ = ("__dict__", "_name", "_others")

    def __init__(self, name: str, *others: str) -> None:
        self._name, self._others = name, others  # others are loaded with it where they are there

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self._name) is self:
            del sys.modules[self._name]
        with threads_that_sleep(), _no_garbage():
            module = importlib.import_module(self._name)
            for other in self._others:
                with suppress(ImportError):
                    importlib.import_module(other)
        self.__dict__ = module.__dict__  # from now on its names are found without coming here
        return getattr(module, name)


if TYPE_CHECKING:
    import numba
    import torch
    from torch import Tensor
else:

    class _TensorType(type):
        def __instancecheck__(cls, one: Any) -> bool:
            loaded = sys.modules.get("torch")  # if torch is not, nothing is a tensor
            return loaded is not None and isinstance(one, loaded.Tensor)

    class Tensor(metaclass=_TensorType):
        """``torch.Tensor``, for annotations and ``isinstance``."""

    torch = Later("torch")
    numba = Later("numba", "numba.np.ufunc.omppool")  # without that one numba uses other threads
