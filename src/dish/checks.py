"""Parameter checks whose errors name the argument, what came, and what is allowed."""

from __future__ import annotations

from typing import Any

import numpy as np

from dish.errors import InputError


def check_integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    """An integer parameter within its bounds, or an error that names it."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < low or (high is not None and value > high):
        bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise InputError(f"{name} must be a whole number {bounds}, got {value!r}")
    return int(value)


def check_number(name: str, value: Any, low: float, *, strict: bool = False) -> float:
    """A finite real parameter at or above its bound, or an error that names it."""
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not number or not np.isfinite(value) or value < low or (strict and value == low):
        raise InputError(f"{name} must be a number {'above' if strict else 'of at least'} {low}, got {value!r}")
    return float(value)


def check_flag(name: str, value: Any) -> bool:
    """True or False, or an error that names the parameter: any word, "no" too, would count as True."""
    if not isinstance(value, bool | np.bool):
        raise InputError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def check_option(name: str, value: Any, allowed: tuple[str, ...], otherwise: str = "") -> str:
    """A parameter that is one of a few words, or an error that lists them."""
    if not isinstance(value, str) or value not in allowed:
        words = ", ".join(repr(a) for a in allowed)
        raise InputError(f"{name} must be one of {words}{otherwise}, got {value!r}")
    return value
