"""Shared by several supervised rivals: columns of S, sampled pairs of rows, and the out-of-sample regression."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dish.encoder import Linear, row_blocks
from dish.errors import InputError
from dish.kernel.fit_data import FitData
from dish.lazy import Tensor, torch
from dish.similarity import Classes, LabelCounts, Similarity

POOL = 2048  # candidate partners of a block of rows


def regress(data: FitData, target: Tensor) -> Linear:
    """The hash function F = K W with W = (KᵀK + ρI)⁻¹ Kᵀ target, target (n, r)."""
    K, white = data.K, data.white
    assert isinstance(K, Tensor)
    with data.stage("out of sample"):
        KtB = sum(K[rows].double().T @ target[rows].double() for rows in row_blocks(len(K), 4096))
        return Linear.of(white.solve(torch.as_tensor(KtB)).float())


def labelled(S: Similarity) -> Classes | LabelCounts:
    """S if it was made from labels Y (n, l). Raises an error otherwise: these methods need Y."""
    if not isinstance(S, Classes | LabelCounts):
        raise InputError(f"y must be (n,) classes or (n, l) labels of 0 and 1, not a {type(S).__name__}")
    return S


def similar_columns(S: Similarity, columns: Tensor) -> Tensor:
    """Whether S_ij > 0 for rows i of each group and j in ``columns``, (g, c)."""
    return S.between_groups(S.row_group[columns]) > 0


def sample_pairs(
    S: Similarity, per_row: int, random_state: np.random.RandomState
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Pairs (i, j, similar): up to ``per_row`` similar and up to ``per_row`` dissimilar partners j for each row i.

    All partners of a block of rows are drawn from one random pool of rows, without replacement.
    """
    i_all, j_all, similar_all = [], [], []
    for rows in row_blocks(S.n):
        pool = random_state.choice(S.n, min(S.n, max(POOL, 4 * per_row)), replace=False)
        table = similar_columns(S, torch.from_numpy(pool).to(S.row_group.device))
        similar = table[S.row_group[rows].long()].cpu().numpy()  # (block, pool)
        key = random_state.random_sample(similar.shape)
        key[np.arange(rows.start, rows.stop)[:, None] == pool] = np.inf  # a row is not its own partner
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
            f"y makes all pairs of rows {'similar' if similar.any() else 'dissimilar'}; both kinds are needed"
        )
    return np.concatenate(i_all), np.concatenate(j_all).astype(np.int64), similar
