"""Heavy packages and public names, imported on first use, so that ``from dish import DISH`` need not wait for torch.

``from dish.lazy import Tensor, torch`` replaces ``import torch`` and ``from torch import Tensor``.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

__all__ = ["Tensor", "attach", "has_torch", "numba", "torch"]


@contextmanager
def _sleeping_threads() -> Iterator[None]:
    """OpenMP libraries loaded inside let their threads sleep while they wait, unless the user chose otherwise.

    Spinning threads starve each other next to a busy neighbour. A library reads the variable once, when it is loaded,
    so it does not stay in the environment.
    """
    if "OMP_WAIT_POLICY" in os.environ:
        yield
        return
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    try:
        yield
    finally:
        os.environ.pop("OMP_WAIT_POLICY", None)


class LazyModule:
    """Stands for a module and imports it when one of its attributes is first used."""

    _module: Any = None  # of the class: a copy has no attributes of its own while it is being made

    def __init__(self, name: str, *companions: str) -> None:
        """``companions``: modules to import with it if they are installed."""
        self._name, self._companions = name, companions

    def __getattr__(self, name: str) -> Any:
        if self._module is None:
            if name.startswith("__"):
                raise AttributeError(name)  # copy and inspect ask for these; no reason to import anything
            self._module = self._load()
        return getattr(self._module, name)

    def _load(self) -> Any:
        with _sleeping_threads():
            try:
                module = importlib.import_module(self._name)
            except ModuleNotFoundError as error:
                if error.name != self._name:
                    raise
                missing = f"this needs {self._name}, which is not installed: pip install {self._name}"
                raise ModuleNotFoundError(missing, name=self._name) from None
            for companion in self._companions:
                with suppress(ImportError):
                    importlib.import_module(companion)
        return module


@cache
def has_torch() -> bool:
    """Whether torch is installed. Without it, dish encodes and searches but does not learn."""
    return find_spec("torch") is not None


def attach(package: str, places: dict[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package whose names are imported on first use.

    ``places``: public name → the module that defines it; the name of a module maps to the module itself.
    """

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with _sleeping_threads():  # scikit-learn brings an OpenMP library too
            module = importlib.import_module(places[name])
        found = module if places[name] == f"{package}.{name}" else getattr(module, name)
        setattr(sys.modules[package], name, found)
        return found

    return get, lambda: sorted(places)


if TYPE_CHECKING:
    import numba
    import torch
    from torch import Tensor
else:

    class _TensorType(type):
        def __instancecheck__(cls, one: Any) -> bool:
            loaded = sys.modules.get("torch")  # before torch is imported, nothing is a tensor
            return loaded is not None and isinstance(one, loaded.Tensor)

    class Tensor(metaclass=_TensorType):
        """``torch.Tensor``, for annotations and ``isinstance``."""

    torch = LazyModule("torch")
    numba = LazyModule("numba", "numba.np.ufunc.omppool")  # the companion selects OpenMP threads
