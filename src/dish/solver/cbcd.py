"""Fast C-BCD (Algorithm 1): codes H learned one bit (column) at a time, in O(n) time and memory.

The H-step minimises, over H in {−1, +1} with balanced columns,

    Q(H) = ‖r P Rᵀ − H Hᵀ‖² + nν Σ l(h_ik, f_ik) .

For one column b, with H' the others, Q = r P Rᵀ − H' H'ᵀ and q_i = nν/2 (l(1, f_i) − l(−1, f_i)), that is

    g(b) = −2 bᵀQb + qᵀb ,   one step:  b ← +1 on the ⌊(n+1)/2⌋ largest  sim = 4 (Q − diag Q) b − q + λ c ,

c = (b + 1)/2. The paper's longer formula for sim is the same numbers (8 Q₀c − 4 Q₀1 = 4 Q₀b). Equal values of
sim are taken in row order, lower row first. A step that would raise g is taken back, so g never rises.

All that crosses rows are sums (Rᵀb, H'ᵀb, g) and the threshold of the top half; with several processes they go
through a ``parallel.Ranks``.

Codes live in one of three forms with the same methods: ``PackedColumns`` (bits, numba kernels, CPU),
``DeviceColumns`` (±1 by column, torch, GPU) and ``DenseColumns`` (a ±1 matrix, one line a method: the readable twin).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numba
import numpy as np
import torch
from numba import njit, prange
from numpy.typing import NDArray
from torch import Tensor

from dish import codes, parallel
from dish.codes import byte_table, popcount
from dish.parallel import ALONE, Ranks
from dish.progress import LONG, progress
from dish.similarity.labelled import Similarity


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


@dataclass
class Sweep:
    """What a sweep leaves behind, bit by bit: enough to evaluate the objective in O(r²)."""

    hSh: NDArray[np.float64]  # (r,) h_kᵀ S h_k
    qh: NDArray[np.float64]  # (r,) q_kᵀ h_k
    gram: NDArray[np.float64]  # (r, r) HᵀH
    steps: int = 0  # steps taken over all bits
    flips: int = 0  # rows moved by the steps that were kept; 0: the sweep changed nothing


def sweep(
    H: Columns, S: Similarity, q: Tensor, *, lam: float = 0.0, max_steps: int = 20, ranks: Ranks = ALONE
) -> Sweep:
    """One pass over the bits, each taken to convergence. Changes H in place; q is (r, n)."""
    result = Sweep(np.zeros(H.r), np.zeros(H.r), np.zeros((H.r, H.r)))
    n = int(ranks.total(torch.tensor(H.n)))
    diag = H.r * S.diag - (H.r - 1)  # Q_ii
    with _threads_for(H.n), progress("H-step", H.r, worth=n >= LONG) as step:
        for k in range(H.r):
            update_column(H, k, S, q[k], result, n=n, diag=diag, lam=lam, max_steps=max_steps, ranks=ranks)
            step(1)
        result.gram = ranks.total(H.whole_gram()).cpu().numpy()
    flips = ranks.total(torch.tensor(result.flips))  # of all processes: they must agree on whether to go on
    result.flips = int(flips)
    return result


@contextmanager
def _threads_for(n: int) -> Iterator[None]:
    """Threads for kernels over n rows: one for every two chunks, since starting and waiting costs as much."""
    before = numba.get_num_threads()
    numba.set_num_threads(max(1, min(before, n // (2 * _CHUNK))))
    try:
        yield
    finally:
        numba.set_num_threads(before)


def update_column(
    H: Columns,
    k: int,
    S: Similarity,
    q: Tensor,
    result: Sweep,
    *,
    n: int,
    diag: Tensor,
    lam: float = 0.0,
    max_steps: int = 20,
    ranks: Ranks = ALONE,
) -> None:
    """Steps on bit k until it stops changing (the inner loop of Algorithm 1).

    ``n``: rows of all processes; ``diag``: Q_ii by group.
    """
    count = (n + 1) // 2
    kept, g_kept, moved = H.column(k), np.inf, 0
    for step in range(max_steps + 1):
        sums = H.group_sums(k, S.row_group, S.n_groups)  # Eᵀ b
        Rtb, u, moved_all = ranks.sum(S.Rt(sums), H.gram(k), torch.tensor([moved], device=sums.device))
        if step and ranks.world > 1 and moved_all == 0:
            result.steps -= 1  # it was none: several processes learn only now that nothing moved
            break
        SB = S.P(Rtb)  # S b by group
        u[k] = 0  # H'ᵀ b
        sim, qb = H.scores(k, u, H.r * SB, diag, S.row_group, q, lam)
        parts = torch.stack([sums @ SB, qb, sums.sum()])
        if ranks.world > 1:
            parts, samples = ranks.sum(parts, parallel.sample(sim, ranks))
        bSb, linear, b1, uu = torch.cat([parts, (u @ u)[None]]).tolist()
        g = -2 * (H.r * bSb - uu) + linear  # bᵀQb = r bᵀSb − ‖H'ᵀb‖²
        if g > g_kept:  # worse than the column we had: take the step back
            H.set_column(k, kept)
            break
        result.hSh[k], result.qh[k] = bSb, linear
        result.flips += moved
        if b1 == n % 2:  # a column that is not balanced is no solution to fall back to
            kept, g_kept = H.column(k), g
        if step == max_steps:
            break
        if ranks.world == 1:
            threshold, ties = H.kth_largest(sim, count)
        else:
            threshold, ties = parallel.kth_largest(sim, count, ranks, samples, H.between)
        moved = H.set_column(k, H.above(sim, threshold, ties))
        if ranks.world == 1 and moved == 0:
            break
        result.steps += 1


def objective(result: Sweep, squared_norm: float, r: int, loss_constant: float = 0.0) -> float:
    """Q(H) after a sweep: r²‖S‖² − 2r tr(HᵀSH) + ‖HᵀH‖² + Σ q_kᵀh_k + constant of the loss."""
    fit = r * r * squared_norm - 2 * r * result.hSh.sum() + float((result.gram**2).sum())
    return float(fit + result.qh.sum() + loss_constant)


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


class DeviceColumns:
    """Codes as ±1, one contiguous row of memory a bit, for a GPU.

    H'u is exact: u is split into pieces of so few binary digits that products and sums of them are whole numbers
    which the arithmetic of the matrix units holds.
    """

    SAMPLE = 1 << 14  # values that a selection takes its first bounds from
    between = staticmethod(parallel.between)

    def __init__(self, packed: Tensor, n_bits: int) -> None:
        self.n, self.r = len(packed), n_bits
        half = packed.device.type == "cuda"
        self.digits, dtype = (8, torch.bfloat16) if half else (11, torch.float32)
        self.Ht = torch.empty(n_bits, self.n, dtype=dtype, device=packed.device)  # (r, n)
        for k in range(n_bits):
            self.Ht[k] = torch.where(packed[:, k // 8].bitwise_and(128 >> (k % 8)) != 0, 1.0, -1.0)
        base = float(1 << self.digits)
        self.powers = (
            base ** torch.arange(8, dtype=torch.float64, device=packed.device)[:, None]
        )  # of the pieces of u
        self.n_pieces = -(-self.n.bit_length() // self.digits)
        self._cells = packed.new_empty(0, dtype=torch.int32)
        self._all_ties = False
        self._diag: tuple[Tensor, float, Tensor] | None = None

    def group_sums(self, k: int, row_group: Tensor, n_groups: int) -> Tensor:
        """Eᵀb (g,): rows with +1 less rows with −1."""
        self._cells = torch.add(self.Ht[k] > 0, row_group, alpha=2)  # 2·group, and one more for rows with +1
        if n_groups > 1 << 16:  # few rows a group: they seldom meet
            return self.Ht.new_zeros(n_groups, dtype=torch.float64).index_add_(0, row_group, self.Ht[k].double())
        counts = torch.histc(self._cells.float(), 2 * n_groups, 0, 2 * n_groups).double()
        return counts[1::2] - counts[::2]

    def gram(self, k: int) -> Tensor:
        """Hᵀb (r,), exact: parts of it stay below 2²⁴."""
        parts = [_whole_product(Ht, Ht[k][:, None])[:, 0].double() for Ht in self.Ht.split(1 << 23, dim=1)]
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)

    def whole_gram(self) -> Tensor:
        """HᵀH (r, r)."""
        parts = [_whole_product(Ht, Ht.T).double() for Ht in self.Ht.split(1 << 23, dim=1)]
        return torch.stack(parts).sum(0)

    def scores(
        self, k: int, u: Tensor, value: Tensor, diag: Tensor, row_group: Tensor, q: Tensor, lam: float
    ) -> tuple[Tensor, Tensor]:
        """sim = 4 (Qb − diag(Q) b) − q + λc, and qᵀb; right after ``group_sums`` of the same column."""
        if self._diag is None or self._diag[0] is not diag or self._diag[1] != lam:
            self._diag = diag, lam, torch.stack([4 * diag, lam - 4 * diag], 1)
        table = torch.add(self._diag[2], value[:, None], alpha=4)  # (g, 2): by group, and by −1 or +1
        sim = table.flatten().index_select(0, self._cells)
        pieces = (u.abs() / self.powers).floor_().remainder_(1 << self.digits).mul_(torch.sign(u))  # (8, r)
        Hu = _whole_product(pieces.to(self.Ht.dtype), self.Ht)  # (8, n)
        for j in range(self.n_pieces):
            sim.sub_(Hu[j], alpha=4 << self.digits * j)
        return sim.sub_(q), (q * self.Ht[k]).sum(dtype=torch.float64)

    def column(self, k: int) -> Tensor:
        """Column k."""
        return self.Ht[k].clone()

    def set_column(self, k: int, column: Tensor) -> int:
        """Write column k; return how many rows changed."""
        flips = int((self.Ht[k] != column).sum())
        self.Ht[k] = column
        return flips

    def kth_largest(self, sim: Tensor, count: int) -> tuple[float, int]:
        """The count-th largest sim, and its ties among the largest: as the function of this name, on the device."""
        k, left = count, sim
        if self.n > 4 * self.SAMPLE:
            ordered = sim[:: self.n // self.SAMPLE].sort().values
            place, margin = (self.n - count) / self.n * len(ordered), 1.5 * len(ordered) ** 0.5
            low, high = ordered[int(place - margin)], ordered[min(len(ordered) - 1, int(place + margin))]
            between = sim[(sim >= low) & (sim <= high)]
            above = int((sim > high).sum())
            if above < count <= above + len(between):
                k, left = count - above, between
        threshold = left.sort(descending=True).values[k - 1]
        found, larger, equal = torch.stack([threshold, (left > threshold).sum(), (left == threshold).sum()]).tolist()
        self._all_ties = k - larger == equal  # as nearly always: then no one has to be left out
        return found, k - int(larger)

    def above(self, sim: Tensor, threshold: float, ties: int) -> Tensor:
        """+1 where sim > threshold, and on the first ``ties`` rows where it is equal."""
        if self._all_ties:
            self._all_ties = False
            chosen = sim >= threshold
        else:
            equal = sim == threshold
            chosen = (sim > threshold) | (equal & (equal.cumsum(0, dtype=torch.int32) <= ties))
        return torch.where(chosen, 1.0, -1.0).to(self.Ht.dtype)

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
    """Values (n, r) → packed codes (n, ceil(r/8)) uint8 on the same device; a value ≥ 0 is bit 1."""
    bits = torch.nn.functional.pad((F >= 0).to(torch.uint8), (0, -F.shape[1] % 8)).view(len(F), -1, 8)
    weights = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.uint8, device=F.device)
    return (bits * weights).sum(-1, dtype=torch.uint8)


class PackedColumns:
    """Codes as bits, once by row (for H'u) and once by column (for HᵀH): r/4 bytes a row in all."""

    def __init__(self, packed: NDArray[np.uint8], n_bits: int) -> None:
        self.n, self.r = len(packed), n_bits
        self.width = packed.shape[1]
        self.rows = codes.as_words(packed)  # (n, ceil(r/64)) uint64, the first byte lowest
        self.cols = _transpose_bits(packed, n_bits)  # (r, ceil(n/64)) uint64, row i is bit i%64
        self._sim, self._scratch = np.empty(self.n), np.empty(self.n)

    def group_sums(self, k: int, row_group: Tensor, n_groups: int) -> Tensor:
        """Eᵀb (g,)."""
        return torch.from_numpy(_group_sums(self.cols[k], row_group.numpy(), n_groups))

    def gram(self, k: int) -> Tensor:
        """Hᵀb (r,): n − 2·(bits that differ)."""
        return torch.from_numpy(_gram(self.cols, k, self.n))

    def whole_gram(self) -> Tensor:
        """HᵀH (r, r)."""
        return torch.stack([self.gram(k) for k in range(self.r)])

    def scores(
        self, k: int, u: Tensor, value: Tensor, diag: Tensor, row_group: Tensor, q: Tensor, lam: float
    ) -> tuple[Tensor, Tensor]:
        """sim = 4 (Qb − diag(Q) b) − q + λc, and qᵀb."""
        table = byte_table(u.numpy(), self.rows.shape[1])
        qb = _scores(
            self.rows,
            self.cols[k],
            row_group.numpy(),
            value.numpy(),
            diag.numpy(),
            table,
            q.numpy(),
            lam,
            self._sim,
        )
        return torch.from_numpy(self._sim), torch.tensor(qb, dtype=torch.float64)

    def column(self, k: int) -> NDArray[np.uint64]:
        """Column k as words of 64 rows."""
        return self.cols[k].copy()

    def set_column(self, k: int, column: NDArray[np.uint64]) -> int:
        """Write column k; return how many rows changed."""
        return int(_set_column(self.rows.view(np.uint8), self.cols[k], column, k))

    def kth_largest(self, sim: Tensor, count: int) -> tuple[float, int]:
        """The count-th largest sim, and its ties among the largest."""
        return kth_largest(sim.numpy(), count, self._scratch)

    def between(self, sim: Tensor, low: float, high: float) -> tuple[int, Tensor]:
        """How many sim exceed ``high``, and those in [low, high]."""
        above, found = _between(sim.numpy(), low, high, self._scratch)
        return int(above), torch.from_numpy(self._scratch[: _close_gaps(self._scratch, found)])

    def above(self, sim: Tensor, threshold: float, ties: int) -> NDArray[np.uint64]:
        """+1 where sim > threshold, and on the first ``ties`` rows where it is equal."""
        return _words_above(sim.numpy(), threshold, ties)

    def signs(self, rows: slice, like: Tensor) -> Tensor:
        """Some rows as ±1."""
        bits = np.unpackbits(self.rows[rows].view(np.uint8), axis=1, count=self.r)
        return torch.from_numpy(bits).to(like).mul_(2).sub_(1)

    def packed(self) -> NDArray[np.uint8]:
        """All codes, packed by row."""
        return self.rows.view(np.uint8)[:, : self.width].copy()


# --- numba kernels: rows in chunks of a multiple of 64, so that no two threads share a word ---------------

_CHUNK = 8192


@njit(cache=True)
def _transpose_bits(rows: Any, r: int) -> Any:
    n = len(rows)
    cols = np.zeros((r, (n + 63) // 64), np.uint64)
    for i in range(n):
        for k in range(r):
            if rows[i, k >> 3] & (128 >> (k & 7)):
                cols[k, i >> 6] |= np.uint64(1) << np.uint64(i & 63)
    return cols


@njit(parallel=True, cache=True)
def _scores(
    rows: Any, column: Any, row_group: Any, value: Any, diag: Any, table: Any, q: Any, lam: float, sim: Any
) -> Any:
    """sim_i = 4 (value[g_i] − H_i u − diag[g_i] b_i) − q_i + λ c_i; sums b·q on the way."""
    n, words = rows.shape
    chunks = (n + _CHUNK - 1) // _CHUNK
    qb = np.zeros(chunks)
    byte = np.uint64(255)
    for c in prange(chunks):
        linear = 0.0
        for i in range(c * _CHUNK, min(n, (c + 1) * _CHUNK)):
            Hu = 0.0
            for w in range(words):
                x = rows[i, w]  # eight bytes at once, the first of them lowest
                j = 8 * w
                Hu += (
                    (table[j, x & byte] + table[j + 1, (x >> np.uint64(8)) & byte])
                    + (table[j + 2, (x >> np.uint64(16)) & byte] + table[j + 3, (x >> np.uint64(24)) & byte])
                ) + (
                    (table[j + 4, (x >> np.uint64(32)) & byte] + table[j + 5, (x >> np.uint64(40)) & byte])
                    + (table[j + 6, (x >> np.uint64(48)) & byte] + table[j + 7, x >> np.uint64(56)])
                )
            g = np.uint64(row_group[i])
            Qb = value[g] - Hu
            c_i = float((column[i >> 6] >> np.uint64(i & 63)) & np.uint64(1))
            b = 2.0 * c_i - 1.0
            linear += b * q[i]
            sim[i] = 4.0 * (Qb - diag[g] * b) - q[i] + lam * c_i
        qb[c] = linear
    return qb.sum()


@njit(parallel=True, cache=True)
def _gram(cols: Any, k: int, n: int) -> Any:
    r, words = cols.shape
    u = np.empty(r)
    for j in prange(r):
        differ = np.uint64(0)
        for w in range(words):
            differ += popcount(cols[j, w] ^ cols[k, w])
        u[j] = n - 2.0 * differ
    return u


@njit(parallel=True, cache=True)
def _group_sums(column: Any, row_group: Any, n_groups: int) -> Any:
    n = len(row_group)
    lanes = 1 if n_groups > 4096 else (n + _CHUNK - 1) // _CHUNK  # a counter for each chunk, or one for all
    size = -(-n // (64 * lanes)) * 64
    counts = np.zeros((lanes, n_groups, 2), np.int32)  # rows with −1, rows with +1
    for c in prange(lanes):
        count = counts[c].ravel()
        for i in range(c * size, min(n, (c + 1) * size)):
            bit = (column[i >> 6] >> np.uint64(i & 63)) & np.uint64(1)
            count[(np.uint64(row_group[i]) << np.uint64(1)) + bit] += np.int32(1)
    total = counts.sum(axis=0)
    return (total[:, 1] - total[:, 0]).astype(np.float64)


def kth_largest(values: NDArray[np.float64], k: int, scratch: NDArray[np.float64]) -> tuple[float, int]:
    """The k-th largest value, and how many of the values equal to it are among the k largest.

    Two bounds from a sorted sample hold the k-th largest between them; one pass counts what is above and
    gathers what lies between, a few per cent, in ``scratch`` for an ordinary selection. Should the bounds
    miss, all values are selected from.
    """
    n, size = len(values), 2048
    if n > 8 * size:
        sample = np.sort(values[:: n // size])
        place = (n - k) / n * len(sample)
        margin = 1.5 * len(sample) ** 0.5  # three standard deviations of the sample's quantile
        low = sample[max(0, int(place - margin))]
        high = sample[min(len(sample) - 1, int(place + margin))]
        above, found = _between(values, low, high, scratch)
        found = _close_gaps(scratch, found)
        if above < k <= above + found:
            values, k = scratch[:found], k - above
    threshold = float(np.partition(values, len(values) - k)[len(values) - k])
    return threshold, k - int(np.count_nonzero(values > threshold))


@njit(parallel=True, cache=True)
def _between(values: Any, low: float, high: float, out: Any) -> Any:
    """How many values exceed ``high``; those in [low, high] go to the front of each chunk of ``out``: how many."""
    n = len(values)
    chunks = (n + _CHUNK - 1) // _CHUNK
    above, found = np.zeros(chunks, np.int64), np.zeros(chunks, np.int64)
    for c in prange(chunks):
        start = place = c * _CHUNK
        larger = 0
        for i in range(start, min(n, start + _CHUNK)):
            v = values[i]
            larger += v > high
            out[place] = v  # always written, kept only if it lies between: no branch to mispredict
            place += (v >= low) & (v <= high)
        above[c], found[c] = larger, place - start
    return above.sum(), found


@njit(cache=True)
def _close_gaps(out: Any, found: Any) -> Any:
    """Move the found values of all chunks to the front. Serial: source and target may overlap."""
    total = 0
    for c in range(len(found)):
        for i in range(found[c]):
            out[total + i] = out[c * _CHUNK + i]
        total += found[c]
    return total


@njit(parallel=True, cache=True)
def _words_above(values: Any, threshold: float, n_ties: int) -> Any:
    """Bits: value > threshold, and the first n_ties rows with value == threshold."""
    n = len(values)
    words_per_chunk = _CHUNK // 64
    chunks = (n + _CHUNK - 1) // _CHUNK
    column = np.zeros((n + 63) // 64, np.uint64)
    ties = np.zeros(chunks, np.int64)
    for c in prange(chunks):
        found = 0
        for w in range(c * words_per_chunk, min(len(column), (c + 1) * words_per_chunk)):
            word = np.uint64(0)
            for i in range(w * 64, min(n, w * 64 + 64)):
                word |= np.uint64(values[i] > threshold) << np.uint64(i & 63)
                found += values[i] == threshold
            column[w] = word
        ties[c] = found
    for c in range(chunks):
        i = c * _CHUNK
        while n_ties > 0 and ties[c] > 0:
            if values[i] == threshold:
                column[i >> 6] |= np.uint64(1) << np.uint64(i & 63)
                n_ties -= 1
                ties[c] -= 1
            i += 1
    return column


@njit(parallel=True, cache=True)
def _set_column(rows: Any, column: Any, new: Any, k: int) -> Any:
    """Write the words of a column and flip the same bits in the row-packed codes."""
    words_per_chunk = _CHUNK // 64
    chunks = (len(column) + words_per_chunk - 1) // words_per_chunk
    byte, mask = k >> 3, np.uint8(128 >> (k & 7))
    flips = np.zeros(chunks, np.int64)
    for c in prange(chunks):
        for w in range(c * words_per_chunk, min(len(column), (c + 1) * words_per_chunk)):
            differ = column[w] ^ new[w]
            column[w] = new[w]
            while differ:
                bit = differ & (~differ + np.uint64(1))  # lowest set bit
                rows[w * 64 + popcount(bit - np.uint64(1)), byte] ^= mask
                differ ^= bit
                flips[c] += 1
    return flips.sum()
