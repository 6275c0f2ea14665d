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
``DeviceColumns`` (±1 by column, torch, GPU) and ``DenseColumns`` (a ±1 matrix, NumPy: the readable twin, and that of
few rows). ``columns_for`` takes the one for a device and a size. On a GPU a sweep is one kernel (``FusedSweep``), or,
where it does not know the similarity, a step one CUDA graph (``DeviceSteps``).
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np

from dish import parallel
from dish.cbcd.columns import Columns, DenseColumns, Sweep, check_objective
from dish.cbcd.cuda_sweep import FusedSweep, can_fuse
from dish.cbcd.inner import InnerLoop
from dish.cbcd.packed import PackedColumns
from dish.cbcd.steps import DeviceSteps
from dish.cbcd.torch_columns import DeviceColumns, pack_signs
from dish.lazy import Tensor, torch
from dish.machine import one_blas_thread, torch_threads
from dish.parallel import ALONE, Ranks
from dish.progress import LONG, progress
from dish.similarity import Similarity

__all__ = [
    "Columns",
    "DenseColumns",
    "DeviceColumns",
    "PackedColumns",
    "Sweep",
    "columns_for",
    "objective",
    "pack_signs",
    "sweep",
    "update_column",
]

MAX_STEPS = 20  # per bit


def sweep(
    H: Columns, S: Similarity, q: Tensor, *, lam: float = 0.0, max_steps: int = MAX_STEPS, ranks: Ranks = ALONE
) -> Sweep:
    """One pass over the bits, each taken to convergence. Changes H in place; q is (r, n)."""
    result = Sweep(np.zeros(H.r), np.zeros(H.r), np.zeros((H.r, H.r)))
    S, q = S.to(H.device), q.to(H.device)
    with one_blas_thread() if H.device.type == "cpu" else nullcontext(), torch_threads(S.product_size() >> 20):
        if isinstance(H, DeviceColumns) and ranks.world == 1 and can_fuse(H, S):
            FusedSweep.on(H, S)(H, q, lam, max_steps, result)
        else:
            _bit_by_bit(H, S, q, result, lam, max_steps, ranks)
        result.gram = ranks.total(H.gram()).cpu().numpy()
    flips = ranks.total(torch.tensor(result.flips))  # of all processes: they must agree on whether to continue
    result.flips = int(flips)
    return result


def _bit_by_bit(
    H: Columns, S: Similarity, q: Tensor, result: Sweep, lam: float, max_steps: int, ranks: Ranks
) -> None:
    n = int(ranks.total(torch.tensor(H.n)))
    diag = H.r * S.diag - (H.r - 1)  # Q_ii
    inner = InnerLoop.of(H, S, lam, max_steps) if ranks.world == 1 else None
    with progress("H-step", H.r, worth=n >= LONG) as step:
        for k in range(H.r):
            if inner:
                inner.update_column(k, q[k], result)
            elif isinstance(H, DeviceColumns) and ranks.world == 1:
                DeviceSteps.on(H, S, q, lam).update_column(H, k, q[k], result, max_steps)
            else:
                update_column(H, k, S, q[k], result, n=n, diag=diag, lam=lam, max_steps=max_steps, ranks=ranks)
            step(1)


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
    max_steps: int = MAX_STEPS,
    ranks: Ranks = ALONE,
) -> None:
    """Steps on bit k until it stops changing (the inner loop of Algorithm 1).

    ``n``: rows of all processes; ``diag``: Q_ii by group.
    """
    count = (n + 1) // 2
    kept, g_kept, moved = H.column(k), np.inf, 0
    for step in range(max_steps + 1):
        sums, against = H.sums(k, S.row_group, S.n_groups)  # Eᵀb, Hᵀb
        Rtb, u = S.Rt(sums), against
        if ranks.world > 1:
            Rtb, u, moved_all = ranks.sum(Rtb, u, torch.tensor([moved], device=sums.device))
            if step and moved_all == 0:
                result.steps -= 1  # not a step after all: ranks learn only here that no row moved
                break
        SB = S.P(Rtb)  # S b by group
        u[k] = 0  # H'ᵀ b
        sim, qb = H.scores(k, u, H.r * SB, diag, S.row_group, q, lam, n)
        parts: Any = (sums @ SB, qb, sums.sum(), u @ u)
        if ranks.world > 1:
            sent, samples = ranks.sum(torch.stack(parts[:3]), parallel.sample(sim, ranks))
            parts = torch.cat([sent, parts[3][None]]).tolist()
        bSb, linear, b1, uu = map(float, parts)
        g = -2 * (H.r * bSb - uu) + linear  # bᵀQb = r bᵀSb − ‖H'ᵀb‖²
        check_objective(k, g)  # summed over all processes, so that all of them stop here
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
        moved = H.set_largest(k, sim, threshold, ties)
        if ranks.world == 1 and moved == 0:
            break
        result.steps += 1


def objective(result: Sweep, squared_norm: float, r: int, loss_constant: float = 0.0) -> float:
    """Q(H) after a sweep: r²‖S‖² − 2r tr(HᵀSH) + ‖HᵀH‖² + Σ q_kᵀh_k + constant of the loss."""
    fit = r * r * squared_norm - 2 * r * result.hSh.sum() + float((result.gram**2).sum())
    return float(fit + result.qh.sum() + loss_constant)


def columns_for(packed: Tensor, n_bits: int) -> Columns:
    """Packed codes in the form that suits their device and their number."""
    bits = len(packed) * n_bits
    if packed.device.type != "cpu" and (bits > DenseColumns.FEW or parallel.current().world > 1):
        return DeviceColumns(packed, n_bits)
    return (DenseColumns if bits <= DenseColumns.FEW else PackedColumns)(packed.cpu().numpy(), n_bits)
