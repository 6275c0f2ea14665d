"""CNNH+: codes from the similarity matrix first, then a network that predicts codes and classes.

Xia, Pan, Lai, Liu, Yan, "Supervised hashing for image retrieval via image representation learning", AAAI 2014.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dish import codes
from dish.deep.deep_hasher import DeepHasher, Learned
from dish.deep.training import Batch, Objective, RoundState, Training
from dish.numba_lazy import njit
from dish.similarity import Similarity


class CNNH(DeepHasher):
    """Stage one: min ‖S − HHᵀ/r‖² over H in [−1, 1], entry by entry. Stage two: F towards sgn(H), with softmax.

    S is never built: rows with equal labels form a group, and an entry costs O(r).
    """

    N_SWEEPS = 5

    def _learn(self, training: Training, state: RoundState | None) -> Learned:
        if state is not None:
            return Learned(attributes={"codes_": state.codes})
        data = training.data
        with training.stage("codes"):
            H = factorise(data.S, self.n_bits, np.random.RandomState(data.seed), self.N_SWEEPS)
        packed = codes.pack(H)
        target = torch.from_numpy(codes.unpack(packed, self.n_bits)).to(data.device, torch.float32)
        layer = nn.Linear(training.model.width, data.n_targets).to(data.device)

        def loss(phi: Tensor, F: Tensor, batch: Batch) -> Tensor:
            distance = (torch.tanh(F) - target[batch.rows]).square().mean()
            return data.classification_loss(layer(phi), batch.rows) + distance

        training.run_objective(Objective(loss, layer, recordable=True))
        training.save(0, packed)
        return Learned(attributes={"codes_": packed})


def factorise(S: Similarity, r: int, random_state: np.random.RandomState, n_sweeps: int) -> NDArray[np.float64]:
    """H (n, r) in [−1, 1] that lowers ‖S − HHᵀ/r‖² by Newton steps on one entry at a time, column after column."""
    H = random_state.uniform(-1, 1, (S.n, r))
    row_group, diag = S.row_group.numpy(), S.diag.numpy()
    table = S.between_groups().numpy()  # (g, g)
    for _ in range(n_sweeps):
        for k in range(r):
            _newton_column(H, k, row_group, table, diag)
    return H


@njit(cache=True)
def _newton_column(H: Any, k: int, row_group: Any, table: Any, diag: Any) -> None:
    """One pass over column k: each entry moves to the minimum of its quadratic model in [−1, 1] if that helps.

    With h = H_·k and R = rS − Σ_{j≠k} H_·j H_·jᵀ (without its diagonal), the entries of column k enter as
    ‖R − hhᵀ‖²; for one entry that is  2 Σ_{j≠i} (R_ij − h_i h_j)² + (R_ii − h_i²)².
    """
    n, r = H.shape
    u = H.T @ np.ascontiguousarray(H[:, k])  # Hᵀh (r,), kept up to date
    sums = np.zeros(len(table))  # Eᵀh
    for i in range(n):
        sums[row_group[i]] += H[i, k]
    for i in range(n):
        h = H[i, k]
        Sh, Hu, own = 0.0, 0.0, 0.0
        for g in range(len(sums)):
            Sh += table[row_group[i], g] * sums[g]
        for j in range(r):
            if j != k:
                Hu += H[i, j] * u[j]
                own += H[i, j] ** 2
        # Σ_{j≠i} R_ij h_j and Σ_{j≠i} h_j²
        R_ii = r * diag[row_group[i]] - own
        Rh = (r * Sh - Hu) - R_ii * h
        hh = u[k] - h * h
        gradient = 4 * (hh * h - Rh) + 4 * h * (h * h - R_ii)
        curvature = 4 * hh + 12 * h * h - 4 * R_ii
        if curvature <= 0:
            curvature = 4 * hh + 1e-12
        new = min(1.0, max(-1.0, h - gradient / curvature))
        before = 2 * (hh * h * h - 2 * Rh * h) + (R_ii - h * h) ** 2
        after = 2 * (hh * new * new - 2 * Rh * new) + (R_ii - new * new) ** 2
        if after < before:
            for j in range(r):
                if j != k:
                    u[j] += (new - h) * H[i, j]
            u[k] += new * new - h * h
            sums[row_group[i]] += new - h
            H[i, k] = new
