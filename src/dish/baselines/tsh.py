"""TSH (Lin, Shen, Suter, van den Hengel, "A general two-step approach to learning-based hashing", ICCV 2013)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.optimize import Bounds, minimize
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from dish import codes
from dish.baselines._pairs import regress, sample_pairs
from dish.checks import check_integer, check_number, check_option
from dish.encoder import Linear
from dish.kernel.kernel_hasher import KernelHasher
from dish.lazy import Tensor, torch
from dish.progress import rounds
from dish.similarity import Similarity

Vector = NDArray[np.float64]

# Loss of similar and of dissimilar pairs whose codes of t bits differ in d bits.
LOSSES: dict[str, Callable[[Vector, int], tuple[Vector, Vector]]] = {
    "hinge": lambda d, t: (d**2, np.maximum(t / 2 - d, 0) ** 2),
    "bre": lambda d, t: (d**2, (t - d) ** 2),
    "ee": lambda d, t: (d, 100 * np.exp(-d / t)),  # elastic embedding, λ = 100
}


class TSH(KernelHasher):
    """Learns codes from the labels alone, then one classifier per bit that predicts them from the features.

    With all other bits fixed, the loss of a pair is ℓ₊ if its rows agree in this bit and ℓ₋ if not, that is
    (ℓ₊ + ℓ₋)/2 + z_i z_j (ℓ₊ − ℓ₋)/2. So each bit is a binary quadratic problem min zᵀA z. It is relaxed in two ways,
    by the leading eigenvector and by L-BFGS on the box [−1, 1]ⁿ, and the better rounding is kept.

    Parameters
    ----------
    n_bits, n_anchors, gamma, ridge, device, random_state
        As in ``DISHK``.
    loss : "ksh", "hinge", "bre" or "ee"
        "ksh" is (t s_ij − h_iᵀh_j)² over all pairs (A has low rank and is never built). The others are functions of
        the Hamming distance over sampled pairs.
    classifier : "ridge" or "svm"
        The classifier of step two, on the kernel features; "svm" is scikit-learn's ``LinearSVC``.
    C : float
        Parameter of the SVM.
    n_sweeps : int
        Sweeps over the bits. In the first sweep a bit depends on those before it, later on all others.
    pairs_per_row : int
        Similar and dissimilar pairs sampled for each row, this many of each; not used by "ksh".
    multilabel : "share_one", "count" or "jaccard"
        s_ij of the "ksh" loss for (n, l) labels, as in ``DISHK``.

    Attributes
    ----------
    codes_ : uint8 (n, ceil(n_bits/8))
        The codes of step one, packed.
    objective_ : float64 (n_sweeps,)
        Their loss after every sweep.
    """

    _state = (*KernelHasher._state, "codes_", "objective_")

    def __init__(
        self,
        n_bits: int = 64,
        *,
        n_anchors: int = 1000,
        gamma: float | str = "auto",
        loss: str = "ksh",
        classifier: str = "ridge",
        ridge: float = 1e-6,
        C: float = 1.0,
        n_sweeps: int = 1,
        pairs_per_row: int = 100,
        multilabel: str = "share_one",
        device: str = "auto",
        random_state: Any = 0,
    ) -> None:
        self.n_bits, self.n_anchors, self.gamma, self.loss = n_bits, n_anchors, gamma, loss
        self.classifier, self.ridge, self.C, self.n_sweeps = classifier, ridge, C, n_sweeps
        self.pairs_per_row, self.multilabel, self.device = pairs_per_row, multilabel, device
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from rows X (n, d) and labels y: (n,) classes, or (n, l) of 0 and 1."""
        check_option("loss", self.loss, ("ksh", *LOSSES))
        check_option("classifier", self.classifier, ("ridge", "svm"))
        check_integer("n_sweeps", self.n_sweeps, low=1)
        check_integer("pairs_per_row", self.pairs_per_row, low=1)
        check_number("C", self.C, low=0, strict=True)
        data = self._fit_data(X, y, self.multilabel if self.loss == "ksh" else "count")
        S, rng = data.S, data.rng
        with self._stage("codes"):
            if self.loss == "ksh":
                pairs: PairLoss = AllPairs(S.to(torch.device("cpu")))
            else:
                pairs = SampledPairs(S.n, *sample_pairs(S, self.pairs_per_row, rng), LOSSES[self.loss])
            H, self.objective_ = infer_codes(pairs, self.n_bits, self.n_sweeps, rng)
        self.codes_ = codes.pack(H)
        if self.classifier == "ridge":
            function = regress(data, torch.from_numpy(H).to(data.device))
        else:
            assert isinstance(data.K, Tensor)
            function = self._classify(data.K, H)
        self._keep(data, function)
        return self

    def _classify(self, K: Tensor, H: Vector) -> Linear:
        """Train a linear SVM per bit; a bit that is equal for all rows stays constant."""
        from sklearn.svm import LinearSVC

        features, r = K.double().cpu().numpy(), self.n_bits
        W, intercept = np.zeros((K.shape[1], r)), H[0].copy()
        with self._stage("out of sample"):
            for k in rounds(r):
                if len(np.unique(H[:, k])) == 2:
                    model = LinearSVC(C=self.C, random_state=0).fit(features, H[:, k])
                    W[:, k], intercept[k] = model.coef_[0], model.intercept_[0]
        return Linear.of(W.astype(np.float32), intercept)


