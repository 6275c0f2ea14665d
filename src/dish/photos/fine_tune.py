"""Fine-tune a network on labelled photos: the hasher, and an estimate of the time that its training takes."""

from __future__ import annotations

from pathlib import Path

from dish.deep.deep_dish import DeepDISH
from dish.deep.image_features import NET
from dish.deep.training_time import seconds_per_image

ROUNDS = 1  # rounds of H-step and training after the first training: enough for small collections


def make_hasher(bits: int, epochs: int, checkpoint: Path) -> DeepDISH:
    """Return the hasher to fit: DeepDISH from ImageNet weights."""
    return DeepDISH(
        n_bits=bits, net=NET, weights="imagenet", n_iter=ROUNDS, epochs=epochs, batch_size=32, checkpoint=checkpoint
    )


def total_epochs(epochs: int) -> int:
    """Return the number of epochs of all rounds together."""
    return epochs * (ROUNDS + 1)


def estimate_seconds(n: int, epochs: int) -> float:
    """Estimate the training time for n photos from the time of one step on this machine."""
    encoding = 2 * (ROUNDS + 2) / 3  # forward passes over photos and mirror images, each a third of a step
    return seconds_per_image(NET) * n * (total_epochs(epochs) + encoding)


def format_duration(seconds: float) -> str:
    """Return a duration such as "about 40 s", "about 3 min" or "about 2 h"."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"about {seconds / size:.0f} {unit}"
    return f"about {max(1, round(seconds))} s"
