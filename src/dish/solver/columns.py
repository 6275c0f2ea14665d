"""How a sweep sees the codes: by column. The protocol, and its readable twin."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dish import codes, parallel


class Columns(Protocol):
    """Codes H (n, r), read and written by column."""

    n: int
    r: int

    def group_sums(self, k: int, row_group: Tensor, n_groups: int) -> Tensor:
        """Eᵀb (g,): column k summed by group."""

    def gram(self, k: int) -> Tensor:
        """Hᵀb (r,): column k against every column."""

    def whole_gram(self) -> Tensor:
        """HᵀH (r, r)."""

    def scores(
        self, k: int, u: Tensor, value: Tensor, diag: Tensor, row_group: Tensor, q: Tensor, lam: float
    ) -> tuple[Tensor, Tensor]:
        """Return sim (n,) and qᵀb, with (Qb)_i = value[group_i] − H_i u and Q_ii = diag[group_i]."""

    def column(self, k: int) -> Any:
        """Column k, in a form that ``set_column`` takes."""

    def set_column(self, k: int, column: Any) -> int:
        """Write column k; return how many rows changed."""

    def kth_largest(self, sim: Tensor, count: int) -> tuple[float, int]:
        """The count-th largest sim, and how many of the values equal to it are among the ``count`` largest."""

    def between(self, sim: Tensor, low: float, high: float) -> tuple[int, Tensor]:
        """How many sim exceed ``high``, and those in [low, high]."""

    def above(self, sim: Tensor, threshold: float, ties: int) -> Any:
        """Return the column with +1 where sim > threshold, and on the first ``ties`` rows where it is equal."""

    def signs(self, rows: slice, like: Tensor) -> Tensor:
        """Some rows as ±1 (rows, r), of the type and on the device of ``like``."""

    def packed(self) -> NDArray[np.uint8]:
        """All codes, packed by row."""


class DenseColumns:
    """Codes as a ±1 float64 matrix: the readable form."""

    between = staticmethod(parallel.between)

    def __init__(self, packed: NDArray[np.uint8], n_bits: int) -> None:
        self.H = torch.from_numpy(codes.unpack(packed, n_bits)).double()
        self.n, self.r = self.H.shape

    def group_sums(self, k: int, row_group: Tensor, n_groups: int) -> Tensor:
        """Eᵀb (g,)."""
        return self.H.new_zeros(n_groups).index_add_(0, row_group, self.H[:, k])

    def gram(self, k: int) -> Tensor:
        """Hᵀb (r,)."""
        return self.H.T @ self.H[:, k]

    def whole_gram(self) -> Tensor:
        """HᵀH (r, r)."""
        return self.H.T @ self.H

    def scores(
        self, k: int, u: Tensor, value: Tensor, diag: Tensor, row_group: Tensor, q: Tensor, lam: float
    ) -> tuple[Tensor, Tensor]:
        """sim = 4 (Qb − diag(Q) b) − q + λc, and qᵀb."""
        b, row_group, q = self.H[:, k], row_group.long(), q.double()
        Qb = value[row_group] - self.H @ u
        sim = 4 * (Qb - diag[row_group] * b) - q + lam * (b + 1) / 2
        return sim, q @ b

    def column(self, k: int) -> Tensor:
        """Column k."""
        return self.H[:, k].clone()

    def set_column(self, k: int, column: Tensor) -> int:
        """Write column k; return how many rows changed."""
        flips = int((self.H[:, k] != column).sum())
        self.H[:, k] = column
        return flips

    def kth_largest(self, sim: Tensor, count: int) -> tuple[float, int]:
        """The count-th largest sim, and its ties among the largest."""
        threshold = sim.sort(descending=True).values[count - 1]
        return float(threshold), count - int((sim > threshold).sum())

    def above(self, sim: Tensor, threshold: float, ties: int) -> Tensor:
        """+1 where sim > threshold, and on the first ``ties`` rows where it is equal."""
        equal = sim == threshold
        return torch.where((sim > threshold) | (equal & (equal.cumsum(0) <= ties)), 1.0, -1.0).double()

    def signs(self, rows: slice, like: Tensor) -> Tensor:
        """Some rows as ±1."""
        return self.H[rows].to(like)

    def packed(self) -> NDArray[np.uint8]:
        """All codes, packed by row."""
        return codes.pack(self.H.numpy())
