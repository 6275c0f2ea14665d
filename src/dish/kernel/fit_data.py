"""FitData: everything a kernel fit works on, in one object."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.checks import check_random_state
from dish.encoder import FeatureMap
from dish.io.rows import RowSource
from dish.kernel.features import KernelMatrix, compute_features, feature_blocks, make_feature_map
from dish.kernel.held_out_check import SignBits
from dish.kernel.typical_rows import RowSample
from dish.kernel.whitening import Whitening, factor
from dish.lazy import Tensor, torch
from dish.parallel import ALONE, Ranks
from dish.similarity import Similarity

Stage = Callable[[str], AbstractContextManager[None]]


@dataclass
class FitData:
    """The features K of this process's rows, the similarity S of their labels, and what all processes share."""

    S: Similarity
    K: KernelMatrix  # (rows of this process, m), centred
    features: FeatureMap
    rng: np.random.RandomState  # the same on all processes
    ridge: float = 1e-6
    ranks: Ranks = ALONE
    n: int = 0  # rows of all processes
    first: int = 0  # rows of the processes before this one
    stage: Stage = lambda name: nullcontext()  # times the stages of a fit
    signs: SignBits | None = None  # of a sample of the rows
    not_auto: tuple[str, ...] = ()  # which of gamma and scale the user chose
    rows: RowSource | None = None  # of this process
    moments: NDArray[np.float64] | None = None  # (2, d): mean and standard deviation of every feature of x

    @classmethod
    def of(cls, S: Similarity, K: Tensor, ridge: float = 1e-6, seed: Any = 0) -> FitData:
        """From features that were computed elsewhere, on one process."""
        features = FeatureMap("linear", K[:0], 1.0, K[:0].sum(0))
        return cls(S, K, features, check_random_state(seed), ridge, n=len(K))

    @property
    def device(self) -> torch.device:
        """Where the linear algebra runs."""
        return self.K.device

    @cached_property
    def white(self) -> Whitening:
        """KᵀK + ρI, factored on first use."""
        return factor(self.K, self.ridge, self.n, self.ranks, self.stage, self.feature_size)

    @cached_property
    def class_totals(self) -> Tensor:
        """EᵀK (c, m): the feature sums of every class, computed on first use."""
        return self.S.group_totals(feature_blocks(self.K), self.ranks)

    @property
    def feature_size(self) -> float:
        """The largest feature before centring, about."""
        mean = self.features.mean
        return float(mean.abs().max()) if self.features.kernel == "linear" and mean is not None else 1.0


def prepare(
    rows: RowSource,
    S: Similarity,
    *,
    kernel: Any = "rbf",
    anchors: Any = "random",
    n_anchors: int = 1000,
    gamma: float | str = "auto",
    scale: Any = None,
    centre: Any = None,
    ridge: float = 1e-6,
    rng: np.random.RandomState,
    device: torch.device,
    ranks: Ranks = ALONE,
    budget: int | None = None,
    stage: Stage = lambda name: nullcontext(),
) -> FitData:
    """Compute the features of the rows; K stays in memory if every process has ``budget`` bytes for its part."""
    with stage("features"):
        sample = RowSample.of(rows, S, device, ranks)
        features = make_feature_map(
            rows, sample, kernel, anchors, n_anchors, gamma, scale, rng, device, ranks, centre
        )
        features, K = compute_features(features, rows, device, budget, ranks)
    first, n = ranks.offset_and_total(len(rows))
    found = FitData(S, K, features, rng, ridge, ranks, n, first, stage, SignBits.of(sample, S), rows=rows)
    found.moments = sample.moments
    return found


def shared_random_state(seed: Any, ranks: Ranks) -> np.random.RandomState:
    """RandomState for ``seed``; if it is not an int, rank 0 draws one and shares it."""
    if ranks.world == 1 or isinstance(seed, int | np.integer):
        return check_random_state(seed)
    drawn = check_random_state(seed).randint(2**31 - 1)
    return np.random.RandomState(int(ranks.gather(torch.tensor([drawn], dtype=torch.float64))[0]))
