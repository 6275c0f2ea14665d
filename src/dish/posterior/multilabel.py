"""Multi-label data: the power of p and the projection whose codes rank held-out rows best.

Scored rows are p (rows, l) and an index (rows,) that tells their labels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish import codes, metrics
from dish.encoder import raised
from dish.lazy import Tensor, torch
from dish.posterior.projection import refine_for_sets

# Indices (rows,) → labels (rows, l) of 0 and 1, or classes (rows,); on a GPU a tensor.
LabelsOf = Callable[[Tensor], NDArray[Any] | Tensor]
Projection = tuple[Tensor, Tensor]  # V (l, r) and the offset (r,)


def best_power(
    labels: LabelsOf, start: Projection, held: tuple[Tensor, Tensor], seen: tuple[Tensor, Tensor]
) -> tuple[int, Projection]:
    """The power of p whose refined projection ranks held-out rows best, and this projection.

    Every other row refines, the rest compares. The database has held-out rows, and label sets of rows that were
    trained on: the codes of rows with labels do not depend on p.
    """
    (p, group), (Y_seen, group_seen) = held, (_sets(labels, seen), seen[1])
    best, best_map = (1, start), -1.0
    for power in (1, 2):
        G = raised(p, power)
        V, offset = refined(labels, power, start, _every_other(held, 0), _every_other(seen, 0))
        judges = (G[1::2], group[1::2]), (Y_seen[1::2], group_seen[1::2])
        found = held_out_map(labels, V, offset, *judges)
        if found > best_map:
            best, best_map = (power, (V, offset)), found
    return best


def refined(
    labels: LabelsOf,
    power: int,
    start: Projection,
    held: tuple[Tensor, Tensor],
    seen: tuple[Tensor, Tensor],
    rng: np.random.RandomState | None = None,
    is_old: Tensor | None = None,
) -> Projection:
    """The projection ``start`` after refinement with held-out rows and with the label sets of seen rows.

    ``is_old`` (l,): rows of V that stay as they are, and so does the offset.
    """
    rng = np.random.RandomState(0) if rng is None else rng
    return refine_for_sets(*start, (raised(held[0], power), _sets(labels, held)), _sets(labels, seen), rng, is_old)


def _sets(labels: LabelsOf, scored: tuple[Tensor, Tensor]) -> Tensor:
    """Y (rows, l) of scored rows."""
    return torch.as_tensor(labels(scored[1])).to(scored[0])


def _every_other(scored: tuple[Tensor, Tensor], first: int) -> tuple[Tensor, Tensor]:
    return scored[0][first::2], scored[1][first::2]


def held_out_map(
    labels: LabelsOf, V: Tensor, offset: Tensor, held: tuple[Tensor, Tensor], seen: tuple[Tensor, Tensor]
) -> float:
    """MAP of held-out queries against a database of held-out and seen rows, half each."""
    n = n_queries(len(held[0]))
    scores, groups = torch.cat([held[0][: 2 * n], seen[0][:n]]), torch.cat([held[1][: 2 * n], seen[1][:n]])
    return map_of_outputs(scores @ V + offset, labels(groups), n)


def n_queries(n_held: int) -> int:
    """The number of held-out rows that are queries; as many others are in the database."""
    return min(1000, n_held // 2)


def map_of_outputs(F: Tensor, Y: NDArray[Any] | Tensor, n: int) -> float:
    """MAP of the signs of the first n rows of F (rows, r) as queries against the others."""
    if isinstance(Y, Tensor):
        return float(_map_on_device(torch.where(F >= 0, 1.0, -1.0), Y, n))
    packed = codes.pack(F.cpu().numpy())
    device = f"{F.device.type}:{F.device.index or 0}"  # by torch: numba's threads do not survive a fork
    counts = metrics.histograms(packed[:n], Y[:n], packed[n:], Y[n:], F.shape[1], device)
    return float(metrics.expected_average_precision(counts).mean())


def _map_on_device(H: Tensor, Y: Tensor, n: int) -> Tensor:
    """MAP of the first n codes (±1) against the others, as ``metrics`` computes it, but on the GPU."""
    r = H.shape[1]
    cells = r - H[:n] @ H[n:].T  # twice the distance
    relevant = Y[:n, None] == Y[n:] if Y.ndim == 1 else Y[:n] @ Y[n:].T > 0
    cells = (cells + relevant).long() + 2 * (r + 1) * torch.arange(n, device=H.device)[:, None]
    counts = torch.zeros(n * 2 * (r + 1), dtype=torch.int32, device=H.device)
    counts = counts.scatter_add_(0, cells.flatten(), torch.ones_like(counts[:1]).expand(cells.numel()))
    others, relevant_counts = counts.view(n, r + 1, 2).unbind(2)
    histograms = metrics.Histograms(others + relevant_counts, relevant_counts)
    return metrics.expected_average_precision(histograms).mean()
