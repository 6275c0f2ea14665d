"""AdaBoost of small decision trees as plain arrays, so that a model made of them can be saved without pickle.

t trees of one depth, filled up to complete ones: node j has the children 2j + 1 (x ≤ threshold) and 2j + 2.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dish.numba_lazy import njit, prange


class Trees(NamedTuple):
    """f(x) = Σ of one leaf a tree. Several bits have a further axis in front."""

    features: NDArray[np.int32]  # (t, 2^depth − 1)
    thresholds: NDArray[np.float64]  # (t, 2^depth − 1)
    leaves: NDArray[np.float32]  # (t, 2^depth): ±α_t


def boost(X: NDArray[np.float32], z: NDArray[Any], n_trees: int, depth: int, random_state: Any) -> Trees:
    """Learn z (n,) of ±1 from rows X; every split looks at a random √d of the features."""
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
    return Trees(*(np.stack(parts) for parts in zip(*trees, strict=True)))


def _complete(tree: Any, depth: int, alpha: float) -> Trees:
    """One tree of scikit-learn; below a leaf that comes early, all leaves are the same."""
    inner = 2**depth - 1
    full = Trees(np.zeros(inner, np.int32), np.full(inner, np.inf), np.zeros(inner + 1, np.float32))

    def place(node: int, j: int) -> None:
        if j >= inner:
            full.leaves[j - inner] = alpha if tree.value[node].item() >= 0 else -alpha
            return
        left, right = tree.children_left[node], tree.children_right[node]
        if left < 0:
            left = right = node
        else:
            full.features[j], full.thresholds[j] = tree.feature[node], tree.threshold[node]
        place(left, 2 * j + 1)
        place(right, 2 * j + 2)

    place(0, 0)
    return full


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
