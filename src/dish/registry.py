"""Name → hasher class, one's own included, and ``load``, which finds the class a model file was written by.

Without torch there are no classes that learn, and ``load`` gives a ``FrozenHasher``, which encodes.
"""

from __future__ import annotations

import importlib
import os
import re
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

import dish
from dish import baselines
from dish.errors import InputError, ModelFileError
from dish.hasher import Hasher
from dish.io import modelfile
from dish.kernel.frozen import FrozenHasher

HAS_TORCH = find_spec("torch") is not None
OURS = {"dish": "DISH", "dish_k": "DISH", "deep_dish": "DeepDISH", "dish_d": "DeepDISH"}
NAMES = {**OURS, **baselines.CLASS_NAMES} if HAS_TORCH else {}  # → class
PRESETS: dict[str, dict[str, Any]] = {  # the paper's own algorithms
    "dish_k": {"loss": "ridge", "similar_weight": 2.0},
    "dish_d": {"head": "paper"},
}
GROUP = "dish.hashers"  # entry points of other packages: name = "module:Class"


def find(name: str) -> type:
    """The class of a method: a registry name, a name that an installed package declares, or ``module:Class``.

    A class needs ``n_bits=`` and ``random_state=``, ``fit``, ``transform`` and ``decision_function``.
    """
    if name in NAMES:
        return _own(NAMES[name])
    for declared in entry_points(group=GROUP, name=name):
        return _checked(name, declared.load())
    if not re.fullmatch(r"[\w.]+:\w+", name):
        known = [*NAMES, *entry_points(group=GROUP).names]
        raise InputError(f"method must be one of {', '.join(known)}, or module:Class of your own; got {name!r}")
    module, kind = name.split(":")
    try:
        found = getattr(importlib.import_module(module), kind)
    except ModuleNotFoundError as error:
        raise InputError(f"method {name!r}: {error}; is its folder on PYTHONPATH?") from None
    except AttributeError:
        raise InputError(f"method {name!r}: the module {module} has no {kind}") from None
    return _checked(name, found)


def _own(kind: str) -> type[Hasher]:
    """One of our own classes; the others need not be loaded for it."""
    if kind in dish.__all__:
        found: type[Hasher] = getattr(dish, kind)
        return found
    return baselines.REGISTRY[next(name for name, other in NAMES.items() if other == kind)]


def _checked(name: str, found: object) -> type:
    needed = ("fit", "transform", "decision_function")
    missing = [method for method in needed if not hasattr(found, method)]
    if not isinstance(found, type) or missing:
        lacks = f"has no {', '.join(missing)}" if isinstance(found, type) else "is no class"
        raise InputError(f"method {name!r} must be a class with {', '.join(needed)}; it {lacks}")
    return found


def load(path: str | os.PathLike[str]) -> Hasher:
    """Read a hasher saved by ``save``; the right class comes back, or without torch one that only encodes.

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
    if HAS_TORCH and kind not in NAMES.values():
        raise ModelFileError(f"{path} holds a {kind}, which this version of dish does not know")
    try:
        return _own(kind)._restore(content, arrays) if HAS_TORCH else FrozenHasher.of(kind, content, arrays)
    except ModelFileError:
        raise
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        raise ModelFileError(f"{path} does not fit this version of {kind}: {error}") from None
