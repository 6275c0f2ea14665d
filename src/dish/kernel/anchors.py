"""Anchors: rows of all processes, or k-means centres, and the scale γ that suits them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dish.io.rows import Rows
from dish.parallel import ALONE, Ranks


def choose_anchors(X: Tensor, n_anchors: int, how: str, random_state: np.random.RandomState) -> Tensor:
    """(m, d): random rows of X, or k-means centres."""
    return find_anchors(Rows(X), n_anchors, how, random_state, X.device)


def find_anchors(
    X: Rows,
    n_anchors: int,
    how: str,
    random_state: np.random.RandomState,
    device: torch.device,
    ranks: Ranks = ALONE,
) -> Tensor:
    """Anchors (m, d) from the rows of all processes: random rows, or k-means centres (of at most 50 rows each)."""
    n = ranks.offset_and_total(len(X))[1]
    n_anchors = min(n_anchors, n)
    if how == "random":
        picked = np.sort(random_state.choice(n, n_anchors, replace=False))
        return take_everywhere(X, picked, device, ranks)
    from sklearn.cluster import MiniBatchKMeans

    seed = random_state.randint(2**31 - 1)
    means = MiniBatchKMeans(n_anchors, n_init=1, batch_size=max(1024, n_anchors), random_state=seed)
    most = 50 * n_anchors if X.on_disk or ranks.world > 1 else n
    picked = np.arange(n) if n <= most else np.sort(random_state.choice(n, most, replace=False))
    some = take_everywhere(X, picked, device, ranks)
    return torch.from_numpy(means.fit(some.cpu().numpy()).cluster_centers_).to(some)


def take_everywhere(X: Rows, picked: NDArray[np.intp], device: torch.device, ranks: Ranks) -> Tensor:
    """Rows by their numbers among those of all processes."""
    mine, rows = local_rows(len(X), picked, ranks)
    with ranks.raise_together():
        found = X.take(mine, device)
    if ranks.world == 1:
        return found
    out = torch.zeros(len(picked), X.shape[1], dtype=X.dtype, device=device)
    out[rows] = found
    return ranks.total(out).to(X.dtype)


def local_rows(n: int, picked: NDArray[np.intp], ranks: Ranks) -> tuple[NDArray[np.intp], slice]:
    """Of ascending numbers of rows those of this process, as its own numbers, and which of them they are."""
    start = ranks.offset_and_total(n)[0]
    low, high = np.searchsorted(picked, [start, start + n])
    return picked[low:high] - start, slice(int(low), int(high))


def mean_squared_distance(X: Rows, A: Tensor, ranks: Ranks = ALONE) -> float:
    """Mean of ‖x − a‖² over pairs, which is that of ‖x − c‖² + ‖a − c‖² with c the mean of A, from ≤ 16,384 rows."""
    n = ranks.offset_and_total(len(X))[1]
    mine, _ = local_rows(len(X), np.arange(0, n, max(1, n // 8192)), ranks)
    centre = A.double().mean(0)
    with ranks.raise_together():
        some = X.take(mine, A.device)
    squares = sum((block.double() - centre).square().sum() for block in some.split(1024)) if len(mine) else 0.0
    sums = ranks.total(torch.tensor([float(squares), len(mine)], dtype=torch.float64))
    return float(sums[0] / sums[1]) + float((A.double() - centre).square().sum(1).mean())
