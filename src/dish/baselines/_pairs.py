"""What the pairwise rivals share: a similarity read by columns or by sampled pairs, never whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from torch import Tensor

from dish.kernel.features import row_blocks
from dish.kernel.hasher import KernelHasher
from dish.machine import resolve_device
from dish.similarity import Similarity, from_labels

POOL = 2048  # rows drawn as possible partners of a block of rows


class PairwiseHasher(KernelHasher):
    """A kernel hasher that learns from pairs of rows: similar (a label in common) or not."""

    random_state: Any

    def _prepare(self, X: Any, y: Any, multilabel: str = "count") -> tuple[Tensor, Similarity, np.random.RandomState]:
        """Checked rows and labels as centred features K (n, m) float64, S, and the generator."""
        self._check_kernel_params()
        self._require_y(y)
        X = self._check_X(X, reset=True)
        S = from_labels(y, multilabel=multilabel, n_rows=len(X)).to(resolve_device(self.device))
        random_state = check_random_state(self.random_state)
        self.timings_ = {}
        with self._stage("features"):
            K = self._kernel_features(X, random_state)
        return K, S, random_state

    def _keep(self, W: Tensor, intercept: Any = 0.0) -> None:
        """W (m, r) and the intercept of F(x) = Wᵀk(x) + intercept."""
        self.W_ = W.cpu().numpy().astype(np.float32)
        self.intercept_ = np.broadcast_to(np.asarray(intercept, np.float32), (self.n_bits,)).copy()

    def _regress(self, K: Tensor, target: Tensor, ridge: float) -> None:
        """The out-of-sample step: W = (KᵀK + ρI)⁻¹ Kᵀ target, target (n, r)."""
        white = self._whitening(K, ridge)
        with self._stage("out of sample"):
            KtB = sum(K[rows].double().T @ target[rows].double() for rows in row_blocks(len(K), 4096))
            self._keep(white.solve(torch.as_tensor(KtB)))


def similar_columns(S: Similarity, columns: Tensor) -> Tensor:
    """S_ij > 0 for j in ``columns``, by group: row i of the table (g, c) holds for all rows of group i."""
    E = torch.zeros(S.n_groups, len(columns), dtype=torch.float64, device=S.row_group.device)
    E[S.row_group[columns].long(), torch.arange(len(columns), device=E.device)] = 1.0
    return S.P(S.Rt(E)) > 0


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
        raise ValueError(
            f"y makes every pair of rows {'similar' if similar.any() else 'dissimilar'}; both kinds are needed"
        )
    return np.concatenate(i_all), np.concatenate(j_all).astype(np.int64), similar
