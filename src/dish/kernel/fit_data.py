"""What a fit of a kernel hasher works on, in one object: similarity, features, their factor, processes, generator."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from dish.io.rows import RowSource
from dish.kernel.anchors import find_anchors, given_anchors, scale_of
from dish.kernel.features import FeatureMap, KernelMatrix
from dish.kernel.whitening import Whitening, factor
from dish.lazy import Tensor, torch
from dish.parallel import ALONE, Ranks
from dish.similarity import Similarity

Stage = Callable[[str], AbstractContextManager[None]]


@dataclass
class Problem:
    """The rows of this process as K, the similarity S of their labels, and who solves for what.

    The rows themselves are not kept: what does not fit in memory is read through ``KernelRows``.
    """

    S: Similarity
    K: KernelMatrix  # (rows of this process, m), centred
    features: FeatureMap
    rng: np.random.RandomState  # the same on all processes
    ridge: float = 1e-6
    ranks: Ranks = ALONE
    n: int = 0  # rows of all processes
    first: int = 0  # of them, those before this process's own
    stage: Stage = lambda name: nullcontext()

    @classmethod
    def of(cls, S: Similarity, K: Tensor, ridge: float = 1e-6, seed: Any = 0) -> Problem:
        """Features that are there already, one process."""
        return cls(S, K, FeatureMap("linear", K[:0], 1.0), check_random_state(seed), ridge, n=len(K))

    @property
    def device(self) -> torch.device:
        """Where the linear algebra runs."""
        return self.K.device

    @cached_property
    def white(self) -> Whitening:
        """KᵀK + ρI, factored at first use."""
        mean = self.features.mean
        scale = float(mean.abs().max()) if self.features.kernel == "linear" and mean is not None else 1.0
        return factor(self.K, self.ridge, self.n, self.ranks, self.stage, scale)


def prepare(
    rows: RowSource,
    S: Similarity,
    *,
    kernel: Any = "rbf",
    anchors: Any = "random",
    n_anchors: int = 1000,
    gamma: float | str = "auto",
    ridge: float = 1e-6,
    rng: np.random.RandomState,
    device: torch.device,
    ranks: Ranks = ALONE,
    budget: int | None = None,
    stage: Stage = lambda name: nullcontext(),
) -> Problem:
    """Anchors, then γ, then K (n, m) of the rows, in memory if every process has ``budget`` bytes for its part.

    The anchors are drawn before anything else, so that equal seeds give equal anchors.
    """
    with stage("features"):
        features = _feature_map(rows, kernel, anchors, n_anchors, gamma, rng, device, ranks)
        K = features.fit_rows(rows, device, budget, ranks)
    first, n = ranks.offset_and_total(len(rows))
    return Problem(S, K, features, rng, ridge, ranks, n, first, stage)


def _feature_map(
    rows: RowSource,
    kernel: Any,
    anchors: Any,
    n_anchors: int,
    gamma: float | str,
    rng: np.random.RandomState,
    device: torch.device,
    ranks: Ranks,
) -> FeatureMap:
    """The map k(x), its mean still to be learned."""
    if kernel == "linear":
        return FeatureMap("linear", torch.zeros(0, rows.shape[1], dtype=rows.dtype, device=device), 1.0)
    picked = None
    if isinstance(anchors, str):
        n = ranks.offset_and_total(len(rows))[1]
        if n_anchors > n:
            warnings.warn(
                f"n_anchors={n_anchors} is more than the {n} rows of X: all rows become anchors", stacklevel=5
            )
        A, picked = find_anchors(rows, n_anchors, anchors, rng, device, ranks)
    else:
        A = given_anchors(anchors, rows, device)
    return FeatureMap(kernel, A, scale_of(rows, A, picked, ranks) if isinstance(gamma, str) else float(gamma))


def shared_random_state(seed: Any, ranks: Ranks) -> np.random.RandomState:
    """RandomState for ``seed``; if it is not an int, rank 0 draws one and shares it."""
    if ranks.world == 1 or isinstance(seed, int | np.integer):
        return check_random_state(seed)
    drawn = check_random_state(seed).randint(2**31 - 1)
    return np.random.RandomState(int(ranks.gather(torch.tensor([drawn], dtype=torch.float64))[0]))
