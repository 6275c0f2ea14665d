"""The inner loop of a bit over packed codes for S = w YYᵀ − 1 of labels, by as few passes over the rows as it takes.

``cbcd.update_column`` is the same loop for any S. Here sums by group and by label follow the rows that a step moved,
and the products with Y are one kernel: with thousands of label sets they would take longer than all else.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dish.codes import popcount
from dish.compiled import njit
from dish.lazy import Tensor, torch
from dish.similarity import Classes, LabelCounts, Similarity, n_labels
from dish.solver.columns import Columns, Sweep
from dish.solver.packed import PackedColumns, _differing


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
            _differing(H.cols, k, self.differ)
            u = n - 2.0 * self.differ
            u[k] = 0  # H'ᵀ b
            bSb = _similar(self.counts, self.counted, *self.sets, self.z, self.S.w, H.r, self.value)
            qb = H.score(k, u, self.value, self.diag, row_group, linear, self.lam)
            g = -2 * (H.r * bSb - float(u @ u)) + qb  # bᵀQb = r bᵀSb − ‖H'ᵀb‖²
            if not np.isfinite(g):
                raise ValueError(
                    f"bit {k}: the objective is {g}; the linear terms or the similarity hold NaN or infinity"
                )
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


def by_size(S: Classes | LabelCounts) -> tuple[NDArray[np.int32], ...]:
    """Groups in order of how many labels they have, where their labels start in that order, and all of these.

    Loops over labels then end where a processor expects them to.
    """
    sets = sp.eye_array(S.n_groups, format="csr") if isinstance(S, Classes) else S.sets
    order = np.argsort(np.diff(sets.indptr), kind="stable")
    sets = sets[order]
    return order.astype(np.int32), sets.indptr.astype(np.int32), sets.indices.astype(np.int32)


@njit(nogil=True, cache=True)
def _similar(counts: Any, counted: Any, order: Any, first: Any, of: Any, z: Any, w: float, r: int, value: Any) -> Any:
    """Group by group r·Sb in ``value``, and bᵀSb, from counts = Eᵀb: Sb = w Y z − 1ᵀb with z = Yᵀb.

    z is that of ``counted``, and taken on from there.
    """
    total, bSb = 0.0, 0.0
    for i in range(len(order)):
        g = np.uint64(order[i])  # (of a number with a sign numba would have to ask whether it is below 0)
        total += counts[g]
        more = counts[g] - counted[g]
        if more != 0:
            counted[g] = counts[g]
            for t in range(first[i], first[i + 1]):
                z[np.uint64(of[t])] += more
    for i in range(len(order)):
        shared = 0.0
        for t in range(first[i], first[i + 1]):
            shared += z[np.uint64(of[t])]
        g = np.uint64(order[i])
        Sb = w * shared - total
        bSb += counts[g] * Sb
        value[g] = r * Sb
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
