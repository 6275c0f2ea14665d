"""Codes on a GPU, as ±1 by column."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish import parallel
from dish.lazy import Tensor, torch


class DeviceColumns:
    """Codes as ±1, one contiguous row of memory per bit, for a GPU.

    Sums are exact. H'u: u is split into pieces of so few binary digits that products and sums of them are whole
    numbers which the arithmetic of the matrix units holds. Eᵀb: rows are put in order of their group once, and the
    sum of a group is the difference of two running sums, whole numbers too.
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
        self.powers = base ** torch.arange(8, dtype=torch.float64, device=packed.device)[:, None]  # of u's pieces
        self._running = packed.new_zeros(self.n + 1, dtype=torch.int32)  # of Eᵀb; its first stays 0
        self._order: tuple[Tensor, Tensor, Tensor] | None = None
        self.steps: Any = None  # a ``DeviceSteps`` over these columns

    @property
    def device(self) -> torch.device:
        """That of the codes."""
        return self.Ht.device

    def sums(self, k: int, row_group: Tensor, n_groups: int) -> tuple[Tensor, Tensor]:
        """Eᵀb (g,) and Hᵀb (r,)."""
        return self.group_sums(self.Ht[k], row_group, n_groups), self.against(self.Ht[k])

    def group_sums(self, b: Tensor, row_group: Tensor, n_groups: int) -> Tensor:
        """Eᵀb (g,) of a column b (n,)."""
        if self._order is None or self._order[0] is not row_group:
            counts = torch.bincount(row_group, minlength=n_groups)
            ends = torch.nn.functional.pad(counts.cumsum(0), (1, 0))  # where each group starts and ends
            self._order = row_group, torch.argsort(row_group, stable=True), ends
        _, order, ends = self._order
        torch.cumsum(b.index_select(0, order), 0, dtype=torch.int32, out=self._running[1:])
        at_ends = self._running.index_select(0, ends)
        return (at_ends[1:] - at_ends[:-1]).double()

    def against(self, b: Tensor) -> Tensor:
        """Hᵀb (r,), exact: parts of it stay below 2²⁴."""
        pairs = zip(self.Ht.split(1 << 23, dim=1), b.split(1 << 23), strict=True)
        parts = [_whole_product(Ht, part[:, None])[:, 0].double() for Ht, part in pairs]
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)

    def gram(self) -> Tensor:
        """HᵀH (r, r)."""
        parts = [_whole_product(Ht, Ht.T).double() for Ht in self.Ht.split(1 << 23, dim=1)]
        return torch.stack(parts).sum(0)

    def scores(
        self, k: int, u: Tensor, value: Tensor, diag: Tensor, row_group: Tensor, q: Tensor, lam: float, n_all: int
    ) -> tuple[Tensor, Tensor]:
        """sim = 4 (Qb − diag(Q) b) − q + λc, and qᵀb."""
        return self.scores_of(self.Ht[k], u, value, diag, row_group, q, lam, n_all)

    def scores_of(
        self, b: Tensor, u: Tensor, value: Tensor, diag: Tensor, row_group: Tensor, q: Tensor, lam: float, n_all: int
    ) -> tuple[Tensor, Tensor]:
        """The same for a column b (n,)."""
        cells = torch.add(b > 0, row_group, alpha=2)  # 2·group, and one more for rows with +1
        table = torch.stack([4 * (value + diag), 4 * (value - diag) + lam], 1)  # (g, 2): by group, and by −1 or +1
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

    def largest(self, sim: Tensor, count: int) -> Tensor:
        """A column that is +1 on the ``count`` largest sim, of equal ones on lower rows, and −1 elsewhere.

        Nothing here waits for the device.
        """
        threshold = sim.sort().values[self.n - count]
        return self._above(sim, threshold, count - (sim > threshold).sum())

    def _above(self, sim: Tensor, threshold: Any, ties: Any) -> Tensor:
        """+1 where sim > threshold, and on the first ``ties`` rows where it is equal, else −1."""
        equal = sim == threshold
        chosen = (sim > threshold) | (equal & (equal.cumsum(0, dtype=torch.int32) <= ties))
        return torch.where(chosen, 1.0, -1.0).to(self.Ht.dtype)

    def set_largest(self, k: int, sim: Tensor, threshold: float, ties: int) -> int:
        """+1 where sim > threshold, and on the first ``ties`` rows where it is equal."""
        column = self._above(sim, threshold, ties)
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
    """A B of small whole numbers in float32: exact, whatever the order of the sums."""
    if A.device.type != "cuda":
        return A @ B
    rows, columns = len(A), B.shape[1]
    if rows < 8:  # the matrix units want eight at least
        A = torch.nn.functional.pad(A, (0, 0, 0, 8 - rows))
    if columns < 8:
        B = torch.nn.functional.pad(B, (0, 8 - columns))
    return torch.mm(A, B, out_dtype=torch.float32)[:rows, :columns]


def pack_signs(F: Tensor) -> Tensor:
    """``codes.pack`` on a tensor, on its own device: (n, r) → (n, ceil(r/8)) uint8; a value ≥ 0 is bit 1."""
    bits = torch.nn.functional.pad((F >= 0).to(torch.uint8), (0, -F.shape[1] % 8)).view(len(F), -1, 8)
    weights = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.uint8, device=F.device)
    return (bits * weights).sum(-1, dtype=torch.uint8)