class PairLoss(Protocol):
    """A loss over pairs of rows, one bit at a time."""

    n: int

    def product(self, H: Vector) -> Callable[[Vector], Vector]:
        """z → A z for a bit added to H (n, t − 1): zᵀA z is the loss up to a constant and a factor."""

    def loss(self, H: Vector) -> float:
        """Loss of the codes H (n, t)."""


class AllPairs:
    """Σ_ij (t s_ij − h_iᵀh_j)². For one bit it is −2 zᵀ(tS − H'H'ᵀ)z plus a constant; S enters in products only."""

    def __init__(self, S: Similarity) -> None:
        self.S, self.n, self.row_group = S, S.n, S.row_group.numpy()

    def product(self, H: Vector) -> Callable[[Vector], Vector]:
        """z → −(tS − H'H'ᵀ) z."""
        t = H.shape[1] + 1
        return lambda z: H @ (H.T @ z) - t * self._S(z)

    def loss(self, H: Vector) -> float:
        """t²‖S‖² − 2t tr(HᵀSH) + ‖HᵀH‖²."""
        t = H.shape[1]
        HSH = sum(h @ self._S(h) for h in H.T)
        return float(t * t * self.S.squared_norm() - 2 * t * HSH + np.sum((H.T @ H) ** 2))

    def _S(self, z: Vector) -> Vector:
        sums = torch.from_numpy(np.bincount(self.row_group, weights=z, minlength=self.S.n_groups))
        return np.asarray(self.S.P(self.S.Rt(sums)).numpy()[self.row_group])


class SampledPairs:
    """Σ ℓ(Hamming distance) over sampled pairs; A is sparse."""

    def __init__(
        self,
        n: int,
        i: NDArray[np.int64],
        j: NDArray[np.int64],
        similar: NDArray[np.bool_],
        loss: Callable[[Vector, int], tuple[Vector, Vector]],
    ) -> None:
        self.n, self.i, self.j, self.similar, self.of_distance = n, i, j, similar, loss

    def product(self, H: Vector) -> Callable[[Vector], Vector]:
        """z → A z with A_ij = ℓ₊ − ℓ₋ for the sampled pairs, made symmetric."""
        t = H.shape[1] + 1
        d = self._distance(H)
        half = (self._loss(d, t) - self._loss(d + 1, t)) / 2
        A = sp.csr_array((half, (self.i, self.j)), shape=(self.n, self.n))
        A = sp.csr_array(A + A.T)
        return lambda z: A @ z

    def loss(self, H: Vector) -> float:
        """Σ ℓ over the pairs."""
        return float(self._loss(self._distance(H), H.shape[1]).sum())

    def _loss(self, d: Vector, t: int) -> Vector:
        near, far = self.of_distance(d, t)
        return np.where(self.similar, near, far)

    def _distance(self, H: Vector) -> Vector:
        d = np.zeros(len(self.i))
        for h in H.T:
            d += h[self.i] != h[self.j]
        return d


def infer_codes(pairs: PairLoss, r: int, n_sweeps: int, random_state: np.random.RandomState) -> tuple[Vector, Vector]:
    """Step one: H (n, r) of ±1, and the loss after every sweep. Sweeps after the first never raise it."""
    H = np.empty((pairs.n, r), order="F")
    losses = []
    for sweep in range(n_sweeps):
        for k in range(r):
            others = H[:, :k] if sweep == 0 else np.delete(H, k, axis=1)
            starts = [] if sweep == 0 else [H[:, k].copy()]
            H[:, k] = solve_bit(pairs.product(others), pairs.n, starts, random_state)
        losses.append(pairs.loss(H))
    return H, np.array(losses)


def solve_bit(
    product: Callable[[Vector], Vector], n: int, starts: list[Vector], random_state: np.random.RandomState
) -> Vector:
    """Approximate min zᵀA z over z ∈ {−1, 1}ⁿ: the best of ``starts`` and of two rounded relaxations."""
    v0 = random_state.standard_normal(n)
    A = LinearOperator((n, n), matvec=lambda z: product(z.ravel()), dtype=np.float64)
    try:
        relaxed = eigsh(A, k=1, which="SA", v0=v0, tol=1e-3, maxiter=200)[1][:, 0] if n > 2 else v0
    except ArpackNoConvergence:
        relaxed = v0  # L-BFGS can start from any point
    relaxed = relaxed / np.abs(relaxed).max()

    def value_and_gradient(z: Vector) -> tuple[float, Vector]:
        Az = product(z)
        return float(z @ Az), 2 * Az

    scale = max(float(np.abs(product(relaxed)).max()), 1e-12)  # the stopping rule of L-BFGS is absolute
    boxed = minimize(
        lambda z: tuple(part / scale for part in value_and_gradient(z)),
        relaxed,
        jac=True,
        method="L-BFGS-B",
        bounds=Bounds(-1, 1),
        options={"maxiter": 50},
    ).x
    rounded = [np.where(z >= 0, 1.0, -1.0) for z in (relaxed, boxed)]
    return min([*starts, *rounded], key=lambda z: value_and_gradient(z)[0])
