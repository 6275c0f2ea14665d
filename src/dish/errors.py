"""Errors that tell the user about the input, the files or the machine; everything else is a bug.

Each is also the built-in error that Python programs expect: an ``InputError`` is a ``ValueError``.
"""

from __future__ import annotations


class DishError(Exception):
    """Base of all errors that dish raises on purpose."""


class InputError(DishError, ValueError):
    """An argument that is not allowed. The message names it, what was given and what is allowed."""


class UnsupportedError(DishError, TypeError):
    """A call that this object cannot answer. The message names one that can."""
