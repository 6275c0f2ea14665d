"""Codes on the CPU, as bits: numba kernels and the selection of the largest scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit, prange
from numpy.typing import NDArray
from torch import Tensor

from dish import codes
from dish.codes import byte_table, popcount


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

CHUNK = 8192


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
    chunks = (n + CHUNK - 1) // CHUNK
    qb = np.zeros(chunks)
    byte = np.uint64(255)
    for c in prange(chunks):
        linear = 0.0
        for i in range(c * CHUNK, min(n, (c + 1) * CHUNK)):
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
    lanes = 1 if n_groups > 4096 else (n + CHUNK - 1) // CHUNK  # a counter for each chunk, or one for all
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
    chunks = (n + CHUNK - 1) // CHUNK
    above, found = np.zeros(chunks, np.int64), np.zeros(chunks, np.int64)
    for c in prange(chunks):
        start = place = c * CHUNK
        larger = 0
        for i in range(start, min(n, start + CHUNK)):
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
            out[total + i] = out[c * CHUNK + i]
        total += found[c]
    return total


@njit(parallel=True, cache=True)
def _words_above(values: Any, threshold: float, n_ties: int) -> Any:
    """Bits: value > threshold, and the first n_ties rows with value == threshold."""
    n = len(values)
    words_per_chunk = CHUNK // 64
    chunks = (n + CHUNK - 1) // CHUNK
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
        i = c * CHUNK
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
    words_per_chunk = CHUNK // 64
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
