"""How a sweep reads and writes codes: by column. The protocol, and the readable form of it."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dish import codes, parallel
from dish.lazy import Tensor, torch


class Columns(Protocol):
    """Codes H (n, r), read and written by column. b is column k."""

    n: int
    r: int

    def sums(self, k: int, row_group: Tensor, n_groups: int) -> tuple[Tensor, Tensor]:
        """Eᵀb (g,), column k summed by group, and Hᵀb (r,), column k against every column."""

    def gram(self) -> Tensor:
        """HᵀH (r, r)."""

    def scores(
        self, k: int, u: Tensor, value: Tensor, diag: Tensor, row_group: Tensor, q: Tensor, lam: float, n_all: int
    ) -> tuple[Tensor, Tensor]:
        """Return sim (n,) and qᵀb, with (Qb)_i = value[group_i] − H_i u and Q_ii = diag[group_i].

        ``n_all``: rows of all processes, which bound the whole numbers |u|. Called right after ``sums`` of column k.
        """

    def column(self, k: int) -> Any:
        """Column k, in a form that ``set_column`` takes."""

    def set_column(self, k: int, column: Any) -> None:
        """Write column k."""

    def kth_largest(self, sim: Tensor, count: int) -> tuple[float, int]:
        """The count-th largest sim, and how many of the values equal to it are among the ``count`` largest."""

    def between(self, sim: Tensor, low: float, high: float) -> tuple[int, Tensor]:
        """How many sim exceed ``high``, and those in [low, high]."""

    def set_largest(self, k: int, sim: Tensor, threshold: float, ties: int) -> int:
        """Make column k +1 where sim > threshold and on the first ``ties`` rows where it is equal, −1 elsewhere.

        Returns how many rows changed.
        """

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

    def sums(self, k: int, row_group: Tensor, n_groups: int) -> tuple[Tensor, Tensor]:
        """Eᵀb (g,) and Hᵀb (r,)."""
        b = self.H[:, k]
        return self.H.new_zeros(n_groups).index_add_(0, row_group, b), self.H.T @ b

    def gram(self) -> Tensor:
        """HᵀH (r, r)."""
        return self.H.T @ self.H

    def scores(
        self, k: int, u: Tensor, value: Tensor, diag: Tensor, row_group: Tensor, q: Tensor, lam: float, n_all: int
    ) -> tuple[Tensor, Tensor]:
        """sim = 4 (Qb − diag(Q) b) − q + λc, and qᵀb."""
        b, row_group, q = self.H[:, k], row_group.long(), q.double()
        Qb = value[row_group] - self.H @ u
        sim = 4 * (Qb - diag[row_group] * b) - q + lam * (b + 1) / 2
        return sim, q @ b

    def column(self, k: int) -> Tensor:
        """Column k."""
        return self.H[:, k].clone()

    def set_column(self, k: int, column: Tensor) -> None:
        """Write column k."""
        self.H[:, k] = column

    def kth_largest(self, sim: Tensor, count: int) -> tuple[float, int]:
        """The count-th largest sim, and its ties among the largest."""
        threshold = sim.sort(descending=True).values[count - 1]
        return float(threshold), count - int((sim > threshold).sum())

    def set_largest(self, k: int, sim: Tensor, threshold: float, ties: int) -> int:
        """+1 where sim > threshold, and on the first ``ties`` rows where it is equal."""
        before, equal = self.column(k), sim == threshold
        chosen = (sim > threshold) | (equal & (equal.cumsum(0) <= ties))
        self.set_column(k, torch.where(chosen, 1.0, -1.0).double())
        return int((self.H[:, k] != before).sum())

    def signs(self, rows: slice, like: Tensor) -> Tensor:
        """Some rows as ±1."""
        return self.H[rows].to(like)

    def packed(self) -> NDArray[np.uint8]:
        """All codes, packed by row."""
        return codes.pack(self.H.numpy())
