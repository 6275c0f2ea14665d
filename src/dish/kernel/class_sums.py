"""Sums over rows from which DISHK learns when rows come in batches: their size does not depend on the rows seen.

With one class per row and a ridge F-step, the rows matter through KᵀK, the class sums EᵀK and the class sizes alone,
apart from the H-step. The H-step of a batch fit therefore has stand-ins: every class has as many as its share of the
rows, and all of them are equal. The linear term q, which orders rows within a class, is left out (ν = 0).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish import cbcd, codes
from dish.cbcd import columns_for
from dish.encoder import FeatureMap, Linear, row_blocks
from dish.kernel.fit_data import FitData
from dish.kernel.spectral import Relaxation, class_start
from dish.kernel.whitening import Whitening, check_features_vary
from dish.lazy import torch
from dish.similarity import Classes

BLOCK = 4096  # rows whose features are in memory at a time
STAND_INS = 4096  # rows of the H-step; with fewer rows, every row is one


@dataclass(frozen=True)
class ClassSums:
    """Sums of kernel features k of all rows so far, in float64."""

    features: FeatureMap  # whose mean is that of the first batch: k is relative to it, so that no digits are lost
    classes: NDArray[Any]  # (c,), sorted
    sizes: NDArray[np.int64]  # (c,)
    G: NDArray[np.float64]  # (m, m): Σ k kᵀ
    A: NDArray[np.float64]  # (c, m): Σ k of every class

    @classmethod
    def none(cls, features: FeatureMap, classes: NDArray[Any]) -> ClassSums:
        """The sums of no rows."""
        c, m = len(classes), features.m
        return cls(features, classes, np.zeros(c, np.int64), np.zeros((m, m)), np.zeros((c, m)))

    @classmethod
    def of(cls, data: FitData) -> ClassSums:
        """The sums of the rows of a fit."""
        assert data.S.labels is not None
        sizes = data.S.group_sizes().cpu().numpy().astype(np.int64)
        G, A = (sums.double().cpu().numpy() for sums in (data.white.gram(), data.class_totals))
        return cls(data.features.numpy(), data.S.labels, sizes, G, A)

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.sizes.sum())

    def over(self, classes: NDArray[Any]) -> ClassSums:
        """The same sums with more classes. ``classes``: all of them, sorted."""
        place = {value: j for j, value in enumerate(classes.tolist())}
        at = [place[value] for value in self.classes.tolist()]
        sizes, A = np.zeros(len(classes), np.int64), np.zeros((len(classes), len(self.G)))
        sizes[at], A[at] = self.sizes, self.A
        return replace(self, classes=classes, sizes=sizes, A=A)

    def plus(self, X: NDArray[Any], group: NDArray[np.integer[Any]], device: torch.device) -> ClassSums:
        """The sums with the rows X (n, d) of a batch and the indices of their classes (n,)."""
        features, index = self.features.to(device), torch.from_numpy(np.asarray(group, np.int64))
        G, A = torch.from_numpy(self.G.copy()), torch.from_numpy(self.A.copy())
        for rows in row_blocks(len(X), BLOCK):
            k = features(torch.from_numpy(X[rows]).to(features.anchors)).double()
            G += (k.T @ k).cpu()
            A.index_add_(0, index[rows], k.cpu())
        sizes = self.sizes + np.bincount(group, minlength=len(self.sizes))
        return replace(self, sizes=sizes, G=G.numpy(), A=A.numpy())

    def solve(self, w: float, ridge: float, n_bits: int, n_iter: int, **how: Any) -> Solution:
        """The hash function and the codewords of the classes; ``how``: ``lam`` and ``take_back`` of the H-steps."""
        shift = self.A.sum(0) / self.n
        G = torch.from_numpy(self.G - self.n * np.outer(shift, shift))
        A = torch.from_numpy(self.A - np.outer(self.sizes, shift))
        features = replace(self.features, mean=(self.features.mean + shift).astype(self.features.anchors.dtype))
        S, no_rows = Classes(np.arange(len(A)), w, self.classes), torch.from_numpy(A.numpy()[:0])
        data = FitData(S, no_rows, features, np.random.RandomState(0), ridge, n=self.n)
        dtype = torch.from_numpy(features.anchors[:0]).dtype
        check_features_vary(G, self.n, dtype, data.feature_size)
        data.white, data.class_totals = Whitening.of(G, ridge, torch.finfo(dtype).eps), A
        W, packed = class_start(Relaxation(data, n_bits), n_bits)
        H, objective = packed.numpy(), list[float]()
        if n_iter > 0:
            means, objective = h_steps(H, self.sizes, w, n_bits, n_iter, **how)
            W, H = data.white.solve(A.T @ torch.from_numpy(means)), codes.pack(means)
        return Solution(data, Linear.of(W.numpy().astype(features.anchors.dtype)), H, np.array(objective, np.float64))


@dataclass(frozen=True)
class Solution:
    """What the sums determine."""

    data: FitData  # features centred by the mean of all rows
    function: Linear
    codewords: NDArray[np.uint8]  # (c, ceil(r/8))
    objective: NDArray[np.float64]  # of the stand-ins, after every H-step


def stand_ins(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of stand-ins of every class (c,): its rows, or its share of ``STAND_INS`` and at least one."""
    n = int(sizes.sum())
    if n <= STAND_INS:
        return sizes
    return np.where(sizes > 0, np.maximum(1, np.round(STAND_INS * sizes / n)), 0).astype(np.int64)


def h_steps(
    H: NDArray[np.uint8],
    sizes: NDArray[np.int64],
    w: float,
    r: int,
    n_iter: int,
    lam: float = 0.0,
    take_back: bool = True,
) -> tuple[NDArray[np.float64], list[float]]:
    """The mean bits of every class (c, r) after at most ``n_iter`` H-steps on stand-ins, and the objective.

    A class may be split between both values of a bit, because every bit is balanced.
    """
    counts = stand_ins(sizes)
    group = np.repeat(np.arange(len(counts)), counts)
    S, rows = Classes(group, w, np.arange(len(counts))), torch.from_numpy(H[group])
    columns, no_q, squared_norm = columns_for(rows, r), torch.zeros(r, len(group)), S.squared_norm()
    found, objective = columns.packed(), list[float]()
    for _ in range(n_iter):
        sweep = cbcd.sweep(columns, S, no_q, lam=lam, take_back=take_back)
        value = cbcd.objective(sweep, squared_norm, r, 0.0)
        if objective and (sweep.flips == 0 or (take_back and value > objective[-1])):
            break  # converged, or a rise by rounding
        objective.append(value)
        found = columns.packed()
    total = np.zeros((len(counts), r))
    np.add.at(total, group, codes.unpack(found, r).astype(np.float64))
    return total / np.maximum(counts, 1)[:, None], objective
