"""FastH (Lin, Shen, Shi, van den Hengel, Suter, CVPR 2014).

"Fast supervised hashing with decision trees for high-dimensional data".

Each bit is learned in two steps. Step one infers the bit z ∈ {−1, 1}ⁿ that fits the pairs best, given the bits H
(n, k) before it. With the KSH loss ‖rS − HHᵀ‖² and S = wYYᵀ − 1 this is

    min  −zᵀ (rS − HHᵀ) z = −r (w‖Yᵀz‖² − (1ᵀz)²) + ‖Hᵀz‖² .

Step two trains a classifier on z. Its predictions, not z, are appended to H, so that later bits correct its errors.

The authors sample pairs, and minimise over blocks of similar rows by graph cuts. The form above uses all n² pairs in
O(n) and needs no sample. Instead of graph cuts, whole blocks (rows with equal labels) are flipped first, then single
rows, as long as a flip lowers the loss. This is exact for a block of rows whose bits so far are equal, because all of
its pairs should agree.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dish import codes
from dish.baselines._pairs import labelled
from dish.baselines._trees import Ensemble, Trees, boost, evaluate
from dish.checks import check_integer, check_option, check_random_state
from dish.encoder import Linear
from dish.io.rows import narrowed
from dish.kernel.fit_data import FitData
from dish.kernel.kernel_hasher import KernelHasher
from dish.lazy import Tensor, torch
from dish.numba_lazy import njit
from dish.progress import rounds
from dish.similarity import Classes, LabelCounts, Similarity, from_labels

N_STARTS = 10  # random initial signs of the blocks
MAX_SWEEPS = 100  # over the rows; usually no row flips after a few sweeps


class FastH(KernelHasher):
    """Bits inferred from pairs of labels; one classifier per bit predicts them.

    Parameters
    ----------
    n_bits, n_anchors, gamma, similar_weight, ridge, device, random_state
        As in ``DISHK``.
    classifier : "ridge" or "trees"
        Ridge regression on the kernel features, or AdaBoost of decision trees on the rows themselves. The authors use
        trees, which take far longer to train.
    n_trees, depth : int
        Number of trees per bit, and their depth.

    Attributes
    ----------
    codes_ : uint8 (n, ceil(n_bits/8))
        The inferred bits of the training rows, packed. They depend on the labels.
    """

    _state = (*KernelHasher._state, "codes_")

    def __init__(
        self,
        n_bits: int = 64,
        *,
        n_anchors: int = 1000,
        gamma: float | str = "auto",
        classifier: str = "ridge",
        similar_weight: float = 2.0,
        ridge: float = 1e-6,
        n_trees: int = 200,
        depth: int = 4,
        device: str = "auto",
        random_state: Any = 0,
    ) -> None:
        self.n_bits, self.n_anchors, self.gamma, self.classifier = n_bits, n_anchors, gamma, classifier
        self.similar_weight, self.ridge, self.n_trees, self.depth = similar_weight, ridge, n_trees, depth
        self.device, self.random_state = device, random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from rows X (n, d) and labels y: (n,) classes, or (n, l) of 0 and 1."""
        self._check_params()
        if self.classifier == "trees":
            return self._fit(None, *self._trees(X, y))
        data = self._fit_data(X, y)
        return self._fit(data, RidgeStep(data), data.S, data.rng)

    def _trees(self, X: Any, y: Any) -> tuple[TreeStep, Similarity, np.random.RandomState]:
        """Check X and y; trees need no kernel features."""
        self._require_y(y)
        X = self._check_X(X, reset=True)
        self.timings_ = {}
        S = from_labels(y, similar_weight=self.similar_weight, n_rows=len(X))
        rng = check_random_state(self.random_state)
        return TreeStep(narrowed(X, np.float32), self.n_trees, self.depth, rng), S, rng

    def _fit(
        self, data: FitData | None, step: RidgeStep | TreeStep, S: Similarity, rng: np.random.RandomState
    ) -> Self:
        pairs, n, r = BitInference(labelled(S), self.n_bits), S.n, self.n_bits
        H, Z = np.zeros((n, r), np.int8), np.zeros((n, r), np.int8)
        for k in rounds(r):
            with self._stage("inference"):
                Z[:, k] = pairs.infer(H, k, rng)
            with self._stage("classifier"):
                H[:, k] = np.where(step.fit(Z[:, k]) >= 0, 1, -1)
        self.codes_ = codes.pack(Z)
        self._keep_hash_function(data, step)
        return self

    def _keep_hash_function(self, data: FitData | None, step: RidgeStep | TreeStep) -> None:
        if isinstance(step, RidgeStep):
            assert data is not None
            self._keep(data, Linear.of(torch.stack(step.W, 1), step.intercept))
            return
        d = self.n_features_in_  # trees take x itself: linear features with mean 0
        self.kernel_, self.gamma_, self.anchors_ = "linear", 1.0, np.empty((0, d), np.float32)
        self.centre_, self.mean_ = np.zeros(d, np.float32), np.zeros(d, np.float32)
        self.scale_ = None
        self.hash_function_ = Trees(*(np.stack(part) for part in zip(*step.bits, strict=True)))

    def _check_params(self) -> None:
        self._check_kernel_params()
        check_option("classifier", self.classifier, ("ridge", "trees"))
        check_integer("n_trees", self.n_trees, low=1)
        check_integer("depth", self.depth, low=1, high=16)


# --- Step one: inference ----------------------------------------------------------------------------------


