"""Signs of the centred rows themselves: the cheapest binary form of an embedding, as vector databases offer it."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dish.hasher import Hasher


class CentredSign(Hasher):
    """h(x)_k = sgn(x_j − mean_j), j the feature with the k-th largest variance; ignores y and the seed.

    With more bits than features they are repeated from the first on, as often as it takes.
    """

    _state = ("mean_", "features_")

    def __init__(self, n_bits: int = 64, *, random_state: Any = 0) -> None:
        self.n_bits = n_bits
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Find the means and the order of the features of rows X (n, d)."""
        r = self._check_n_bits()
        X = self._check_X(X, reset=True)
        self.mean_ = X.mean(axis=0, dtype=np.float64)
        order = np.argsort(-X.var(axis=0, dtype=np.float64), kind="stable")
        self.features_ = np.resize(order, r)  # (r,)
        return self

    def _decision_values(self, X: NDArray[Any]) -> NDArray[Any]:
        return np.asarray((X - self.mean_)[:, self.features_])
