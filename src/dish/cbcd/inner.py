"""The inner loop of a bit over packed codes for S = w YYᵀ − 1 of labels, by as few passes over the rows as it takes.

``cbcd.update_column`` is the same loop for any S. Here sums by group and by label follow the rows that a step moved,
and the products with Y are one kernel: with thousands of label sets they would take longer than all else.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dish.cbcd.columns import Columns, Sweep, check_objective
from dish.cbcd.packed import PackedColumns, differing
from dish.codes import popcount
from dish.lazy import Tensor, torch
from dish.numba_lazy import njit
from dish.similarity import Classes, LabelCounts, Similarity, n_labels


class InnerLoop:
    """Bits of H, one after the other."""

    @classmethod
    def of(cls, H: Columns, S: Similarity, lam: float, max_steps: int) -> Self | None:
        """The loop for these columns, or None if it is not for them."""
        if isinstance(H, PackedColumns) and isinstance(S, Classes | LabelCounts):
            return cls(H, S, lam, max_steps)
        return None

    def __init__(self, H: PackedColumns, S: Classes | LabelCounts, lam: float, max_steps: int) -> None:
        self.H, self.S, self.lam, self.max_steps = H, S, lam, max_steps
        self.diag = (H.r * S.diag - (H.r - 1)).numpy()  # Q_ii
        self.sets = by_size(S)
        self.counts, self.counted = np.zeros((2, S.n_groups), np.int32)  # Eᵀb, now and when z was made of it
        self.z, self.value = np.zeros(n_labels(S)), np.zeros(S.n_groups)  # Yᵀb, and r·Sb by group
        self.differ = np.zeros(H.r, np.int64)

    def update_column(self, k: int, q: Tensor, result: Sweep) -> None:
        """Steps on bit k until it stops changing."""
        H, n, column, row_group, linear = self.H, self.H.n, self.H.cols[k], self.S.row_group.numpy(), q.numpy()
        kept, g_kept, moved, sim = H.column(k), np.inf, 0, torch.from_numpy(H.sim)
        self.counts[:] = H.sums(k, self.S.row_group, self.S.n_groups)[0].numpy()
        for step in range(self.max_steps + 1):
            differing(H.cols, k, self.differ)
            u = n - 2.0 * self.differ
            u[k] = 0  # H'ᵀ b
            bSb = _similar(self.counts, self.counted, *self.sets, self.z, self.S.w, H.r, self.value)
            qb = H.score(k, u, self.value, self.diag, row_group, linear, self.lam)
            g = -2 * (H.r * bSb - float(u @ u)) + qb  # bᵀQb = r bᵀSb − ‖H'ᵀb‖²
            check_objective(k, g)
            if g > g_kept:  # worse than the column we had: take the step back
                H.set_column(k, kept)
                break
            result.hSh[k], result.qh[k] = bSb, qb
            result.flips += moved
            before = column.copy()
            if self.counts.sum() == n % 2:  # a column that is not balanced is no solution to fall back to
                kept, g_kept = before, g
            if step == self.max_steps:
                break
            moved = H.set_largest(k, sim, *H.kth_largest(sim, (n + 1) // 2))
            if moved == 0:
                break
            _recount(before, column, row_group, self.counts)
            result.steps += 1


def by_size(S: Classes | LabelCounts) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Groups in order of how many labels they have, how many have 0, 1, …, and their labels.

    These come number by number: the first labels of all groups that have as many, then the second ones, and so on.
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
    """Group by group r·Sb in ``value``, and bᵀSb, from counts = Eᵀb: Sb = w Y z − 1ᵀb with z = Yᵀb.

    z is that of ``counted``, and taken on from there. Loops run over many groups with as many labels each.
    """
    total, place, start = 0.0, 0, 0
    for size in range(len(runs)):
        n = runs[size]
        for i in range(n):
            g = np.uint64(order[place + i])  # (of a number with a sign numba would have to ask whether it is below 0)
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
    """Eᵀb of a column, given that of the column before."""
    for w in range(len(column)):
        differ = column[w] ^ before[w]
        while differ:
            bit = differ & (~differ + np.uint64(1))  # lowest set bit
            counts[row_group[64 * w + popcount(bit - np.uint64(1))]] += 2 if column[w] & bit else -2
            differ ^= bit
