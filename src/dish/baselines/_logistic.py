"""The logistic regression of DISH, for rivals that make codes from class probabilities in another way."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Self

import numpy as np

from dish.baselines._pairs import labelled
from dish.encoder import Posterior
from dish.kernel.kernel_hasher import KernelHasher
from dish.lazy import Tensor
from dish.posterior.dish import check_learnable
from dish.posterior.regression import WhitenedRows, regress, whitening
from dish.posterior.selection import prepare_features
from dish.similarity import Classes

STEPS = 1.4  # as many gradient steps as DISH takes in its two rounds


class LogisticHasher(KernelHasher):
    """Label probabilities p(x) by logistic regression. ``_codes`` of a subclass turns them into codes."""

    _kernels = ("auto", *KernelHasher._kernels)
    _features_by = staticmethod(prepare_features)
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
        self.n_bits, self.n_anchors, self.gamma, self.kernel = n_bits, n_anchors, gamma, kernel
        self.ridge, self.device, self.random_state = ridge, device, random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from rows X (n, d) and labels y: (n,) classes, or (n, l) of 0 and 1."""
        data = self._fit_data(X, y)
        check_learnable(labelled(data.S), type(self).__name__)
        with self._stage("posterior"):
            T = whitening(data)
            rows = WhitenedRows.of(data, T, data.rng)
            W, b = regress(rows, np.arange(rows.n), data.rng, share=STEPS)
        link = "softmax" if isinstance(data.S, Classes) else "sigmoid"
        V, offset = self._codes(rows, W, b, data.rng)
        B = (T @ W.double()).to(W)
        self._keep(data, self._function_of(B, b, V.to(B), offset.to(B), link))
        return self

    @abstractmethod
    def _codes(self, rows: WhitenedRows, W: Tensor, b: Tensor, rng: np.random.RandomState) -> tuple[Tensor, Tensor]:
        """V (l, r) and the offset (r,) of F(x) = p(x) V + offset."""
