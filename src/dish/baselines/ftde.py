"""FTDE: codes that satisfy triplets first, then a network that predicts them bit by bit.

Zhuang, Lin, Shen, Reid, "Fast training of triplet-based deep binary embedding networks", CVPR 2016.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from dish import codes
from dish.deep.deep_hasher import DeepHasher, Learned
from dish.deep.training import Batch, Objective, RoundState, Training
from dish.errors import InputError
from dish.numba_lazy import njit
from dish.similarity import Similarity

TRIPLETS = 30  # per anchor


class FTDE(DeepHasher):
    """Stage one: min Σ max(0, r/2 − d(h_i, h_k) + d(h_i, h_j)) over triplets (i, similar j, dissimilar k), by bits.

    Given the other bits, the loss of a triplet depends only on b_i b_j and b_i b_k, so it is a quadratic form in b.
    Flips of single entries lower it (the authors use graph cuts). Stage two: a network with r logistic classifiers.
    """

    N_SWEEPS = 2

    def _learn(self, training: Training, state: RoundState | None) -> Learned:
        if state is not None:
            return Learned(attributes={"codes_": state.codes})
        data = training.data
        random_state = np.random.RandomState(data.seed)
        with training.stage("codes"):
            triplets = sample_triplets(data.S, TRIPLETS, random_state)
            H, losses = infer_codes(triplets, data.n, self.n_bits, random_state, self.N_SWEEPS)
        target = torch.from_numpy(H > 0).to(data.device, torch.float32)

        def loss(phi: Tensor, F: Tensor, batch: Batch) -> Tensor:
            return functional.binary_cross_entropy_with_logits(F, target[batch.rows])

        training.run_objective(Objective(loss))
        packed = codes.pack(H)
        training.save(0, packed)
        return Learned(attributes={"codes_": packed, "triplet_loss_": losses})


def sample_triplets(S: Similarity, per_row: int, random_state: np.random.RandomState) -> NDArray[np.int64]:
    """Random triplets (t, 3) of rows i, j, k with S_ij > 0 > S_ik, for every row i that has both."""
    row_group = S.row_group.numpy()
    table = S.between_groups().numpy() > 0  # (g, g): similar groups
    found = []
    for g in range(S.n_groups):
        anchors = np.flatnonzero(row_group == g)
        similar, other = (np.flatnonzero(m[row_group]) for m in (table[g], ~table[g]))
        if len(similar) < 2 or len(other) == 0:
            continue
        i = np.repeat(anchors, per_row)
        j, k = random_state.choice(similar, len(i)), random_state.choice(other, len(i))
        found.append(np.stack([i, j, k], 1)[i != j])
    if not found:
        raise InputError("y: no row has both a similar and a dissimilar row, so there are no triplets")
    return np.concatenate(found)


def infer_codes(
    triplets: NDArray[np.int64], n: int, r: int, random_state: np.random.RandomState, n_sweeps: int
) -> tuple[NDArray[np.int8], list[float]]:
    """Codes H (n, r) of ±1 and the loss after every bit of every sweep, which never rises within a sweep."""
    H = np.where(random_state.rand(n, r) < 0.5, -1, 1).astype(np.int8)
    i, j, k = triplets.T
    gap = (_products(H, i, j) - _products(H, i, k)) / 2.0  # d(i,k) − d(i,j), (t,)
    losses = []
    order, start = _by_row(triplets, n)
    for _ in range(n_sweeps):
        for bit in range(r):
            b = H[:, bit].astype(np.float64)
            rest = gap - (b[i] * b[j] - b[i] * b[k]) / 2
            _flip_entries(b, rest, triplets, order, start, r / 2)
            H[:, bit] = b
            gap = rest + (b[i] * b[j] - b[i] * b[k]) / 2
            losses.append(float(np.maximum(0, r / 2 - gap).mean()))
    return H, losses


def _products(H: NDArray[np.int8], i: Any, j: Any) -> NDArray[np.int64]:
    return np.einsum("tr,tr->t", H[i].astype(np.int64), H[j].astype(np.int64))


def _by_row(triplets: NDArray[np.int64], n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The triplets that contain row i: ``order[start[i] : start[i + 1]]``."""
    rows = triplets.ravel()
    order = np.argsort(rows, kind="stable") // 3
    return order, np.searchsorted(np.sort(rows), np.arange(n + 1))


@njit(cache=True)
def _flip_entries(b: Any, rest: Any, triplets: Any, order: Any, start: Any, margin: float) -> None:
    """Flip every entry of b whose flip lowers the loss of its triplets; up to five passes."""
    for _ in range(5):
        flipped = 0
        for row in range(len(b)):
            change = 0.0
            for t in order[start[row] : start[row + 1]]:
                i, j, k = triplets[t]
                before = rest[t] + (b[i] * b[j] - b[i] * b[k]) / 2
                b[row] = -b[row]
                after = rest[t] + (b[i] * b[j] - b[i] * b[k]) / 2
                b[row] = -b[row]
                change += max(0.0, margin - after) - max(0.0, margin - before)
            if change < -1e-12:
                b[row] = -b[row]
                flipped += 1
        if flipped == 0:
            break