class BitInference:
    """Minimises the loss −zᵀ(rS − HHᵀ)z of a bit; Y is stored once per group of rows with equal labels."""

    def __init__(self, S: Classes | LabelCounts, r: int) -> None:
        self.r, self.w, self.g = r, S.w, S.n_groups
        self.row_group = S.row_group.cpu().numpy().astype(np.int64)
        self.size = S.group_sizes().cpu().numpy()  # (g,)
        if isinstance(S, Classes):  # one label per group
            self.start, self.labels, self.n_labels = np.arange(self.g + 1), np.arange(self.g), self.g
        else:
            self.start, self.labels = (part.cpu().numpy() for part in (S.Y_g.crow_indices(), S.Y_g.col_indices()))
            self.n_labels = S.Y_g.shape[1]

    def infer(self, H: NDArray[np.int8], k: int, random_state: np.random.RandomState) -> NDArray[np.float64]:
        """z (n,) for the bit after the first k of H: flip blocks, from several starts, then single rows."""
        H_g = np.zeros((self.g, H.shape[1]))  # EᵀH
        H_g[:, :k] = np.stack([np.bincount(self.row_group, h, self.g) for h in H[:, :k].T], 1) if k else 0
        starts = 2.0 * random_state.randint(2, size=(N_STARTS, self.g)) - 1
        losses = [self.descend(x, self.size, H_g, k, np.arange(self.g)) for x in starts]
        z = starts[np.argmin(losses)][self.row_group]
        self.descend(z, np.ones(len(z)), H, k, self.row_group)
        return z

    def descend(
        self, z: NDArray[np.float64], size: NDArray[np.float64], H: NDArray[Any], k: int, row_group: NDArray[np.int64]
    ) -> float:
        """Flip rows, or blocks of ``size`` rows with sums H, while the loss falls, in place; returns the loss."""
        sums = np.zeros(self.n_labels), np.zeros(1), np.zeros(k)  # Yᵀz, 1ᵀz, Hᵀz
        args = z, size, H, row_group, self.start, self.labels, *sums
        return float(_descend(*args, float(self.r), self.w, MAX_SWEEPS))


@njit(cache=True)
def _descend(
    z: Any,
    size: Any,
    H: Any,
    row_group: Any,
    start: Any,
    labels: Any,
    Ytz: Any,
    one_z: Any,
    Htz: Any,
    r: float,
    w: float,
    max_sweeps: int,
) -> Any:
    """z_i ← sgn((Qz)_i − Q_ii z_i) in turn, Q_ij = r size_i size_j (w Y_i·Y_j − 1) − H_i·H_j; updates the sums."""
    for i in range(len(z)):
        _add(z[i], size[i], labels[start[row_group[i]] : start[row_group[i] + 1]], H[i], Ytz, one_z, Htz)
    for _ in range(max_sweeps):
        flips = 0
        for i in range(len(z)):
            mine = labels[start[row_group[i]] : start[row_group[i] + 1]]
            shared = 0.0
            for a in mine:
                shared += Ytz[a]
            HHtz, HH = _products(H[i], Htz)
            Qz = r * size[i] * (w * shared - one_z[0]) - HHtz
            Q_ii = r * size[i] ** 2 * (w * len(mine) - 1) - HH
            if z[i] * (Qz - Q_ii * z[i]) < 0:
                _add(-2 * z[i], size[i], mine, H[i], Ytz, one_z, Htz)
                z[i] = -z[i]
                flips += 1
        if flips == 0:
            break
    return (Htz**2).sum() - r * (w * (Ytz**2).sum() - one_z[0] ** 2)


@njit(cache=True)
def _add(step: float, size: float, mine: Any, h: Any, Ytz: Any, one_z: Any, Htz: Any) -> None:
    for a in mine:
        Ytz[a] += step * size
    one_z[0] += step * size
    for j in range(len(Htz)):
        Htz[j] += step * h[j]


@njit(cache=True, fastmath=True)
def _products(h: Any, Htz: Any) -> Any:
    """h·Hᵀz and h·h."""
    HHtz, HH = 0.0, 0.0
    for j in range(len(Htz)):
        HHtz += h[j] * Htz[j]
        HH += h[j] * h[j]
    return HHtz, HH


# --- Step two: classifiers --------------------------------------------------------------------------------


class RidgeStep:
    """f = K w + c by ridge regression; c is the mean of z, because K is centred."""

    def __init__(self, data: FitData) -> None:
        assert isinstance(data.K, Tensor)
        self.K, self.white = data.K, data.white
        self.W: list[Tensor] = []
        self.intercept: list[float] = []

    def fit(self, z: NDArray[Any]) -> NDArray[Any]:
        """Learn z (n,); return f (n,)."""
        Ktz = self.K.T @ torch.from_numpy(z).to(self.K)
        self.W.append(self.white.solve(Ktz[:, None])[:, 0].to(self.K.dtype))
        self.intercept.append(float(z.mean()))
        return (self.K @ self.W[-1]).cpu().numpy() + np.float32(self.intercept[-1])


class TreeStep:
    """f by boosted trees on the rows themselves."""

    def __init__(self, X: NDArray[np.float32], n_trees: int, depth: int, random_state: Any) -> None:
        self.X, self.n_trees, self.depth, self.random_state = X, n_trees, depth, random_state
        self.bits: list[Ensemble] = []

    def fit(self, z: NDArray[Any]) -> NDArray[Any]:
        """Learn z (n,); return f (n,)."""
        self.bits.append(boost(self.X, z, self.n_trees, self.depth, self.random_state))
        return np.asarray(evaluate(self.X, *(part[None] for part in self.bits[-1])))[:, 0]
