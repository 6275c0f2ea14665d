"""Codes as columns: the protocol that a sweep works with, its readable implementation, and the result of a sweep."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dish import codes, parallel
from dish.errors import InputError
from dish.lazy import Tensor, torch

CHUNK = 8192  # rows per chunk of a kernel: a multiple of 64, so that no two threads share a word of a column


@dataclass
class Sweep:
    """The result of a sweep, per bit: enough to evaluate the objective in O(r²)."""

    hSh: NDArray[np.float64]  # (r,) h_kᵀ S h_k
    qh: NDArray[np.float64]  # (r,) q_kᵀ h_k
    gram: NDArray[np.float64]  # (r, r) HᵀH
    steps: int = 0  # steps of all bits
    flips: int = 0  # bits that changed; 0 means convergence


def check_objective(k: int, g: float) -> None:
    """Refuse an objective that is not finite."""
    if not math.isfinite(g):
        raise InputError(f"bit {k}: the objective is {g}; the linear terms or the similarity hold NaN or infinity")


class Columns(Protocol):
    """Codes H (n, r), read and written by column; b is column k."""

    n: int
    r: int

    @property
    def device(self) -> torch.device:
        """The device of the tensors that a sweep needs."""

    def sums(self, k: int, row_group: Tensor, n_groups: int) -> tuple[Tensor, Tensor]:
        """Eᵀb (g,), column k summed by group, and Hᵀb (r,), column k times every column."""

    def gram(self) -> Tensor:
        """HᵀH (r, r)."""

    def scores(
        self, k: int, u: Tensor, value: Tensor, diag: Tensor, row_group: Tensor, q: Tensor, lam: float, n_all: int
    ) -> tuple[Tensor, Tensor]:
        """Return sim (n,) and qᵀb, with (Qb)_i = value[group_i] − H_i u and Q_ii = diag[group_i].

        ``n_all``: rows of all processes, an upper bound of |u|. ``sums`` of column k must have been called before.
        """

    def column(self, k: int) -> Any:
        """Column k, as ``set_column`` takes it."""

    def set_column(self, k: int, column: Any) -> None:
        """Write column k."""

    def kth_largest(self, sim: Tensor, count: int) -> tuple[float, int]:
        """The count-th largest sim, and how many values equal to it are among the ``count`` largest."""

    def between(self, sim: Tensor, low: float, high: float) -> tuple[int, Tensor]:
        """How many values exceed ``high``, and the values in [low, high]."""

    def set_largest(self, k: int, sim: Tensor, threshold: float, ties: int) -> int:
        """Make column k +1 where sim > threshold and on the first ``ties`` rows where it is equal, −1 elsewhere.

        Returns the number of rows that changed.
        """

    def signs(self, rows: slice, like: Tensor) -> Tensor:
        """Some rows as ±1 (rows, r), with the dtype and the device of ``like``."""

    def packed(self) -> NDArray[np.uint8]:
        """All codes, packed by row."""


class DenseColumns:
    """Codes as a ±1 matrix in NumPy: the readable implementation, used for small data to avoid compilation."""

    MOST_BITS = 1 << 18  # above this, ``PackedColumns`` is faster even if its kernels must be compiled first

    between = staticmethod(parallel.between)

    def __init__(self, packed: NDArray[np.uint8], n_bits: int) -> None:
        self.n, self.r = len(packed), n_bits
        self.Ht: NDArray[Any] = np.ascontiguousarray(codes.unpack(packed, n_bits).T, self._exact(self.n))  # (r, n)

    def _exact(self, n: int) -> Any:
        """A dtype that holds sums of r integers up to n exactly."""
        return np.float32 if n * self.r < 1 << 24 else np.float64

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    @property
    def H(self) -> Tensor:
        """H (n, r)."""
        return torch.from_numpy(self.Ht.T.astype(np.float64, "C"))

    def sums(self, k: int, row_group: Tensor, n_groups: int) -> tuple[Tensor, Tensor]:
        """Eᵀb (g,) and Hᵀb (r,)."""
        sums = np.bincount(row_group.numpy(), self.Ht[k], n_groups)
        return torch.from_numpy(sums), torch.from_numpy((self.Ht @ self.Ht[k]).astype(np.float64))

    def gram(self) -> Tensor:
        """HᵀH (r, r)."""
        return torch.from_numpy((self.Ht @ self.Ht.T).astype(np.float64))

    def scores(
        self, k: int, u: Tensor, value: Tensor, diag: Tensor, row_group: Tensor, q: Tensor, lam: float, n_all: int
    ) -> tuple[Tensor, Tensor]:
        """sim = 4 (Qb − diag(Q) b) − q + λc, and qᵀb."""
        b, group, linear, exact = self.Ht[k].astype(np.float64), row_group.numpy(), q.numpy(), self._exact(n_all)
        Qb = value.numpy()[group] - u.numpy().astype(exact) @ self.Ht.astype(exact, copy=False)
        sim = 4 * (Qb - diag.numpy()[group] * b) - linear + lam * (b + 1) / 2
        return torch.from_numpy(sim), torch.tensor(linear @ b, dtype=torch.float64)

    def column(self, k: int) -> NDArray[Any]:
        """Column k."""
        return self.Ht[k].copy()

    def set_column(self, k: int, column: NDArray[Any]) -> None:
        """Write column k."""
        self.Ht[k] = column

    def kth_largest(self, sim: Tensor, count: int) -> tuple[float, int]:
        """The count-th largest sim, and its ties among the largest."""
        values = sim.numpy()
        threshold = np.partition(values, self.n - count)[self.n - count]
        return float(threshold), count - int(np.count_nonzero(values > threshold))

    def set_largest(self, k: int, sim: Tensor, threshold: float, ties: int) -> int:
        """+1 where sim > threshold, and on the first ``ties`` rows where it is equal."""
        values, before = sim.numpy(), self.column(k)
        chosen = values > threshold
        chosen[np.flatnonzero(values == threshold)[:ties]] = True
        self.set_column(k, np.where(chosen, 1, -1))
        return int(np.count_nonzero(self.Ht[k] != before))

    def signs(self, rows: slice, like: Tensor) -> Tensor:
        """Some rows as ±1."""
        return self.H[rows].to(like)

    def packed(self) -> NDArray[np.uint8]:
        """All codes, packed by row."""
        return codes.pack(self.Ht.T)
