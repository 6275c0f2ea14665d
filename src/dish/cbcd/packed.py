"""Codes as bits on the CPU: numba kernels, selection of the largest scores, products with label similarities."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dish import codes, threads
from dish.cbcd.columns import CHUNK
from dish.codes import byte_table, popcount
from dish.lazy import Tensor, torch
from dish.numba_lazy import njit
from dish.similarity import Classes, LabelCounts, n_labels

SAMPLE = 2048  # values from which a selection estimates its bounds


class PackedColumns:
    """Codes as bits, once by row (for H'u) and once by column (for HᵀH): r/4 bytes per row in total.

    Sums by group follow the rows that a step moved, so that only the first step on a bit reads all rows for them.
    """

    def __init__(self, packed: NDArray[np.uint8], n_bits: int) -> None:
        self.n, self.r = len(packed), n_bits
        self.width = packed.shape[1]
        self.rows = codes.as_words(packed)  # (n, ceil(r/64)) uint64, the first byte lowest
        self.cols = _transpose_bits(packed, n_bits)  # (r, ceil(n/64)) uint64, row i is bit i%64
        self.chunks = -(-self.n // CHUNK)
        self.sim, self._scratch = np.empty(self.n), np.empty(self.n)
        self._row_group: Tensor | None = None  # ``sums`` remembers the last bit, its column and Eᵀb
        self._counted_bit = -1
        self._counted, self._counts = np.zeros(0, np.uint64), np.zeros(0)
        self.threads = threads.size(self.chunks // 8)  # with fewer chunks, a thread costs more than it saves

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    def sums(self, k: int, row_group: Tensor, n_groups: int) -> tuple[Tensor, Tensor]:
        """Eᵀb (g,), and Hᵀb (r,) as n − 2·(bits that differ)."""
        if self._counted_bit != k or self._row_group is not row_group:
            return self._count(k, row_group, n_groups)
        _recount(self._counted, self.cols[k], row_group.numpy(), self._counts)  # a few rows have changed since
        self._counted[:] = self.cols[k]
        differ = np.zeros(self.r, np.int64)
        differing(self.cols, k, differ)
        return torch.from_numpy(self._counts), torch.from_numpy(self.n - 2.0 * differ)

    def _count(self, k: int, row_group: Tensor, n_groups: int) -> tuple[Tensor, Tensor]:
        """The same from all rows."""
        groups, lanes = row_group.numpy(), min(self.threads, max(1, 4 * self.n // n_groups))
        counts = np.zeros((lanes, n_groups), np.int32)  # rows with +1 minus rows with −1
        differ = np.zeros((lanes, self.r), np.int64)
        ends = self._ends(lanes)
        threads.run(lambda t: _sums(ends[t], ends[t + 1], self.cols, k, groups, counts[t], differ[t]), lanes)
        self._counted_bit, self._row_group = k, row_group
        self._counted, self._counts = self.cols[k].copy(), counts.sum(0).astype(np.float64)
        return torch.from_numpy(self._counts.copy()), torch.from_numpy(self.n - 2.0 * differ.sum(0))

    def gram(self) -> Tensor:
        """HᵀH (r, r)."""
        out = np.empty((self.r, self.r))
        threads.run(lambda t: _gram(t, self.threads, self.cols, self.n, out), self.threads)
        return torch.from_numpy(out)

    def scores(
        self, k: int, u: Tensor, value: Tensor, diag: Tensor, row_group: Tensor, q: Tensor, lam: float, n_all: int
    ) -> tuple[Tensor, Tensor]:
        """sim = 4 (Qb − diag(Q) b) − q + λc, and qᵀb."""
        qb = self.score(k, u.numpy(), value.numpy(), diag.numpy(), row_group.numpy(), q.numpy(), lam)
        return torch.from_numpy(self.sim), torch.tensor(qb, dtype=torch.float64)

    def score(
        self,
        k: int,
        u: NDArray[Any],
        value: NDArray[Any],
        diag: NDArray[Any],
        row_group: NDArray[Any],
        q: NDArray[Any],
        lam: float,
    ) -> float:
        """The same with NumPy arrays: returns qᵀb and writes the scores to ``self.sim``."""
        arrays = row_group, value, diag, byte_table(u, self.rows.shape[1]), q
        linear, ends = np.empty(self.chunks), self._ends(self.threads)
        threads.run(
            lambda t: _scores(ends[t], ends[t + 1], self.rows, self.cols[k], *arrays, lam, self.sim, linear),
            self.threads,
        )
        return sum(linear.tolist())

    def column(self, k: int) -> NDArray[np.uint64]:
        """Column k as words of 64 rows."""
        return self.cols[k].copy()

    def set_column(self, k: int, column: NDArray[np.uint64]) -> None:
        """Write column k."""
        _set_column(self.rows.view(np.uint8), self.cols[k], column, k)

    def kth_largest(self, sim: Tensor, count: int) -> tuple[float, int]:
        """The count-th largest sim, and its ties among the largest.

        A sorted sample gives two bounds. One pass counts the values above them and collects those in between, a few
        per cent, for an ordinary selection. If the bounds miss the value, the selection runs on all values.
        """
        values, k, n = sim.numpy(), count, self.n
        if n > 8 * SAMPLE:
            sample = np.sort(values[:: n // SAMPLE])
            place = (n - count) / n * len(sample)
            margin = 1.5 * len(sample) ** 0.5  # three standard deviations of the sample's quantile
            low = sample[max(0, int(place - margin))]
            high = sample[min(len(sample) - 1, int(place + margin))]
            above, inside = self._between(values, low, high)
            if above < count <= above + len(inside):
                values, k = inside, count - above
        threshold = float(np.partition(values, len(values) - k)[len(values) - k])
        return threshold, k - int(np.count_nonzero(values > threshold))

    def between(self, sim: Tensor, low: float, high: float) -> tuple[int, Tensor]:
        """How many values exceed ``high``, and the values in [low, high]."""
        above, inside = self._between(sim.numpy(), low, high)
        return above, torch.from_numpy(inside)

    def _between(self, values: NDArray[np.float64], low: float, high: float) -> tuple[int, NDArray[np.float64]]:
        above, found = np.empty(self.chunks, np.int64), np.empty(self.chunks, np.int64)
        out, ends = self._scratch, self._ends(self.threads)
        threads.run(lambda t: _between(ends[t], ends[t + 1], values, low, high, out, above, found), self.threads)
        return int(above.sum()), out[: _close_gaps(out, found)]

    def set_largest(self, k: int, sim: Tensor, threshold: float, ties: int) -> int:
        """+1 where sim > threshold, and on the first ``ties`` rows where it is equal."""
        values, rows, column = sim.numpy(), self.rows.view(np.uint8), self.cols[k]
        before, ends = column.copy(), self._ends(self.threads)
        moved, equal = np.empty(self.chunks, np.int64), np.empty(self.chunks, np.int64)
        threads.run(
            lambda t: _set_above(ends[t], ends[t + 1], rows, column, values, threshold, k, moved, equal), self.threads
        )
        return int(moved.sum()) + _add_ties(rows, column, before, values, threshold, ties, k, equal)

    def signs(self, rows: slice, like: Tensor) -> Tensor:
        """Some rows as ±1."""
        bits = np.unpackbits(self.rows[rows].view(np.uint8), axis=1, count=self.r)
        return torch.from_numpy(bits).to(like).mul_(2).sub_(1)

    def packed(self) -> NDArray[np.uint8]:
        """All codes, packed by row."""
        return self.rows.view(np.uint8)[:, : self.width].copy()

    def _ends(self, parts: int) -> list[int]:
        """Start and end of each part, at multiples of a chunk."""
        return [min(self.n, self.chunks * t // parts * CHUNK) for t in range(parts + 1)]


# --- numba kernels over rows start … stop − 1; results per chunk do not depend on the number of threads -----------


@njit(cache=True)
def _transpose_bits(rows: Any, r: int) -> Any:
    n = len(rows)
    cols = np.zeros((r, (n + 63) // 64), np.uint64)
    for i in range(n):
        for k in range(r):
            if rows[i, k >> 3] & (128 >> (k & 7)):
                cols[k, i >> 6] |= np.uint64(1) << np.uint64(i & 63)
    return cols


@njit(nogil=True, cache=True)
def _sums(start: int, stop: int, cols: Any, k: int, row_group: Any, counts: Any, differ: Any) -> None:
    """Add Eᵀb to ``counts``, and count for each column the bits that differ from column k."""
    words = cols[:, start >> 6 : (stop + 63) >> 6]
    column, groups = words[k], row_group[start:stop]
    for i in range(len(groups)):
        bit = (column[i >> 6] >> np.uint64(i & 63)) & np.uint64(1)
        counts[np.uint64(groups[i])] += np.int32(bit << np.uint64(1)) - np.int32(1)
    differing(words, k, differ)


@njit(nogil=True, cache=True)
def differing(cols: Any, k: int, differ: Any) -> None:
    """For each column, the number of bits that differ from column k."""
    column = cols[k]
    for j in range(len(cols)):
        total = np.uint64(0)
        for w in range(len(column)):
            total += popcount(cols[j, w] ^ column[w])
        differ[j] = total


@njit(nogil=True, cache=True)
def _gram(part: int, parts: int, cols: Any, n: int, out: Any) -> None:
    """Every ``parts``-th row of HᵀH."""
    r, words = cols.shape
    for k in range(part, r, parts):
        for j in range(r):
            differ = np.uint64(0)
            for w in range(words):
                differ += popcount(cols[j, w] ^ cols[k, w])
            out[k, j] = n - 2.0 * differ


@njit(nogil=True, cache=True)
def _scores(
    start: int,
    stop: int,
    rows: Any,
    column: Any,
    row_group: Any,
    value: Any,
    diag: Any,
    table: Any,
    q: Any,
    lam: float,
    sim: Any,
    linear: Any,
) -> None:
    """sim_i = 4 (value[g_i] − H_i u − diag[g_i] b_i) − q_i + λ c_i; also b·q per chunk."""
    for c in range(start // CHUNK, (stop + CHUNK - 1) // CHUNK):
        part = slice(c * CHUNK, min(stop, (c + 1) * CHUNK))
        bits = column[part.start >> 6 : (part.stop + 63) >> 6]
        linear[c] = _scores_of(rows[part], bits, row_group[part], value, diag, table, q[part], lam, sim[part])


@njit(nogil=True, cache=True)
def _scores_of(
    rows: Any, column: Any, row_group: Any, value: Any, diag: Any, table: Any, q: Any, lam: float, sim: Any
) -> Any:
    """One word of the column at a time, in loops that vectorise; b·q is summed per position in a word first."""
    b, bq = np.empty(64), np.zeros(64)
    _products(rows, table, sim)
    for w in range(len(column)):
        word, some = column[w], slice(64 * w, min(len(sim), 64 * w + 64))
        group, linear, out = row_group[some], q[some], sim[some]
        for i in range(64):
            b[i] = 2.0 * float((word >> np.uint64(i)) & np.uint64(1)) - 1.0
        for i in range(len(out)):
            g = np.uint64(group[i])
            out[i] = value[g] - out[i] - diag[g] * b[i]
        for i in range(len(out)):
            bq[i] += b[i] * linear[i]
            out[i] = 4.0 * out[i] - linear[i] + lam * (0.5 * b[i] + 0.5)
    total = 0.0
    for part in bq:
        total += part
    return total


@njit(nogil=True, cache=True)
def _products(rows: Any, table: Any, out: Any) -> None:
    """H_i u, by table look-up."""
    byte = np.uint64(255)
    out[:] = 0.0
    for w in range(rows.shape[1]):
        t = table[8 * w : 8 * w + 8]
        for i in range(len(out)):
            x = rows[i, w]  # eight bytes, the first one lowest
            out[i] += (
                (t[0, x & byte] + t[1, (x >> np.uint64(8)) & byte])
                + (t[2, (x >> np.uint64(16)) & byte] + t[3, (x >> np.uint64(24)) & byte])
            ) + (
                (t[4, (x >> np.uint64(32)) & byte] + t[5, (x >> np.uint64(40)) & byte])
                + (t[6, (x >> np.uint64(48)) & byte] + t[7, x >> np.uint64(56)])
            )


@njit(nogil=True, cache=True)
def _between(start: int, stop: int, values: Any, low: float, high: float, out: Any, above: Any, found: Any) -> None:
    """Per chunk: how many values exceed ``high``; values in [low, high] move to the front of its part of ``out``."""
    for c in range(start // CHUNK, (stop + CHUNK - 1) // CHUNK):
        part = slice(c * CHUNK, min(stop, (c + 1) * CHUNK))
        some, kept = values[part], out[part]
        place = larger = 0
        for i in range(len(some)):
            v = some[i]
            larger += v > high
            kept[place] = v  # written always, kept if in range: no branch to mispredict
            place += (v >= low) & (v <= high)
        above[c], found[c] = larger, place


@njit(cache=True)
def _close_gaps(out: Any, found: Any) -> Any:
    """Move the values of all chunks to the front. Serial, because source and target may overlap."""
    total = 0
    for c in range(len(found)):
        for i in range(found[c]):
            out[total + i] = out[c * CHUNK + i]
        total += found[c]
    return total


@njit(nogil=True, cache=True)
def _set_above(
    start: int, stop: int, rows: Any, column: Any, values: Any, threshold: float, k: int, moved: Any, equal: Any
) -> None:
    """Set column k to (value > threshold), by row and by column; per chunk, count changed rows and ties."""
    byte, mask = k >> 3, np.uint8(128 >> (k & 7))
    for c in range(start // CHUNK, (stop + CHUNK - 1) // CHUNK):
        flips = ties = 0
        for w in range(c * CHUNK >> 6, (min(stop, (c + 1) * CHUNK) + 63) >> 6):
            word = np.uint64(0)
            some = values[w * 64 : min(stop, w * 64 + 64)]
            for i in range(len(some)):
                word |= np.uint64(some[i] > threshold) << np.uint64(i)
                ties += some[i] == threshold
            flips += _write_word(rows, column, w, word, byte, mask)
        moved[c], equal[c] = flips, ties


@njit(nogil=True, cache=True)
def _write_word(rows: Any, column: Any, w: int, word: Any, byte: int, mask: Any) -> Any:
    """Write a word of a column and the same bits by row; returns the number of changed bits."""
    differ, flips = column[w] ^ word, 0
    column[w] = word
    while differ:
        bit = differ & (~differ + np.uint64(1))  # lowest set bit
        rows[w * 64 + popcount(bit - np.uint64(1)), byte] ^= mask
        differ ^= bit
        flips += 1
    return flips


@njit(cache=True)
def _add_ties(
    rows: Any, column: Any, before: Any, values: Any, threshold: float, n_ties: int, k: int, equal: Any
) -> Any:
    """Set the first n_ties rows with value == threshold; returns how many more rows changed."""
    byte, mask = k >> 3, np.uint8(128 >> (k & 7))
    more = 0
    for c in range(len(equal)):
        i = c * CHUNK
        while n_ties > 0 and equal[c] > 0:
            if values[i] == threshold:
                bit = np.uint64(1) << np.uint64(i & 63)
                column[i >> 6] |= bit
                rows[i, byte] ^= mask
                more += -1 if before[i >> 6] & bit else 1
                n_ties -= 1
                equal[c] -= 1
            i += 1
    return more


@njit(cache=True)
def _set_column(rows: Any, column: Any, new: Any, k: int) -> None:
    byte, mask = k >> 3, np.uint8(128 >> (k & 7))
    for w in range(len(column)):
        _write_word(rows, column, w, new[w], byte, mask)


# --- Products with the similarity of labels ------------------------------------------------------------------------


class LabelProducts:
    """Eᵀb → r·Sb by group and bᵀSb for S = w YYᵀ − 1.

    One kernel does it: with thousands of label sets, sparse products would take longer than everything else.
    """

    def __init__(self, S: Classes | LabelCounts, r: int) -> None:
        self.w, self.r, self.sets = S.w, r, by_size(S)
        self.counted, self.z = np.zeros(S.n_groups), np.zeros(n_labels(S))  # Eᵀb of the last call, and Yᵀb
        self.value = np.zeros(S.n_groups)

    def __call__(self, sums: Tensor) -> tuple[Tensor, float]:
        """The products for a column with these sums by group."""
        bSb = _similar(sums.numpy(), self.counted, *self.sets, self.z, self.w, self.r, self.value)
        return torch.from_numpy(self.value), bSb


def by_size(S: Classes | LabelCounts) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Groups sorted by their number of labels; how many groups have 0, 1, … labels; and the labels.

    For each number of labels, the first labels of all its groups come first, then their second labels, and so on.
    """
    sets = sp.eye_array(S.n_groups, format="csr") if isinstance(S, Classes) else S.sets
    sizes = np.diff(sets.indptr)
    order, runs = np.argsort(sizes, kind="stable"), np.bincount(sizes)
    parts = np.split(sets[order].indices, np.cumsum(runs * np.arange(len(runs)))[:-1])
    labels = [part.reshape(-1, max(1, size)).T.ravel() for size, part in enumerate(parts)]
    return order.astype(np.int32), runs.astype(np.int32), np.concatenate(labels).astype(np.int32)


@njit(nogil=True, cache=True)
def _similar(
    counts: Any, counted: Any, order: Any, runs: Any, labels: Any, z: Any, w: float, r: int, value: Any
) -> Any:
    """Write r·Sb by group to ``value`` and return bᵀSb, with counts = Eᵀb and Sb = w Y z − 1ᵀb, z = Yᵀb.

    z belongs to ``counted`` and is updated from there. Inner loops run over groups with equally many labels.
    """
    total, place, start = 0.0, 0, 0
    for size in range(len(runs)):
        n = runs[size]
        for i in range(n):
            g = np.uint64(order[place + i])  # unsigned: numba need not check for negative indices
            total += counts[g]
            more = counts[g] - counted[g]
            if more != 0:
                counted[g] = counts[g]
                for j in range(size):
                    z[np.uint64(labels[start + j * n + i])] += more
        place, start = place + n, start + size * n
    bSb, place, start = 0.0, 0, 0
    shared = np.zeros(len(counts))
    for size in range(len(runs)):
        n = runs[size]
        groups, Yz = order[place : place + n], shared[place : place + n]
        for j in range(size):
            of = labels[start + j * n : start + (j + 1) * n]
            for i in range(n):
                Yz[i] += z[np.uint64(of[i])]
        for i in range(n):
            g = np.uint64(groups[i])
            Sb = w * Yz[i] - total
            bSb += counts[g] * Sb
            value[g] = r * Sb
        place, start = place + n, start + size * n
    return bSb


@njit(nogil=True, cache=True)
def _recount(before: Any, column: Any, row_group: Any, counts: Any) -> None:
    """Update Eᵀb (counts) from the column ``before`` to ``column``."""
    for w in range(len(column)):
        differ = column[w] ^ before[w]
        while differ:
            bit = differ & (~differ + np.uint64(1))  # lowest set bit
            counts[row_group[64 * w + popcount(bit - np.uint64(1))]] += 2 if column[w] & bit else -2
            differ ^= bit
