"""Fine-tune a network on labelled photos: the hasher, and an estimate of the time that its training takes."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from dish.deep.deep_dish import DeepDISH
from dish.deep.image_features import NET
from dish.machine import resolve_device
from dish.nets import build, spec

ROUNDS = 1  # rounds of H-step and training after the first training: enough for small collections
TRIAL = 8  # images in the training step that is timed


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
    device = resolve_device("auto")
    net, side = build(NET, None).to(device).train(), spec(NET).size
    x = torch.rand(TRIAL, 3, side, side, device=device)
    for _ in range(2):  # the first step allocates memory, the second is timed
        start = time.perf_counter()
        net(x).sum().backward()
        if device.type == "cuda":
            torch.cuda.synchronize()
        step = time.perf_counter() - start
    encoding = 2 * (ROUNDS + 2) / 3  # forward passes over photos and mirror images, each a third of a step
    return step / TRIAL * n * (total_epochs(epochs) + encoding)


def format_duration(seconds: float) -> str:
    """Return a duration such as "about 40 s", "about 3 min" or "about 2 h"."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"about {seconds / size:.0f} {unit}"
    return f"about {max(1, round(seconds))} s"
