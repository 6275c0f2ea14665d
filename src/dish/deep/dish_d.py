"""DISHD: the paper's deep algorithm (DISH-D)."""

from __future__ import annotations

from dish.deep.deep_dish import DeepDISH


class DISHD(DeepDISH):
    """The paper's deep algorithm."""
