"""PCA with a random rotation: what ITQ starts from (Gong and Lazebnik, CVPR 2011, compare with it; Jégou, Douze,
Schmid, Pérez, "Aggregating local descriptors into a compact image representation", CVPR 2010, rotate so)."""

from __future__ import annotations

from typing import Any, Self

from dish.baselines._pca import PCAHasher, principal
from dish.checks import check_random_state
from dish.lazy import torch
from dish.posterior.projection import rotation


class PCARR(PCAHasher):
    """Signs of principal components after a random rotation, which spreads their variance over all bits; ignores y.

    With more bits than components the rotation acts on them with zero columns added, as in ``PCAITQ``.

    Attributes
    ----------
    mean_, W_ : float64 (d,), (d, r)
        F(x) = W_ᵀ(x − mean_), W_ the principal directions times the rotation.
    """

    def __init__(self, n_bits: int = 64, *, random_state: Any = 0) -> None:
        self.n_bits = n_bits
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from rows X (n, d)."""
        r = self._check_n_bits()
        X = self._check_X(X, reset=True)
        self.mean_, W, _ = principal(X, r)
        none = torch.zeros(0, W.shape[1], dtype=torch.float64)  # no rounds, so no rows to look at
        self.W_ = W @ rotation(none, r, 0, check_random_state(self.random_state))[0]
        return self
