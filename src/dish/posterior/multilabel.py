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
from dish.posterior.projection import principal_projections, refine_for_sets

# Indices (rows,) → labels (rows, l) of 0 and 1, or classes (rows,); on a GPU a tensor.
LabelsOf = Callable[[Tensor], NDArray[Any] | Tensor]


def best_projection(
    labels: LabelsOf,
    given: list[tuple[Tensor, Tensor]],
    held: tuple[Tensor, Tensor],
    seen: tuple[Tensor, Tensor],
    rng: np.random.RandomState,
) -> tuple[int, Tensor, Tensor, float]:
    """The power of p, the projection and the offset that rank held-out rows best, and their MAP.

    For each power, the best of the projections ``given`` and of principal projections of the scores is refined with
    every other held-out row. The rest of them compare all. The database has held-out rows, and label sets of rows
    that were trained on.
    """
    Y, Y_seen = (torch.as_tensor(labels(group)).to(p) for p, group in (held, seen))
    held, others = (held[0], held[1]), (Y_seen, seen[1])
    judges, others_of_judges = _every_other(held, 1), _every_other(others, 1)
    best, best_map, refine = (2, *given[0]), -1.0, False
    for power in (2, 1):
        G, G_judges = raised(held[0], power), (raised(judges[0], power), judges[1])
        V, offset = _best_start(labels, given, (G, held[1]), others, raised(seen[0], power), rng)
        refined = refine_for_sets(V, offset, (G[::2], Y[::2]), Y_seen[::2], np.random.RandomState(0))
        for is_refined, projection in enumerate([(V, offset), refined]):
            found = held_out_map(labels, *projection, G_judges, others_of_judges)
            if found > best_map:
                best, best_map, refine = (power, V, offset), found, bool(is_refined)
    power, V, offset = best
    if refine:
        V, offset = refine_for_sets(V, offset, (raised(held[0], power), Y), Y_seen, rng)
    return power, V, offset, best_map


def _best_start(
    labels: LabelsOf,
    given: list[tuple[Tensor, Tensor]],
    held: tuple[Tensor, Tensor],
    others: tuple[Tensor, Tensor],
    G_seen: Tensor,
    rng: np.random.RandomState,
) -> tuple[Tensor, Tensor]:
    """The best of the projections ``given`` and of principal projections of the scores of all rows."""
    r, zero = given[0][0].shape[1], torch.zeros_like(given[0][1])
    principal = principal_projections(torch.cat([held[0], G_seen]), r, rng)
    tried = [(V.to(held[0]), offset) for V, offset in [*given, *((V, zero) for V in principal)]]
    maps = [held_out_map(labels, V, offset, held, others) for V, offset in tried]
    return tried[int(np.argmax(maps))]


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
