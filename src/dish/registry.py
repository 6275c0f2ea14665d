"""Name → hasher class, including your own, and ``load``, which finds the class of a model file."""

from __future__ import annotations

import importlib
import os
import re
import sys
from importlib.metadata import entry_points
from types import ModuleType
from typing import TYPE_CHECKING

import dish
from dish import baselines
from dish.errors import InputError, ModelFileError
from dish.io import modelfile
from dish.lazy import has_torch

if TYPE_CHECKING:
    from dish.hasher import Hasher

OURS = {"dish": "DISH", "dish_k": "DISHK", "deep_dish": "DeepDISH", "dish_d": "DISHD"}  # name → class
RIVALS = baselines.CLASS_NAMES
NAMES = (*OURS, *RIVALS)
GROUP = "dish.hashers"  # entry points of other packages: name = "module:Class"


def find(name: str) -> type:
    """The class of a method: a registry name, a name that an installed package declares, or ``module:Class``.

    The module is on Python's path or in the current folder.
    A class needs ``n_bits=`` and ``random_state=``, ``fit``, ``transform`` and ``decision_function``.
    """
    if name in OURS:
        return _ours(name)
    if name in RIVALS:
        return baselines.REGISTRY[name]
    for declared in entry_points(group=GROUP, name=name):
        return _checked(name, declared.load())
    if not re.fullmatch(r"\w+(\.\w+)*:\w+", name):
        known = [*NAMES, *entry_points(group=GROUP).names]
        raise InputError(f"method must be one of {', '.join(known)}, or module:Class of your own; got {name!r}")
    module, kind = name.split(":")
    try:
        found = getattr(_imported(module), kind)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise InputError(f"method {name!r}: {module} imports {error.name}, which is not installed") from None
        raise InputError(
            f"method {name!r}: there is no module {error.name} in the current folder, {os.getcwd()}, or on Python's "
            "path; go to its folder, or set PYTHONPATH to that folder"
        ) from None
    except AttributeError:
        raise InputError(f"method {name!r}: the module {module} has no {kind}") from None
    return _checked(name, found)


def _imported(module: str) -> ModuleType:
    """A module on Python's path, or else in the current folder, which is then added to the end of that path."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.split(".")[0] or os.getcwd() in sys.path:
            raise
    sys.path.append(os.getcwd())  # not only for this import: the module may import its neighbours later
    importlib.invalidate_caches()
    return importlib.import_module(module)


def _ours(name: str) -> type[Hasher]:
    """One of our four estimators; the others are not imported."""
    found: type[Hasher] = getattr(dish, OURS[name])
    return found


def _checked(name: str, found: object) -> type:
    needed = ("fit", "transform", "decision_function")
    missing = [method for method in needed if not hasattr(found, method)]
    if not isinstance(found, type) or missing:
        problem = f"has no {', '.join(missing)}" if isinstance(found, type) else "is not a class"
        raise InputError(f"method {name!r} must be a class with {', '.join(needed)}; it {problem}")
    return found


def _class_of(kind: str) -> type[Hasher] | None:
    """The class of that name among our estimators and the rivals."""
    for name, class_name in {**OURS, **RIVALS}.items():
        if class_name == kind:
            return _ours(name) if name in OURS else baselines.REGISTRY[name]
    return None


def load(path: str | os.PathLike[str]) -> Hasher:
    """Read a hasher written by ``save``. The right class comes back.

    Without torch, hashers with kernel features and most simple rivals encode in NumPy; none can learn.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from dish import DISH, load
    >>> X = np.random.default_rng(0).normal(size=(60, 5))
    >>> hasher = DISH(n_bits=8, n_anchors=20).fit(X, X[:, 0] > 0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     hasher.save(f"{folder}/model.dish")
    ...     same = load(f"{folder}/model.dish")
    >>> bool((same.transform(X) == hasher.transform(X)).all())
    True
    """
    kind, content, arrays = modelfile.read(path)
    if kind == "HammingIndex":
        raise ModelFileError(f"{path} holds an index, not a model; HammingIndex.load reads it")
    try:
        found = _class_of(kind)
        if found is None:
            raise ModelFileError(f"{path} holds a {kind}, which this version of dish does not know")
        return found._restore(content, arrays)
    except ModelFileError:
        raise
    except ModuleNotFoundError as error:
        if has_torch() or error.name != "torch":
            raise
        missing = f"{kind} encodes with torch, which is not installed: pip install torch"
        raise ModelFileError(f"{path}: {missing}") from None
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        raise ModelFileError(f"{path} does not fit this version of {kind}: {error}") from None
