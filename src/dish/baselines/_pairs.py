"""What several supervised rivals share: S by columns or by sampled pairs, never whole, and the step to new rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dish.encoder import Linear, row_blocks
from dish.errors import InputError
from dish.kernel.fit_data import FitData
from dish.lazy import Tensor, torch
from dish.similarity import Classes, LabelCounts, Similarity

POOL = 2048  # rows drawn as possible partners of a block of rows


def regress(problem: FitData, target: Tensor) -> Linear:
    """The out-of-sample step: F = K W with W = (KᵀK + ρI)⁻¹ Kᵀ target, target (n, r)."""
    K, white = problem.K, problem.white
    assert isinstance(K, Tensor)
    with problem.stage("out of sample"):
        KtB = sum(K[rows].double().T @ target[rows].double() for rows in row_blocks(len(K), 4096))
        return Linear.of(white.solve(torch.as_tensor(KtB)).float())


def labelled(S: Similarity) -> Classes | LabelCounts:
    """S, if it is made of labels Y (n, l): these methods need Y itself."""
    if not isinstance(S, Classes | LabelCounts):
        raise InputError(f"y must be (n,) classes or (n, l) labels of 0 and 1, not a {type(S).__name__}")
    return S


def similar_columns(S: Similarity, columns: Tensor) -> Tensor:
    """S_ij > 0 for j in ``columns``, by group: row i of the table (g, c) holds for all rows of group i."""
    return S.between_groups(S.row_group[columns]) > 0


def sample_pairs(
    S: Similarity, per_row: int, random_state: np.random.RandomState
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Pairs (i, j, similar): for every row up to ``per_row`` similar and as many dissimilar partners.

    The partners of a block of rows come from a random pool of rows, each kind without repeats.
    """
    i_all, j_all, similar_all = [], [], []
    for rows in row_blocks(S.n):
        pool = random_state.choice(S.n, min(S.n, max(POOL, 4 * per_row)), replace=False)
        table = similar_columns(S, torch.from_numpy(pool).to(S.row_group.device))
        similar = table[S.row_group[rows].long()].cpu().numpy()  # (block, pool)
        key = random_state.random_sample(similar.shape)
        key[np.arange(rows.start, rows.stop)[:, None] == pool] = np.inf  # no row is its own partner
        for kind in (True, False):
            ranked = np.where(similar == kind, key, np.inf)
            first = np.argpartition(ranked, min(per_row, len(pool) - 1), axis=1)[:, :per_row]
            found = np.isfinite(np.take_along_axis(ranked, first, 1))
            i, place = np.nonzero(found)
            i_all.append(i + rows.start)
            j_all.append(pool[first[i, place]])
            similar_all.append(np.full(len(i), kind))
    similar = np.concatenate(similar_all)
    if similar.all() or not similar.any():
        raise InputError(
            f"y makes every pair of rows {'similar' if similar.any() else 'dissimilar'}; both kinds are needed"
        )
    return np.concatenate(i_all), np.concatenate(j_all).astype(np.int64), similar
