"""Principal components, and the base of hashers with F(x) = Wᵀ(x − mean)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from dish.encoder import row_blocks
from dish.errors import InputError
from dish.hasher import Hasher
from dish.lazy import torch
from dish.machine import require_memory

Matrix = NDArray[np.float64]
ROWS = 2**13  # rows or columns converted to float64 at a time


class PCAHasher(Hasher):
    """A hasher that ignores y and starts from principal components. ``fit`` sets ``mean_`` (d,) and ``W_``."""

    _state: tuple[str, ...] = ("mean_", "W_")

    def __init__(self, n_bits: int = 64, *, random_state: Any = 0) -> None:
        self.n_bits, self.random_state = n_bits, random_state

    def _decision_values(self, X: NDArray[Any]) -> NDArray[Any]:
        return project(X, self.mean_, self.W_)


def principal(X: NDArray[Any], r: int) -> tuple[NDArray[np.float64], Matrix, NDArray[np.float64]]:
    """Mean (d,), the first p principal directions (d, p) and their variances (p,), largest first.

    p is the smaller of r and the rank of the centred rows, because directions without variance hold rounding errors
    only. Sums are float64 for any type of X, and X is read in blocks.
    """
    n, d = X.shape
    mean, k = X.mean(axis=0, dtype=np.float64), min(n, d)
    require_memory(
        16 * k * k, f"X: the covariances of {d:,} features", "reduce the features, or learn from fewer rows"
    )
    C = torch.zeros(k, k, dtype=torch.float64)
    if n < d:  # XXᵀ has the same eigenvalues as XᵀX, and u the direction Xᵀu
        for columns in row_blocks(d, ROWS):
            centred = torch.from_numpy(X[:, columns] - mean[columns])
            C += centred @ centred.T
    else:
        for rows in row_blocks(n, ROWS):
            centred = torch.from_numpy(X[rows] - mean)
            C += centred.T @ centred
    top = min(r, k)
    variance, W = eigh(C.numpy() / n, subset_by_index=[k - top, k - 1])
    variance, W = variance[::-1], W[:, ::-1]
    p = int((variance > 1e-10 * max(variance[0], 1e-300)).sum())
    if p == 0:
        raise InputError(f"all rows of X are equal (n_samples={n}): no direction separates them")
    W = W[:, :p].copy()
    if n < d:
        W = np.concatenate([(X[:, j] - mean[j]).T @ W for j in row_blocks(d, ROWS)]) / np.sqrt(n * variance[:p])
    return mean, W, variance[:p]


def project(X: NDArray[Any], mean: NDArray[Any], W: NDArray[Any]) -> Matrix:
    """(X − mean) W in float64, computed in blocks of rows."""
    V = torch.empty(len(X), W.shape[1], dtype=torch.float64)
    for rows in row_blocks(len(X), ROWS):
        V[rows] = torch.from_numpy(X[rows] - mean) @ torch.from_numpy(W)
    return V.numpy()
