"""Rows with several labels: which power of p and which frame make the codes that rank held-out rows best.

Scored rows are p (rows, l) and what tells their labels: a group of equal labels, or a number (rows,).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish import codes, metrics
from dish.kernel.functions import powered
from dish.lazy import Tensor, torch
from dish.posterior.projection import principal_frames

# Groups (rows,) → labels (rows, l) of 0 and 1, or classes (rows,); as a tensor where the groups are on a GPU, or not.
LabelsOf = Callable[[Tensor], NDArray[Any] | Tensor]


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
    F, Y = scores @ V + offset, labels(groups)
    if isinstance(Y, Tensor):
        return float(_map_on_device(torch.where(F >= 0, 1.0, -1.0), Y, n))
    packed = codes.pack(F.cpu().numpy())
    device = f"{V.device.type}:{V.device.index or 0}"  # by products: a forked process has lost numba's threads
    counts = metrics.histograms(packed[:n], Y[:n], packed[n:], Y[n:], V.shape[1], device)
    return float(metrics.expected_average_precision(counts).mean())


def _map_on_device(H: Tensor, Y: Tensor, n: int) -> Tensor:
    """MAP of the first n of some codes of ±1 against the others: what ``metrics`` computes, without the host."""
    r = H.shape[1]
    cells = r - H[:n] @ H[n:].T  # twice the distance
    relevant = Y[:n, None] == Y[n:] if Y.ndim == 1 else Y[:n] @ Y[n:].T > 0
    cells = (cells + relevant).long() + 2 * (r + 1) * torch.arange(n, device=H.device)[:, None]
    counts = torch.zeros(n * 2 * (r + 1), dtype=torch.int32, device=H.device)
    counts = counts.scatter_add_(0, cells.flatten(), torch.ones_like(counts[:1]).expand(cells.numel()))
    others, rho = counts.view(n, r + 1, 2).double().unbind(2)
    g = others + rho
    a, R = g.cumsum(1) - g, rho.cumsum(1) - rho
    harmonic = torch.digamma(a + g + 1) - torch.digamma(a + 1)
    slope = (rho - 1) / (g - 1).clamp(min=1)
    precisions = rho / g.clamp(min=1) * ((R + 1) * harmonic + slope * (g - (a + 1) * harmonic))
    return (precisions.sum(1) / rho.sum(1).clamp(min=1)).mean()
