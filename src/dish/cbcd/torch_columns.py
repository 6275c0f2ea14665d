"""Codes on a GPU: ±1, stored by column."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish import parallel
from dish.lazy import Tensor, torch


class TorchColumns:
    """Codes as ±1, one contiguous row of memory per bit, for a GPU.

    All sums are exact. For H'u, the integers u are split into pieces of a few binary digits, so that tensor cores
    compute their products and sums without rounding. For Eᵀb, rows are sorted by group once; the sum of a group is
    then the difference of two running sums of integers.
    """

    between = staticmethod(parallel.between)

    def __init__(self, packed: Tensor, n_bits: int) -> None:
        self.n, self.r = len(packed), n_bits
        half = packed.device.type == "cuda"
        self.digits, dtype = (8, torch.bfloat16) if half else (11, torch.float32)
        self.Ht = torch.empty(n_bits, self.n, dtype=dtype, device=packed.device)  # (r, n)
        masks = torch.tensor([128 >> k for k in range(8)], dtype=torch.uint8, device=packed.device)[:, None]
        for k in range(0, n_bits, 8):
            bits = packed[:, k // 8].bitwise_and(masks[: n_bits - k]) != 0  # (8, n)
            self.Ht[k : k + 8] = torch.where(bits, 1.0, -1.0)
        base = float(1 << self.digits)
        self.powers = (
            base ** torch.arange(8, dtype=torch.float64, device=packed.device)[:, None]
        )  # of the pieces of u
        self._running = packed.new_zeros(self.n + 1, dtype=torch.int32)  # running sums for Eᵀb; the first stays 0
        self._order: tuple[Tensor, Tensor, Tensor] | None = None
        self.sweep: Any = None  # the ``CudaSweep`` of these columns, reused by later sweeps

    @property
    def device(self) -> torch.device:
        """That of the codes."""
        return self.Ht.device

    def sums(self, k: int, row_group: Tensor, n_groups: int) -> tuple[Tensor, Tensor]:
        """Eᵀb (g,) and Hᵀb (r,)."""
        b = self.Ht[k]
        if self._order is None or self._order[0] is not row_group:
            counts = torch.bincount(row_group, minlength=n_groups)
            ends = torch.nn.functional.pad(counts.cumsum(0), (1, 0))  # start and end of each group
            self._order = row_group, torch.argsort(row_group, stable=True), ends
        _, order, ends = self._order
        torch.cumsum(b.index_select(0, order), 0, dtype=torch.int32, out=self._running[1:])
        at_ends = self._running.index_select(0, ends)
        pairs = zip(self.Ht.split(1 << 23, dim=1), b.split(1 << 23), strict=True)  # parts of Hᵀb stay below 2²⁴
        parts = [_whole_product(Ht, part[:, None])[:, 0].double() for Ht, part in pairs]
        return (at_ends[1:] - at_ends[:-1]).double(), torch.stack(parts).sum(0)

    def gram(self) -> Tensor:
        """HᵀH (r, r)."""
        parts = [_whole_product(Ht, Ht.T).double() for Ht in self.Ht.split(1 << 23, dim=1)]
        return torch.stack(parts).sum(0)

    def scores(
        self, k: int, u: Tensor, value: Tensor, diag: Tensor, row_group: Tensor, q: Tensor, lam: float, n_all: int
    ) -> tuple[Tensor, Tensor]:
        """sim = 4 (Qb − diag(Q) b) − q + λc, and qᵀb."""
        b = self.Ht[k]
        cells = torch.add(b > 0, row_group, alpha=2)  # 2·group, plus one for rows with +1
        table = torch.stack([4 * (value + diag), 4 * (value - diag) + lam], 1)  # (g, 2): by group and sign
        sim = table.flatten().index_select(0, cells)
        pieces = (u.abs() / self.powers).floor_().remainder_(1 << self.digits).mul_(torch.sign(u))  # (8, r)
        Hu = _whole_product(pieces.to(self.Ht.dtype), self.Ht)  # (8, n)
        for j in range(-(-n_all.bit_length() // self.digits)):
            sim.sub_(Hu[j], alpha=4 << self.digits * j)
        return sim.sub_(q), (q * b).sum(dtype=torch.float64)

    def column(self, k: int) -> Tensor:
        """Column k."""
        return self.Ht[k].clone()

    def set_column(self, k: int, column: Tensor) -> None:
        """Write column k."""
        self.Ht[k] = column

    def kth_largest(self, sim: Tensor, count: int) -> tuple[float, int]:
        """The count-th largest sim, and its ties among the largest."""
        threshold = sim.sort().values[self.n - count]
        return float(threshold), count - int((sim > threshold).sum())

    def set_largest(self, k: int, sim: Tensor, threshold: float, ties: int) -> int:
        """+1 where sim > threshold, and on the first ``ties`` rows where it is equal."""
        equal = sim == threshold
        chosen = (sim > threshold) | (equal & (equal.cumsum(0, dtype=torch.int32) <= ties))
        column = torch.where(chosen, 1.0, -1.0).to(self.Ht.dtype)
        moved = int((self.Ht[k] != column).sum())
        self.Ht[k] = column
        return moved

    def signs(self, rows: slice, like: Tensor) -> Tensor:
        """Some rows as ±1."""
        return self.Ht[:, rows].T.to(like)

    def packed(self) -> NDArray[np.uint8]:
        """All codes, packed by row."""
        return pack_signs(self.Ht.T).cpu().numpy()


def _whole_product(A: Tensor, B: Tensor) -> Tensor:
    """A B of small integers in float32: exact in any order of summation."""
    if A.device.type != "cuda":
        return A @ B
    rows, columns = len(A), B.shape[1]
    if rows < 8:  # tensor cores need at least eight
        A = torch.nn.functional.pad(A, (0, 0, 0, 8 - rows))
    if columns < 8:
        B = torch.nn.functional.pad(B, (0, 8 - columns))
    return torch.mm(A, B, out_dtype=torch.float32)[:rows, :columns]


def pack_signs(F: Tensor) -> Tensor:
    """``codes.pack`` for a tensor, on its device: (n, r) → (n, ceil(r/8)) uint8; a value ≥ 0 is bit 1."""
    bits = torch.nn.functional.pad((F >= 0).to(torch.uint8), (0, -F.shape[1] % 8)).view(len(F), -1, 8)
    weights = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.uint8, device=F.device)
    return (bits * weights).sum(-1, dtype=torch.uint8)
