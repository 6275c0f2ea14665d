"""Validation of ids and labels, shared by the index and the stores."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.errors import InputError
from dish.labels import as_array, is_missing, object_array

Ids = NDArray[Any]  # int64, or dtype object with str elements


def as_ids(ids: Any, n: int | None = None) -> Ids:
    """Validate a list of ids (n of them, if n is given) and return an array of int64 or of str objects."""
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
    integers = given.dtype.kind in "iu" or (
        given.dtype == object
        and all(isinstance(one, int | np.integer) and not isinstance(one, bool | np.bool_) for one in given)
    )
    if not integers:
        raise InputError(f"ids must be all integers or all strings, got {_names(set(map(type, given.tolist())))}")
    try:
        if given.dtype == np.uint64 and given.max() > np.iinfo(np.int64).max:
            raise OverflowError
        return given.astype(np.int64)
    except OverflowError:
        raise InputError("ids must fit into 64-bit signed integers") from None


def as_labels(labels: Any, n: int) -> list[Any] | None:
    """Validate n labels and return them as plain values of their own types; None, NaN and NaT become None."""
    if labels is None:
        return None
    given = as_array(labels)
    if given.ndim != 1 or len(given) != n:
        raise InputError(f"labels must hold one label per row, {n:,} in all; got shape {given.shape}")
    if given.dtype.kind in "mM":  # as a list, times would be whole numbers
        raise InputError("labels must be numbers or strings (None: no label), got times: pass them as strings")
    missing = is_missing(given)
    values: list[Any] = given.tolist()
    if given.dtype == object:
        values = [value.item() if isinstance(value, np.generic) else value for value in values]
    if missing.any():
        values = [None if gap else value for value, gap in zip(values, missing.tolist(), strict=True)]
    unsupported = set(map(type, values)) - {str, int, float, bool, type(None)}
    if unsupported:
        raise InputError(f"labels must be numbers or strings (None: no label), got {_names(unsupported)}")
    return values


def label_array(values: list[Any]) -> NDArray[Any]:
    """Return labels as an array of their own type if it can hold them unchanged, else of dtype object."""
    if len(set(map(type, values))) == 1 and values[0] is not None:
        typed = np.array(values)
        if typed.tolist() == values and type(typed.tolist()[0]) is type(values[0]):  # not 2⁶³ as a float
            return typed
    return object_array(values)


def _names(types: set[type]) -> str:
    return ", ".join(sorted(one.__name__ for one in types))
