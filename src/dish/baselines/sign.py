"""CentredSign: signs of the centred features, the binary quantisation of vector databases (no paper)."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dish.hasher import Hasher


class CentredSign(Hasher):
    """Bit k is sgn(x_j − mean_j) for the feature j with the k-th largest variance; ignores y and ``random_state``.

    With more bits than features, the features repeat.
    """

    _state = ("mean_", "features_")

    def __init__(self, n_bits: int = 64, *, random_state: Any = 0) -> None:
        self.n_bits, self.random_state = n_bits, random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the means of the features of X (n, d), and their order by variance."""
        r = self._check_n_bits()
        X = self._check_X(X, reset=True)
        self.mean_ = X.mean(axis=0, dtype=np.float64)
        order = np.argsort(-X.var(axis=0, dtype=np.float64), kind="stable")
        self.features_ = np.resize(order, r)  # (r,)
        return self

    def _decision_values(self, X: NDArray[Any]) -> NDArray[Any]:
        return np.asarray((X - self.mean_)[:, self.features_])
