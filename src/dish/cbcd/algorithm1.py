"""Fast C-BCD (Algorithm 1): learns the codes H one bit (column) at a time, in O(n) time and memory.

The H-step minimises, over H in {−1, +1} with balanced columns,

    Q(H) = ‖r P Rᵀ − H Hᵀ‖² + nν Σ l(h_ik, f_ik) .

For one column b, with H' the others, Q = r P Rᵀ − H' H'ᵀ and q_i = nν/2 (l(1, f_i) − l(−1, f_i)), this is

    g(b) = −2 bᵀQb + qᵀb ,   one step:  b ← +1 on the ⌊(n+1)/2⌋ largest  sim = 4 (Q − diag Q) b − q + λ c ,

with c = (b + 1)/2. The paper's longer formula for sim gives the same numbers (8 Q₀c − 4 Q₀1 = 4 Q₀b). Ties in sim go
to the lower row. A step that would raise g is taken back, so g never rises. With ``take_back=False`` every step
stands, as in the paper.

Only sums (Rᵀb, H'ᵀb, g) and the threshold of the top half cross rows; several processes exchange them through
``parallel.Ranks``.

The codes are stored in one of three classes with the same methods: ``DenseColumns`` (a ±1 matrix in NumPy: readable,
used for small data), ``PackedColumns`` (bits and numba kernels, CPU) and ``TorchColumns`` (±1 by column, GPU).
``columns_for`` chooses. If S comes from labels, a GPU runs a whole sweep as one kernel (``CudaSweep``).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np

from dish import parallel
from dish.cbcd.columns import Columns, DenseColumns, Sweep, check_objective
from dish.cbcd.cuda_sweep import CudaSweep, can_sweep
from dish.cbcd.packed import LabelProducts, PackedColumns
from dish.cbcd.torch_columns import TorchColumns
from dish.lazy import Tensor, torch
from dish.machine import one_blas_thread, torch_threads
from dish.parallel import ALONE, Ranks
from dish.progress import progress
from dish.similarity import Classes, LabelCounts, Similarity

MAX_STEPS = 20  # per bit

Products = Callable[[Tensor], tuple[Tensor, Any]]  # Eᵀb (g,) → r·Sb by group (g,), and bᵀSb


def sweep(
    H: Columns,
    S: Similarity,
    q: Tensor,
    *,
    lam: float = 0.0,
    max_steps: int = MAX_STEPS,
    take_back: bool = True,
    ranks: Ranks = ALONE,
) -> Sweep:
    """One pass over all bits, each until it converges. Changes H in place; q is (r, n).

    ``take_back=False``: steps that raise the objective stand, too; a bit that alternates ends after ``max_steps``.
    """
    result = Sweep(np.zeros(H.r), np.zeros(H.r), np.zeros((H.r, H.r)))
    S, q = S.to(H.device), q.to(H.device)
    with one_blas_thread() if H.device.type == "cpu" else nullcontext(), torch_threads(S.product_size() >> 20):
        # The kernel always takes back a step that raises the objective: without that, a GPU works bit by bit.
        if take_back and isinstance(H, TorchColumns) and ranks.world == 1 and can_sweep(H, S):
            CudaSweep.on(H, S)(H, q, lam, max_steps, result)
        else:
            _bit_by_bit(H, S, q, result, lam=lam, max_steps=max_steps, take_back=take_back, ranks=ranks)
        result.gram = ranks.total(H.gram()).cpu().numpy()
    flips = ranks.total(torch.tensor(result.flips))  # over all processes: they must agree on whether to continue
    result.flips = int(flips)
    return result


def _bit_by_bit(H: Columns, S: Similarity, q: Tensor, result: Sweep, *, ranks: Ranks, **how: Any) -> None:
    n = int(ranks.total(torch.tensor(H.n)))
    diag = H.r * S.diag - (H.r - 1)  # Q_ii
    products = _products(H, S)
    with progress("H-step", H.r, counts=1) as step:
        for k in range(H.r):
            update_column(H, k, S, q[k], result, n=n, diag=diag, products=products, ranks=ranks, **how)
            step(1)


def _products(H: Columns, S: Similarity) -> Products:
    """Products with S on one process; a compiled kernel if S comes from labels."""
    if isinstance(H, PackedColumns) and isinstance(S, Classes | LabelCounts):
        return LabelProducts(S, H.r)

    def products(sums: Tensor) -> tuple[Tensor, Any]:
        Sb = S.P(S.Rt(sums))
        return H.r * Sb, sums @ Sb

    return products


def update_column(
    H: Columns,
    k: int,
    S: Similarity,
    q: Tensor,
    result: Sweep,
    *,
    n: int,
    diag: Tensor,
    products: Products | None = None,
    lam: float = 0.0,
    max_steps: int = MAX_STEPS,
    take_back: bool = True,
    ranks: Ranks = ALONE,
) -> None:
    """Steps on bit k until it stops changing (the inner loop of Algorithm 1).

    ``n``: rows of all processes; ``diag``: Q_ii by group; ``products``: products with S, if they are set up already.
    """
    products = products or _products(H, S)
    count = (n + 1) // 2
    kept, g_kept, moved = H.column(k), np.inf, 0
    for step in range(max_steps + 1):
        sums, u = H.sums(k, S.row_group, S.n_groups)  # Eᵀb, Hᵀb
        if ranks.world == 1:
            rSb, bSb = products(sums)
        else:
            Rtb, u, moved_all = ranks.sum(S.Rt(sums), u, torch.tensor([moved], device=sums.device))
            if step and moved_all == 0:
                result.steps -= 1  # not a step after all: only here do processes learn that no row moved
                break
            Sb = S.P(Rtb)
            rSb, bSb = H.r * Sb, sums @ Sb
        u[k] = 0  # H'ᵀ b
        sim, qb = H.scores(k, u, rSb, diag, S.row_group, q, lam, n)
        parts: Any = (bSb, qb, sums.sum(), u @ u)
        if ranks.world > 1:
            sent, samples = ranks.sum(torch.stack(parts[:3]), parallel.sample(sim, ranks))
            parts = torch.cat([sent, parts[3][None]]).tolist()
        bSb, linear, b1, uu = map(float, parts)
        g = -2 * (H.r * bSb - uu) + linear  # bᵀQb = r bᵀSb − ‖H'ᵀb‖²
        check_objective(k, g)  # a sum over all processes, so that all of them stop here
        if take_back and g > g_kept:  # worse than the previous column
            H.set_column(k, kept)
            break
        result.hSh[k], result.qh[k] = bSb, linear
        result.flips += moved
        if b1 == n % 2:  # an unbalanced column is not a solution that we could return to
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
    """Q(H) after a sweep: r²‖S‖² − 2r tr(HᵀSH) + ‖HᵀH‖² + Σ q_kᵀh_k + the constant of the loss."""
    fit = r * r * squared_norm - 2 * r * result.hSh.sum() + float((result.gram**2).sum())
    return float(fit + result.qh.sum() + loss_constant)


def columns_for(packed: Tensor, n_bits: int) -> Columns:
    """Packed codes in the class that suits their device and number."""
    bits = len(packed) * n_bits
    if packed.device.type != "cpu" and (bits > DenseColumns.MOST_BITS or parallel.current().world > 1):
        return TorchColumns(packed, n_bits)
    return (DenseColumns if bits <= DenseColumns.MOST_BITS else PackedColumns)(packed.cpu().numpy(), n_bits)
