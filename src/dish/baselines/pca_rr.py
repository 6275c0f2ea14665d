"""PCA-RR (Jégou, Douze, Schmid, Pérez, CVPR 2010): principal components with a random rotation.

"Aggregating local descriptors into a compact image representation". ITQ starts from it (Gong, Lazebnik, CVPR 2011).
"""

from __future__ import annotations

from typing import Any, Self

from dish.baselines._pca import PCAHasher, principal
from dish.checks import check_random_state
from dish.lazy import torch
from dish.posterior.projection import rotation


class PCARR(PCAHasher):
    """Signs of principal components after a random rotation, which distributes the variance over all bits; ignores y.

    With more bits than components, zero columns are added before the rotation, as in ``PCAITQ``.

    Attributes
    ----------
    mean_, W_ : float64 (d,), (d, r)
        F(x) = W_ᵀ(x − mean_), W_ holds the principal directions times the rotation.
    """

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from rows X (n, d)."""
        r = self._check_n_bits()
        X = self._check_X(X, reset=True)
        self.mean_, W, _ = principal(X, r)
        none = torch.zeros(0, W.shape[1], dtype=torch.float64)  # without iterations, rows are not used
        self.W_ = W @ rotation(none, r, 0, check_random_state(self.random_state))[0]
        return self
