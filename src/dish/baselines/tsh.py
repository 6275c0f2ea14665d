"""TSH: two-step hashing (Lin, Shen, Suter, van den Hengel, "A general two-step approach to learning-based
hashing", ICCV 2013)."""

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
from dish.similarity import Similarity

Vector = NDArray[np.float64]

# ℓ(d) of codes of t bits that differ in d of them: (similar, dissimilar)
LOSSES: dict[str, Callable[[Vector, int], tuple[Vector, Vector]]] = {
    "hinge": lambda d, t: (d**2, np.maximum(t / 2 - d, 0) ** 2),
    "bre": lambda d, t: (d**2, (t - d) ** 2),
    "ee": lambda d, t: (d, 100 * np.exp(-d / t)),  # elastic embedding, λ = 100
}


class TSH(KernelHasher):
    """First the codes, from the labels alone; then one classifier per bit that predicts them from the features.

    With all other bits fixed, a loss of a pair takes one value if the two rows agree in this bit and another if
    they do not: (ℓ₊ + ℓ₋)/2 + z_i z_j (ℓ₊ − ℓ₋)/2. So every bit is a binary quadratic problem min zᵀA z, solved
    by its leading eigenvector, then by L-BFGS on the box [−1, 1]ⁿ, and rounded; the best rounding is kept.

    Parameters
    ----------
    n_bits, n_anchors, gamma, ridge, device, random_state
        As in ``DISH``.
    loss : "ksh", "hinge", "bre" or "ee"
        (t s_ij − h_iᵀh_j)² over all pairs (A is of low rank and never built), or a function of the Hamming
        distance over sampled pairs.
    classifier : "ridge" or "svm"
        Of step two, on the kernel features; "svm" is scikit-learn's ``LinearSVC``.
    C : float
        Of the SVM.
    n_sweeps : int
        Passes over the bits. In the first, a bit knows those before it; in later ones, all others.
    pairs_per_row : int
        Sampled pairs that every row enters, of each kind; not used by "ksh".
    multilabel : "share_one", "count" or "jaccard"
        For (n, l) labels: s_ij of the "ksh" loss, as in ``DISH``.

    Attributes
    ----------
    codes_ : uint8 (n, ceil(n_bits/8))
        The codes of step one.
    objective_ : float64 (n_sweeps,)
        Their loss after every pass, over all pairs of rows or the sampled ones.
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
        self.n_bits = n_bits
        self.n_anchors = n_anchors
        self.gamma = gamma
        self.loss = loss
        self.classifier = classifier
        self.ridge = ridge
        self.C = C
        self.n_sweeps = n_sweeps
        self.pairs_per_row = pairs_per_row
        self.multilabel = multilabel
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from rows X (n, d) and labels y: (n,) classes or (n, l) of 0/1."""
        check_option("loss", self.loss, ("ksh", *LOSSES))
        check_option("classifier", self.classifier, ("ridge", "svm"))
        check_integer("n_sweeps", self.n_sweeps, low=1)
        check_integer("pairs_per_row", self.pairs_per_row, low=1)
        check_number("C", self.C, low=0, strict=True)
        problem = self._fit_data(X, y, self.multilabel if self.loss == "ksh" else "count")
        S, rng = problem.S, problem.rng
        with self._stage("codes"):
            if self.loss == "ksh":
                pairs: Pairs = AllPairs(S.to(torch.device("cpu")))
            else:
                pairs = SampledPairs(S.n, *sample_pairs(S, self.pairs_per_row, rng), LOSSES[self.loss])
            H, self.objective_ = infer_codes(pairs, self.n_bits, self.n_sweeps, rng)
        self.codes_ = codes.pack(H)
        if self.classifier == "ridge":
            function = regress(problem, torch.from_numpy(H).to(problem.device))
        else:
            assert isinstance(problem.K, Tensor)
            function = self._classify(problem.K, H)
        self._keep(problem, function)
        return self

    def _classify(self, K: Tensor, H: Vector) -> Linear:
        """A linear SVM per bit; a bit that is the same for all rows is a constant."""
        from sklearn.svm import LinearSVC

        features, r = K.double().cpu().numpy(), self.n_bits
        W, intercept = np.zeros((K.shape[1], r)), H[0].copy()
        with self._stage("out of sample"):
            for k in range(r):
                if len(np.unique(H[:, k])) == 2:
                    model = LinearSVC(C=self.C, random_state=0).fit(features, H[:, k])
                    W[:, k], intercept[k] = model.coef_[0], model.intercept_[0]
        return Linear.of(W.astype(np.float32), intercept)


class Pairs(Protocol):
    """A loss over pairs, bit by bit."""

    n: int

    def product(self, H: Vector) -> Callable[[Vector], Vector]:
        """z → A z of the bit that joins the others H (n, t − 1): zᵀA z is the loss up to a constant and a factor."""

    def loss(self, H: Vector) -> float:
        """The loss of the codes H (n, t)."""


class AllPairs:
    """Σ_ij (t s_ij − h_iᵀh_j)², which in one bit is −2 zᵀ(tS − H'H'ᵀ)z: S and H' only in products."""

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
    """Σ ℓ(Hamming distance) over sampled pairs: A is sparse."""

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
        """A_ij = ℓ₊ − ℓ₋ of the pairs, made symmetric."""
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


def infer_codes(pairs: Pairs, r: int, n_sweeps: int, random_state: np.random.RandomState) -> tuple[Vector, Vector]:
    """Step one: H (n, r) of ±1, bit by bit, and the loss after every pass. Later passes never raise it."""
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
    """min zᵀA z over z ∈ {−1, 1}ⁿ, roughly: the best of ``starts`` and of two rounded relaxations."""
    v0 = random_state.standard_normal(n)
    A = LinearOperator((n, n), matvec=lambda z: product(z.ravel()), dtype=np.float64)
    try:
        relaxed = eigsh(A, k=1, which="SA", v0=v0, tol=1e-3, maxiter=200)[1][:, 0] if n > 2 else v0
    except ArpackNoConvergence:
        relaxed = v0  # a start like any other for what follows
    relaxed = relaxed / np.abs(relaxed).max()

    def value_and_gradient(z: Vector) -> tuple[float, Vector]:
        Az = product(z)
        return float(z @ Az), 2 * Az

    scale = max(float(np.abs(product(relaxed)).max()), 1e-12)  # L-BFGS stops by absolute sizes
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
