"""Logistic regression on the features of DISH, learned as the posterior hash function of DISH learns it."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Self

import numpy as np
from torch import Tensor

from dish.baselines._pairs import labelled
from dish.io.rows import RowSource
from dish.kernel.defaults import chosen_kernel
from dish.kernel.fit_data import Problem
from dish.kernel.functions import Posterior
from dish.kernel.kernel_hasher import KernelHasher
from dish.parallel import ALONE, Ranks
from dish.posterior.regression import Pool, regress, whitening
from dish.similarity import Classes, Similarity

STEPS = 1.4  # as many as DISH takes in its two rounds


class LogisticHasher(KernelHasher):
    """p(x) of the labels by logistic regression; a subclass says in ``_codes`` how p becomes a code."""

    _kernels = ("auto", *KernelHasher._kernels)
    _function_of: type[Posterior] = Posterior

    def __init__(
        self,
        n_bits: int = 64,
        *,
        n_anchors: int = 1000,
        gamma: float | str = "auto",
        kernel: Any = "auto",
        ridge: float = 1e-6,
        device: str = "auto",
        random_state: Any = 0,
    ) -> None:
        self.n_bits = n_bits
        self.n_anchors = n_anchors
        self.gamma = gamma
        self.kernel = kernel
        self.ridge = ridge
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from rows X (n, d) and labels y: (n,) classes or (n, l) of 0/1."""
        problem = self._problem(X, y)
        labelled(problem.S)
        with self._stage("posterior"):
            T = whitening(problem)
            pool = Pool.of(problem, T, problem.rng)  # overwrites K
            W, b = regress(pool, np.arange(pool.n), problem.rng, share=STEPS)
        link = "softmax" if isinstance(problem.S, Classes) else "sigmoid_1"
        V, offset = self._codes(pool, W, b, problem.rng)
        B = (T @ W.double()).to(W)
        self._keep(problem, self._function_of(B, b, V.to(B), offset.to(B), link))
        return self

    @abstractmethod
    def _codes(self, pool: Pool, W: Tensor, b: Tensor, rng: np.random.RandomState) -> tuple[Tensor, Tensor]:
        """The vectors (l, r) that p(x) is multiplied by, and the offset (r,)."""

    def _prepare(
        self,
        rows: RowSource,
        S: Similarity,
        rng: np.random.RandomState,
        ranks: Ranks = ALONE,
        budget: int | None = None,
        kernel: Any = None,
    ) -> Problem:
        kernel = chosen_kernel(self.kernel, True, rows.shape[1], self.n_anchors)
        return super()._prepare(rows, S, rng, ranks, budget, kernel)

    def _function(self) -> Posterior:
        return self._function_of.kept_by(self)
