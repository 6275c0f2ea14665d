"""Fine-tuning a network on photos with labels: how long it will take, then the hasher that does it."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from dish.deep.deep_dish import DeepDISH
from dish.deep.image_features import NET
from dish.machine import resolve_device
from dish.nets import build, spec

ROUNDS = 1  # of H-step and training, after the first training: few photos need no more
TRIAL = 8  # images of the step that is timed


def tuner(bits: int, epochs: int, checkpoint: Path) -> DeepDISH:
    """The hasher to fit, from ImageNet weights."""
    return DeepDISH(
        n_bits=bits, net=NET, weights="imagenet", n_iter=ROUNDS, epochs=epochs, batch_size=32, checkpoint=checkpoint
    )


def passes(epochs: int) -> int:
    """How often every photo is trained on."""
    return epochs * (ROUNDS + 1)


def seconds_needed(n: int, epochs: int) -> float:
    """An estimate: the time of one training step on this machine, as often as it will be taken."""
    device = resolve_device("auto")
    net, side = build(NET, None).to(device).train(), spec(NET).size
    x = torch.rand(TRIAL, 3, side, side, device=device)
    for _ in range(2):  # the first one allocates
        start = time.perf_counter()
        net(x).sum().backward()
        if device.type == "cuda":
            torch.cuda.synchronize()
        step = time.perf_counter() - start
    encoding = 2 * (ROUNDS + 2) / 3  # both mirror images, forward alone, after every round and at the end
    return step / TRIAL * n * (passes(epochs) + encoding)


def in_words(seconds: float) -> str:
    """Such as "about 40 s", "about 3 min", "about 2 h"."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"about {seconds / size:.0f} {unit}"
    return f"about {max(1, round(seconds))} s"
