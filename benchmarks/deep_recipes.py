"""Constants of training towards codewords that ``deep_codewords.py`` compares on held-out training images."""

from __future__ import annotations

from typing import Any

FORMER = {"scratch.mixup": 0.3, "scratch.recalibrate": False, "augment.HOLE": 0.25}
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
        "augment.ROTATION": 0.25,
    },
    "mixup 0.5, not settled, holes of half a side": {"scratch.recalibrate": False, "augment.HOLE": 0.25},
    "holes of half a side": {"augment.HOLE": 0.25},
    "holes of half a side, zooms and turns of 0.25": {
        "augment.HOLE": 0.25,
        "augment.ZOOM": 0.25,
        "augment.ROTATION": 0.25,
    },
}
CAREFUL, CLIP = "pretrained.preserve_body", "training.MAX_GRADIENT"
NET_RECIPES: dict[str, dict[str, Any]] = {  # the same for EfficientNet-Lite0; "lr" and "image_size" are parameters
    "as it is": {},
    "without care, rate 0.3": {CAREFUL: False, "lr": 0.3},
    "rate 0.03": {"lr": 0.03},
    "rate 0.3": {"lr": 0.3},
    "gradients clipped at 5": {CLIP: 5.0},
    "rate 0.3, gradients clipped at 5": {"lr": 0.3, CLIP: 5.0},
    "a frame, no errors carried": {"heads.MAX_CLASSES_PER_BIT": 0.0},
    "no mixup": {"pretrained.mixup": 0.0},
    "mixup 0.5": {"pretrained.mixup": 0.5},
    "rate 0.3, no mixup": {"lr": 0.3, "pretrained.mixup": 0.0},
    "holes of a quarter of a side": {"augment.HOLE": 0.12},
    "rate 0.3, images of 288 pixels": {"lr": 0.3, "image_size": 288},
}
