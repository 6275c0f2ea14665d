"""How long a network takes to train on this machine, and how many epochs there is time for."""

from __future__ import annotations

import time

import torch

from dish import nets
from dish.machine import resolve_device

SECONDS = 60.0  # that training may take if the user gives no number of epochs
FEWEST, MOST = 2, 60  # epochs per round
SMALL_SIDE = 64  # pixels
TRIALS = {True: 64, False: 8}  # images of the step that is timed, by whether they are small


def seconds_per_image(net: str, side: int | None = None, device: str = "auto") -> float:
    """The time of one training step, per image of ``side`` pixels (None: the usual size of the network)."""
    place, spec = resolve_device(device), nets.spec(net)
    side = side or spec.size
    model, n = nets.build(net, None).to(place).train(), TRIALS[side <= SMALL_SIDE]
    x = torch.rand(n, 3, side, side, device=place)
    for _ in range(2):  # the first step allocates memory, the second is timed
        start = time.perf_counter()
        model(x).sum().backward()
        if place.type == "cuda":
            torch.cuda.synchronize()
        step = time.perf_counter() - start
    return step / n


def affordable_epochs(n: int, rounds: int, per_image: float) -> int:
    """Epochs per round, so that training with n images takes about a minute; never fewer than two."""
    return max(FEWEST, min(MOST, int(SECONDS / (n * rounds * per_image))))
