"""Rows with several labels: which power of p and which frame make the codes that rank held-out rows best.

Scored rows are p (rows, l) and what tells their labels: a group of equal labels, or a number (rows,).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish import codes, metrics
from dish.kernel.frames import principal_frames
from dish.kernel.functions import powered
from dish.lazy import Tensor, torch

LabelsOf = Callable[[Tensor], NDArray[Any]]  # groups (rows,) → labels (rows, l) of 0 and 1, or classes (rows,)


def best_of_several(
    labels: LabelsOf,
    given: list[tuple[Tensor, Tensor]],
    held: tuple[Tensor, Tensor],
    seen: tuple[Tensor, Tensor],
    rng: np.random.RandomState,
) -> tuple[str, Tensor, Tensor, float]:
    """The power of p (by the name of its link), the frame and the offset that rank held-out rows best, and their MAP.

    Frames are those given, and the principal ones of the scores.
    """
    best, best_map = ("sigmoid", *given[0]), -1.0
    for name in ("sigmoid", "sigmoid_1"):
        scored = [(powered(p, name), group) for p, group in (held, seen)]
        r, offset = given[0][0].shape[1], torch.zeros_like(given[0][1])
        frames = principal_frames(torch.cat([G for G, _ in scored]), r, rng)
        for V, shift in [*given, *((V, offset) for V in frames)]:
            V = V.to(held[0])
            found = held_out_map(labels, V, shift, scored[0], scored[1])
            if found > best_map:
                best, best_map = (name, V, shift), found
    return *best, best_map


def held_out_map(
    labels: LabelsOf, V: Tensor, offset: Tensor, held: tuple[Tensor, Tensor], seen: tuple[Tensor, Tensor]
) -> float:
    """MAP of held-out queries against as many other rows, half of them held out."""
    n = min(1000, len(held[0]) // 2)
    scores, groups = torch.cat([held[0][: 2 * n], seen[0][:n]]), torch.cat([held[1][: 2 * n], seen[1][:n]])
    packed, Y = codes.pack((scores @ V + offset).cpu().numpy()), labels(groups)
    device = f"{V.device.type}:{V.device.index or 0}"  # by products: a forked process has lost numba's threads
    counts = metrics.histograms(packed[:n], Y[:n], packed[n:], Y[n:], V.shape[1], device)
    return float(metrics.expected_average_precision(counts).mean())
