"""Name → hasher class, and ``load``, which finds the class a model file was written by."""

from __future__ import annotations

import os

from dish.baselines import REGISTRY
from dish.deep.dish import DeepDISH
from dish.hasher import Hasher
from dish.io import modelfile
from dish.kernel.dish import DISH


def load(path: str | os.PathLike[str]) -> Hasher:
    """Read a hasher saved by ``save``; the right class comes back."""
    classes: list[type[Hasher]] = [DISH, DeepDISH, *REGISTRY.values()]
    kinds = {c.__name__: c for c in classes}
    kind, content, arrays = modelfile.read(path)
    if kind not in kinds:
        raise modelfile.ModelFileError(f"{path} holds a {kind}, which this version of dish does not know")
    try:
        return kinds[kind]._restore(content, arrays)
    except (TypeError, KeyError) as error:
        raise modelfile.ModelFileError(f"{path} does not fit this version of {kind}: {error}") from None
