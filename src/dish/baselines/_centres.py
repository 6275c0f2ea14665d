"""Fixed codewords, one per class or label: the targets of CSQ, DPN and OrthoHash."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import hadamard
from torch import Tensor

from dish.deep.data import DeepFitData, one_hot


def centres(n_labels: int, n_bits: int, seed: int) -> NDArray[np.float32]:
    """C (l, r) of ±1: rows of a Hadamard matrix if r is a power of two and l ≤ 2r, else random codes."""
    rng = np.random.RandomState(seed)
    if n_bits & (n_bits - 1) == 0 and n_labels <= 2 * n_bits:
        H = hadamard(n_bits)
        both = np.concatenate([H, -H])  # first the rows of H, which are r/2 apart
        return both[np.r_[rng.permutation(n_bits), n_bits + rng.permutation(n_bits)]][:n_labels].astype(np.float32)
    drawn = np.where(rng.rand(20, n_labels, n_bits) < 0.5, -1.0, 1.0).astype(np.float32)
    return max(drawn, key=nearest)


def nearest(C: NDArray[np.float32]) -> float:
    """The smallest Hamming distance between two rows."""
    apart = (C.shape[1] - C @ C.T) / 2
    np.fill_diagonal(apart, np.inf)
    return float(apart.min())


def row_centres(data: DeepFitData, n_bits: int) -> Tensor:
    """The centre of every row (n, r): that of its class, or the majority vote of its labels; ties are random."""
    t = one_hot(data.targets, data.n_targets)
    C = torch.from_numpy(centres(data.n_targets, n_bits, data.seed)).to(t)
    tie = torch.from_numpy(centres(1, n_bits, data.seed + 1)).to(t)
    return torch.where(t @ C + 0.5 * tie >= 0, 1.0, -1.0)
