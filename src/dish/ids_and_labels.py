"""What an item carries beside its code: an id, and perhaps a label. The index and the stores read both alike."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.errors import InputError
from dish.labels import is_missing

Ids = NDArray[Any]  # int64, or objects that are all str


def as_ids(ids: Any, n: int | None = None) -> Ids:
    """Ids as int64, or as an array of str objects."""
    if isinstance(ids, str | bytes) or (np.ndim(ids) == 0 and not hasattr(ids, "__iter__")):
        raise InputError(f"ids must be a list of ids, got {ids!r}")
    given = ids if isinstance(ids, np.ndarray) else object_array(list(ids))
    if given.ndim != 1:
        raise InputError(f"ids must be a list of ids, got shape {given.shape}")
    if n is not None and len(given) != n:
        raise InputError(f"ids has {len(given):,} entries for {n:,} codes")
    if not len(given):
        return np.empty(0, np.int64)
    if given.dtype.kind == "U" or (given.dtype == object and all(isinstance(one, str) for one in given)):
        return object_array(given.tolist())
    whole = given.dtype.kind in "iu" or (
        given.dtype == object
        and all(isinstance(one, int | np.integer) and not isinstance(one, bool | np.bool_) for one in given)
    )
    if not whole:
        raise InputError(f"ids must be whole numbers or strings, all of one kind; got {given[0]!r} among them")
    try:
        if given.dtype == np.uint64 and given.max() > np.iinfo(np.int64).max:
            raise OverflowError
        return given.astype(np.int64)
    except OverflowError:
        raise InputError("ids must fit into 64 bits with a sign") from None


def as_labels(labels: Any, n: int) -> list[Any] | None:
    """Labels as plain values, one per row, each of the type it came in; None (also for NaN, NaT): no label."""
    if labels is None:
        return None
    given = object_array(list(labels)) if isinstance(labels, list | tuple) else np.asarray(labels)
    if given.ndim != 1 or len(given) != n:
        raise InputError(f"labels must be one per row, {n:,} of them; got shape {given.shape}")
    missing = is_missing(given)
    values: list[Any] = given.tolist()
    if given.dtype == object:
        values = [value.item() if isinstance(value, np.generic) else value for value in values]
    if missing.any():
        values = [None if gap else value for value, gap in zip(values, missing.tolist(), strict=True)]
    odd = set(map(type, values)) - {str, int, float, bool, type(None)}
    if odd:
        names = ", ".join(sorted(kind.__name__ for kind in odd))
        raise InputError(f"labels must be numbers or strings (None: no label); got {names} among them")
    return values


def label_array(values: list[Any]) -> NDArray[Any]:
    """Labels as an array of their own type if it holds them unchanged, else as an array of objects."""
    if len(set(map(type, values))) == 1 and values[0] is not None:
        typed = np.array(values)
        if typed.tolist() == values:
            return typed
    return object_array(values)


def object_array(values: list[Any]) -> NDArray[Any]:
    """A list as an array of objects (n,), whatever the objects are."""
    array = np.empty(len(values), object)
    array[:] = values
    return array
