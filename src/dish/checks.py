"""Checks of parameters. The errors name the parameter, what was given and what is allowed."""

from __future__ import annotations

from typing import Any

import numpy as np

from dish.errors import InputError


def check_integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    """Return an integer between ``low`` and ``high``, or raise InputError."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < low or (high is not None and value > high):
        bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise InputError(f"{name} must be a whole number {bounds}, got {value!r}")
    return int(value)


def check_number(name: str, value: Any, low: float, *, strict: bool = False) -> float:
    """Return a finite number ≥ ``low`` (> ``low`` if ``strict``), or raise InputError."""
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not number or not np.isfinite(value) or value < low or (strict and value == low):
        raise InputError(f"{name} must be a number {'above' if strict else 'of at least'} {low}, got {value!r}")
    return float(value)


def check_flag(name: str, value: Any) -> bool:
    """Return True or False, or raise InputError. Strings are refused: even "no" would count as True."""
    if not isinstance(value, bool | np.bool):
        raise InputError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def check_option(name: str, value: Any, allowed: tuple[str, ...], otherwise: str = "") -> str:
    """Return a string from ``allowed``, or raise InputError that lists them, followed by ``otherwise``."""
    if not isinstance(value, str) or value not in allowed:
        words = ", ".join(repr(a) for a in allowed)
        raise InputError(f"{name} must be one of {words}{otherwise}, got {value!r}")
    return value


def check_random_state(value: Any, name: str = "random_state") -> np.random.RandomState:
    """Return the generator for a seed, as scikit-learn does, or raise InputError."""
    from sklearn.utils import check_random_state as generator

    try:
        return generator(value)
    except ValueError:
        raise InputError(
            f"{name} must be None, a whole number from 0 to 2**32 - 1 or a numpy.random.RandomState, got {value!r}"
        ) from None
