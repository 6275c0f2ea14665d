"""BRE (Kulis, Darrell, "Learning to hash with binary reconstructive embeddings", NIPS 2009), the supervised form."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dish.baselines._pairs import sample_pairs
from dish.checks import check_integer
from dish.encoder import Linear
from dish.kernel.kernel_hasher import KernelHasher
from dish.lazy import Tensor
from dish.numba_lazy import njit
from dish.progress import rounds


class BRE(KernelHasher):
    """Hamming distances that reproduce given distances: min Σ (d_ij − ‖h_i − h_j‖₁/r)² over sampled pairs.

    d_ij is 0 for similar rows and 1 for dissimilar ones. Bit p is the sign of Σ_q W_qp k_q(x) over its own random
    subset of the anchors. One weight at a time is set to its best value with all others fixed. As the weight grows,
    each row changes its sign at one value; sorting these values gives every possible outcome.

    Parameters
    ----------
    n_bits, n_anchors, gamma, device, random_state
        As in ``DISHK``.
    anchors_per_bit : int
        Number of anchors in the subset of a bit.
    pairs_per_row : int
        Similar and dissimilar partners sampled for each row, this many of each.
    n_iter : int
        Maximum number of sweeps over all weights; a sweep that changes nothing is the last.

    Attributes
    ----------
    objective_ : float64 (n_iter_ + 1,)
        Mean squared error over the pairs, at the start and after every sweep; it never rises.
    """

    _state = (*KernelHasher._state, "objective_", "n_iter_")

    def __init__(
        self,
        n_bits: int = 64,
        *,
        n_anchors: int = 1000,
        gamma: float | str = "auto",
        anchors_per_bit: int = 50,
        pairs_per_row: int = 50,
        n_iter: int = 3,
        device: str = "auto",
        random_state: Any = 0,
    ) -> None:
        self.n_bits, self.n_anchors, self.gamma = n_bits, n_anchors, gamma
        self.anchors_per_bit, self.pairs_per_row, self.n_iter = anchors_per_bit, pairs_per_row, n_iter
        self.device, self.random_state = device, random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from rows X (n, d) and labels y: (n,) classes, or (n, l) of 0 and 1."""
        for name in ("anchors_per_bit", "pairs_per_row", "n_iter"):
            check_integer(name, getattr(self, name), low=1)
        data = self._fit_data(X, y)
        assert isinstance(data.K, Tensor)
        columns = np.ascontiguousarray(
            data.K.double().T.cpu().numpy()
        )  # (m, n): a step reads one feature of all rows
        m, r, rng = len(columns), self.n_bits, data.rng
        with self._stage("pairs"):
            i, j, similar = sample_pairs(data.S, self.pairs_per_row, rng)
            target = np.where(similar, 0.0, 1.0)
        W = np.zeros((m, r))
        for p in range(r):
            used = rng.choice(m, min(self.anchors_per_bit, m), replace=False)
            W[used, p] = rng.standard_normal(len(used))
        F = np.ascontiguousarray((columns.T @ W).T)  # (r, n)
        differ = np.zeros(len(i))  # Hamming distance of each pair
        for f in F:
            differ += (f[i] >= 0) != (f[j] >= 0)
        graph = _adjacency(i, j, len(F[0]))
        used_by = W != 0
        objective = [float(np.mean((target - differ / r) ** 2))]
        with self._stage("coordinate descent"):
            for _ in rounds(self.n_iter):
                for p in rng.permutation(r):
                    order = rng.permutation(np.flatnonzero(used_by[:, p]))
                    _update_bit(columns, F[p], W[:, p], order, i, j, target, differ, graph, r)
                objective.append(float(np.mean((target - differ / r) ** 2)))
                if objective[-1] == objective[-2]:
                    break
        self.objective_, self.n_iter_ = np.array(objective), len(objective) - 1
        self._keep(data, Linear.of(W.astype(np.float32)))
        return self


def _update_bit(
    columns: NDArray[np.float64],
    f: NDArray[np.float64],
    w: NDArray[np.float64],
    order: NDArray[np.int64],
    i: NDArray[np.int64],
    j: NDArray[np.int64],
    target: NDArray[np.float64],
    differ: NDArray[np.float64],
    graph: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
    r: int,
) -> None:
    """Update all weights of one bit in turn; f (n,), w (m,) and ``differ`` (pairs,) change in place."""
    start, neighbour, pair = graph
    differ -= (f[i] >= 0) != (f[j] >= 0)
    rest = target - differ / r
    gain = (rest - 1 / r) ** 2 - rest**2  # change of the objective if the pair differs in this bit
    weight = gain[pair]
    for q in order:
        step = best_step(columns[q], f, start, neighbour, weight)
        if step != 0.0:
            f += step * columns[q]
            w[q] += step
    differ += (f[i] >= 0) != (f[j] >= 0)


def best_step(
    k: NDArray[np.float64],
    f: NDArray[np.float64],
    start: NDArray[np.int64],
    neighbour: NDArray[np.int64],
    weight: NDArray[np.float64],
) -> float:
    """The change z of one weight that minimises Σ weight·[signs of f + z k differ]; 0 if no change helps."""
    moving = np.flatnonzero(k)
    crossing = -f[moving] / k[moving]
    order = np.argsort(crossing, kind="stable")
    moving, crossing = moving[order], crossing[order]
    bits = np.where(k == 0, f >= 0, k < 0)  # the signs for z → −∞
    costs = _costs(moving, bits, start, neighbour, weight)  # after each crossing, relative to z → −∞
    ends = np.concatenate([crossing, [np.inf]])
    wide = np.concatenate(
        [[True], np.diff(ends) > 1e-12 * (1 + np.abs(crossing))]
    )  # a step must end well between two crossings
    here = int(np.searchsorted(crossing, 0.0, side="right"))
    best = int(np.argmin(np.where(wide, costs, np.inf)))
    if not costs[best] < costs[here] - 1e-9:
        return 0.0
    if best == 0:
        return float(crossing[0] - 1.0)
    if best == len(crossing):
        return float(crossing[-1] + 1.0)
    return float((crossing[best - 1] + crossing[best]) / 2)


@njit(cache=True)
def _costs(moving: Any, bits: Any, start: Any, neighbour: Any, weight: Any) -> Any:
    """Cost after each flip, as the rows in ``moving`` flip one after the other."""
    costs = np.zeros(len(moving) + 1)
    total = 0.0
    for t in range(len(moving)):
        i = moving[t]
        for e in range(start[i], start[i + 1]):
            if bits[neighbour[e]] == bits[i]:
                total += weight[e]
            else:
                total -= weight[e]
        bits[i] = not bits[i]
        costs[t + 1] = total
    return costs


def _adjacency(
    i: NDArray[np.int64], j: NDArray[np.int64], n: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The pairs of each row: the start of its list (n + 1,), the partners, and the indices of the pairs."""
    rows = np.concatenate([i, j])
    order = np.argsort(rows, kind="stable")
    start = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n))])
    pair = order % len(i)
    return start, np.concatenate([j, i])[order], pair
