"""LSH (Charikar, "Similarity estimation techniques from rounding algorithms", STOC 2002): random projections."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dish.checks import check_random_state
from dish.hasher import Hasher


class LSH(Hasher):
    """h(x) = sgn(Wᵀ(x − mean)) with a standard normal W; learns only the mean, ignores y."""

    _state = ("W_", "mean_")

    def __init__(self, n_bits: int = 64, *, random_state: Any = 0) -> None:
        self.n_bits, self.random_state = n_bits, random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the mean of X (n, d), and draw the projections."""
        self._check_n_bits()
        X = self._check_X(X, reset=True)
        random_state = check_random_state(self.random_state)
        self.mean_ = X.mean(axis=0)
        self.W_ = random_state.standard_normal((X.shape[1], self.n_bits)).astype(X.dtype)  # (d, r)
        return self

    def _decision_values(self, X: NDArray[Any]) -> NDArray[Any]:
        return np.asarray((X - self.mean_) @ self.W_)
