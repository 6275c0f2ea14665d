"""AdaBoost of small decision trees, as plain arrays that a model file can hold.

All trees are complete and have the same depth. Node j has the children 2j + 1 (x ≤ threshold) and 2j + 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dish.encoder import Array, HashFunction
from dish.lazy import Tensor, torch
from dish.numba_lazy import njit, prange

Ensemble = tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.float32]]  # of one bit, as in Trees


@dataclass(frozen=True)
class Trees(HashFunction):
    """F = the sum of t boosted trees per bit, on x itself."""

    features: Array  # (r, t, 2^depth − 1) int32
    thresholds: Array  # (r, t, 2^depth − 1) float64
    leaves: Array  # (r, t, 2^depth) float32: ±α_t

    def __call__(self, K: Array) -> Array:
        """F (rows, r) of rows x."""
        rows = K.cpu().numpy() if isinstance(K, Tensor) else K
        F = np.asarray(evaluate(rows.astype(np.float32), self.features, self.thresholds, self.leaves))
        return torch.from_numpy(F) if isinstance(K, Tensor) else F

    def to(self, device: torch.device, dtype: torch.dtype | None = None) -> Self:
        """The same object: trees are always evaluated on the CPU."""
        return self

    @property
    def n_bits(self) -> int:
        """Number of ensembles."""
        return int(self.features.shape[0])


def boost(X: NDArray[np.float32], z: NDArray[Any], n_trees: int, depth: int, random_state: Any) -> Ensemble:
    """Learn z (n,) of ±1 from rows X. Every split considers √d random features."""
    from sklearn.tree import DecisionTreeRegressor

    z = z.astype(np.float64)
    weight, trees = np.full(len(z), 1 / len(z)), []
    for _ in range(n_trees):
        tree = DecisionTreeRegressor(max_depth=depth, max_features="sqrt", random_state=random_state)
        h = np.where(tree.fit(X, z, sample_weight=weight).predict(X) >= 0, 1.0, -1.0)
        error = np.clip(weight[h != z].sum(), 1e-6, 1 - 1e-6)
        alpha = np.log((1 - error) / error) / 2
        trees.append(_complete(tree.tree_, depth, alpha))
        weight *= np.exp(-alpha * z * h)
        weight /= weight.sum()
    features, thresholds, leaves = (np.stack(parts) for parts in zip(*trees, strict=True))
    return features, thresholds, leaves


def _complete(tree: Any, depth: int, alpha: float) -> Ensemble:
    """One tree of scikit-learn as a complete tree: a leaf above the last level is repeated below it."""
    inner = 2**depth - 1
    features, thresholds = np.zeros(inner, np.int32), np.full(inner, np.inf)
    leaves = np.zeros(inner + 1, np.float32)

    def place(node: int, j: int) -> None:
        if j >= inner:
            leaves[j - inner] = alpha if tree.value[node].item() >= 0 else -alpha
            return
        left, right = tree.children_left[node], tree.children_right[node]
        if left < 0:
            left = right = node
        else:
            features[j], thresholds[j] = tree.feature[node], tree.threshold[node]
        place(left, 2 * j + 1)
        place(right, 2 * j + 2)

    place(0, 0)
    return features, thresholds, leaves


@njit(parallel=True, cache=True)
def evaluate(X: Any, features: Any, thresholds: Any, leaves: Any) -> Any:
    """F (n, r) of float32 rows X, from the trees of r bits."""
    r, t, inner = features.shape
    F = np.zeros((len(X), r), np.float32)
    for i in prange(len(X)):
        for k in range(r):
            for tree in range(t):
                j = 0
                while j < inner:
                    j = 2 * j + (1 if X[i, features[k, tree, j]] <= thresholds[k, tree, j] else 2)
                F[i, k] += leaves[k, tree, j - inner]
    return F
