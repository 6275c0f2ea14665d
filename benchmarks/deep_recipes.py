"""Constants of training towards codewords that ``deep_codewords.py`` compares on held-out training images."""

from __future__ import annotations

from typing import Any

FORMER = {"scratch.mixup": 0.3, "scratch.settle": False, "augment.HOLE": 0.25}
RECIPES: dict[str, dict[str, Any]] = {  # what differs from the constants that were chosen
    "as it is": {},
    "mixup 0.3, not settled, holes of half a side": FORMER,
    "mixup 0.3, not settled": {**FORMER, "augment.HOLE": 0.2},
    "mixup 0.3, not settled, holes of half a side, sampled by straight lines": {
        **FORMER,
        "augment.SAMPLING": "bilinear",
    },
    "mixup 0.3, not settled, holes of half a side, half the change of light": {**FORMER, "augment.LIGHT": 0.15},
    "mixup 0.3, not settled, holes of half a side, zooms and turns of 0.25": {
        **FORMER,
        "augment.ZOOM": 0.25,
        "augment.TURN": 0.25,
    },
    "mixup 0.5, not settled, holes of half a side": {"scratch.settle": False, "augment.HOLE": 0.25},
    "holes of half a side": {"augment.HOLE": 0.25},
    "holes of half a side, zooms and turns of 0.25": {
        "augment.HOLE": 0.25,
        "augment.ZOOM": 0.25,
        "augment.TURN": 0.25,
    },
}
NET_RECIPES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "mixup 0.5": {"tuned.mixup": 0.5},
    "zooms of 0.3": {"augment.ZOOM": 0.3},
    "holes of a quarter of a side": {"augment.HOLE": 0.12},
}
