"""The kernel hash function F(x) = Wᵀ k(x): anchors, feature map, spectral start and F-step.

K (n, m) holds the centred features of the training rows. Everything that touches it runs over blocks of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numba import njit, prange
from numpy.typing import NDArray
from scipy.sparse.linalg import eigsh
from torch import Tensor

from dish import codes
from dish.similarity import Similarity

KernelFunction = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]
BLOCK = 512  # rows of K made at a time: with 1,000 anchors 2 MB, which stays in cache
START_ROWS = 8192  # the spectral start estimates KᵀH from that many rows, or 8 m if that is more


# --- Features ---------------------------------------------------------------------------------------------


@dataclass
class FeatureMap:
    """k(x) = [φ(x, a_1) − mean_1, …, φ(x, a_m) − mean_m]; for ``kernel="linear"`` k(x) = x − mean.

    ``"rbf"`` is φ(x, a) = exp(−γ‖x − a‖²); a function (X, A) → (rows, m) can stand in for it.
    """

    kernel: str | KernelFunction
    anchors: Tensor  # (m, d); (0, d) for the linear kernel
    gamma: float
    mean: Tensor | None = None  # (m,), of the training rows

    def raw(self, X: Tensor, out: Tensor | None = None) -> Tensor:
        """Features before centring: (rows, d) → (rows, m), in ``out`` if that saves a copy."""
        if callable(self.kernel):
            K = np.asarray(self.kernel(X.cpu().numpy(), self.anchors.cpu().numpy()))
            if K.shape != (len(X), len(self.anchors)):
                raise ValueError(
                    f"kernel must return an array of shape {(len(X), len(self.anchors))} "
                    f"for {len(X)} rows and {len(self.anchors)} anchors, got {K.shape}"
                )
            if not np.isfinite(K).all():
                raise ValueError("kernel returned NaN or infinity")
            return torch.from_numpy(np.array(K)).to(X)  # a copy: the function may have returned its input
        return X.clone() if self.kernel == "linear" else rbf(X, self.anchors, self.gamma, out)

    def __call__(self, X: Tensor) -> Tensor:
        """Centred features: (rows, d) → (rows, m)."""
        assert self.mean is not None
        return self.raw(X).sub_(self.mean)

    def fit_rows(self, X: Tensor) -> Tensor:
        """K (n, m) of the training rows, and ``mean`` on the way."""
        m = X.shape[1] if self.kernel == "linear" else len(self.anchors)
        K = _empty(len(X), m, X)
        total = torch.zeros(m, dtype=torch.float64, device=X.device)
        for rows in row_blocks(len(X)):
            block = self.raw(X[rows], out=K[rows])
            if block.data_ptr() != K[rows].data_ptr():
                K[rows] = block
            total += block.sum(0)
        self.mean = (total / len(X)).to(X.dtype)
        return K.sub_(self.mean)


def rbf(X: Tensor, A: Tensor, gamma: float, out: Tensor | None = None) -> Tensor:
    """exp(−γ‖x − a‖²) for all pairs: (rows, d), (m, d) → (rows, m)."""
    centre = A.mean(0)  # distances do not change, cancellation in float32 does
    X, A = X - centre, A - centre
    # −γ‖x − a‖² = 2γ x·a − γ‖a‖² − γ‖x‖²
    exponent = torch.addmm(-gamma * (A * A).sum(1), X, A.T, alpha=2 * gamma, out=out)
    return exponent.sub_(gamma * (X * X).sum(1, keepdim=True)).clamp_(max=0).exp_()


def _empty(n: int, m: int, like: Tensor) -> Tensor:
    """Room for an (n, m) matrix; on the CPU from NumPy, which asks for huge pages (fewer page faults)."""
    if like.device.type == "cpu":
        return torch.from_numpy(np.empty((n, m), like.numpy().dtype))
    return like.new_empty(n, m)


def row_blocks(n: int, size: int = BLOCK) -> Iterator[slice]:
    """Slices that cover 0 … n−1."""
    for start in range(0, n, size):
        yield slice(start, min(n, start + size))


def blocks_of(K: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Row blocks of K with their slices, for products."""
    for rows in row_blocks(len(K), 8 * BLOCK):
        yield rows, K[rows]


def choose_anchors(X: Tensor, n_anchors: int, how: str, random_state: np.random.RandomState) -> Tensor:
    """(m, d): random rows of X, or k-means centres."""
    n = len(X)
    n_anchors = min(n_anchors, n)
    if how == "random":
        picked = np.sort(random_state.choice(n, n_anchors, replace=False))
        return X[torch.from_numpy(picked).to(X.device)].clone()
    from sklearn.cluster import MiniBatchKMeans

    seed = random_state.randint(2**31 - 1)
    means = MiniBatchKMeans(n_anchors, n_init=1, batch_size=max(1024, n_anchors), random_state=seed)
    return torch.from_numpy(means.fit(X.cpu().numpy()).cluster_centers_).to(X)


def mean_squared_distance(X: Tensor, A: Tensor) -> float:
    """Mean of ‖x − a‖² over pairs, var(X) + var(A) + ‖mean(X) − mean(A)‖², from at most 8,192 rows of X."""
    some = X[:: max(1, len(X) // 8192)]
    (var_X, mean_X), (var_A, mean_A) = (torch.var_mean(Z.double(), 0, correction=0) for Z in (some, A))
    return float(var_X.sum() + var_A.sum() + (mean_X - mean_A).square().sum())


# --- Products with K --------------------------------------------------------------------------------------


def gram(K: Tensor) -> Tensor:
    """KᵀK (m, m) float64: products in the type of K within a block, sums in float64 across blocks."""
    m = K.shape[1]
    quarters = [slice(m * i // 4, m * (i + 1) // 4) for i in range(4)]
    G = torch.zeros(m, m, dtype=torch.float64, device=K.device)
    for rows in row_blocks(len(K), 16 * BLOCK):
        for part in quarters:  # on and right of the diagonal only: 0.6 of the work
            G[part, part.start :] += K[rows, part].T @ K[rows, part.start :]
    for part in quarters:
        G[part.stop :, part] = G[part, part.stop :].T
    return G


def signs(packed: NDArray[np.uint8], r: int, rows: slice, like: Tensor) -> Tensor:
    """Rows of packed codes as ±1 (rows, r), of the type and on the device of ``like``."""
    bits = np.unpackbits(packed[rows], axis=1, count=r)
    return torch.from_numpy(bits).to(like).mul_(2).sub_(1)


@dataclass
class Whitening:
    """KᵀK + ρI = L Lᵀ, factored once; ρ is ``ridge`` times the mean of its diagonal."""

    L: Tensor  # (m, m) float64, lower
    rho: float

    @classmethod
    def of(cls, G: Tensor, ridge: float) -> Whitening:
        """Factor G + ρI (G changes), with a larger ρ if rounding leaves it short of positive definite."""
        scale, rho = float(G.diagonal().mean()), 0.0
        for boost in (1.0, 1e2, 1e4, 1e6):
            G.diagonal().add_(ridge * boost * scale - rho)
            rho = ridge * boost * scale
            L, failed = torch.linalg.cholesky_ex(G)
            if not failed:
                return cls(L, rho)
        raise ValueError("the kernel features of X are degenerate: KᵀK cannot be factored; raise ridge")

    def solve(self, B: Tensor) -> Tensor:
        """(KᵀK + ρI)⁻¹ B."""
        return torch.cholesky_solve(B.double(), self.L)

    def gram(self) -> Tensor:
        """KᵀK."""
        G = self.L @ self.L.T
        G.diagonal().sub_(self.rho)
        return G

    def inverse_factor(self) -> Tensor:
        """L⁻¹."""
        eye = torch.eye(len(self.L), dtype=self.L.dtype, device=self.L.device)
        return torch.linalg.solve_triangular(self.L, eye, upper=False)


# --- Spectral start ---------------------------------------------------------------------------------------


class Relaxation:
    """The relaxed problem of one bit after another: max (Kw)ᵀ (rS − H_k H_kᵀ) (Kw) with ‖Kw‖² = n.

    With x = Lᵀw the matrix of the problem is r·L⁻¹KᵀSKL⁻ᵀ − VVᵀ, V = L⁻¹KᵀH_k: its leading eigenvector lies
    in the span of the factors of S (at most l + 1 of them) and of the k columns of V. We keep an orthonormal
    basis B of that span and solve a problem of its size.
    """

    def __init__(self, K: Tensor, white: Whitening, S: Similarity, r: int) -> None:
        self.n = len(K)
        L_inv = white.inverse_factor()
        PtK, RtK = S.project(blocks_of(K))
        C_P, C_R = L_inv @ PtK.T, L_inv @ RtK.T  # (m, l)
        self.B = _range(C_P)  # (m, p)
        T = r * (self.B.T @ C_P) @ (C_R.T @ self.B)  # (p, p): the problem in the basis B
        self.T = (T + T.T) / 2
        self.L_inv = L_inv.to(K.dtype)

    def best(self) -> Tensor:
        """w (m,) of the next bit."""
        x = self.B @ _leading_eigenvector(self.T)
        x *= torch.sign(x[x.abs().argmax()])  # of the two signs, one that does not depend on the basis
        return (self.n**0.5 * x).to(self.L_inv.dtype) @ self.L_inv  # L⁻ᵀ x

    def subtract(self, Kth: Tensor, weight: float = 1.0) -> None:
        """Take a bit h into H_k, given Kᵀh up to the factor ``weight``."""
        v = weight * (self.L_inv @ Kth).double()  # L⁻¹ Kᵀ h
        self.B, self.T = _deflate(self.B, self.T, v)


def spectral_start(K: Tensor, white: Whitening, S: Similarity, r: int, random_state: np.random.RandomState) -> Tensor:
    """W (m, r) of the relaxed problem, bit by bit.

    KᵀSK is exact; for more than ``START_ROWS`` rows KᵀH_k is estimated from that many random rows, so that a bit
    costs no pass over K.
    """
    relaxed = Relaxation(K, white, S, r)
    rows, weight = _sample_rows(K, random_state)
    W = []
    for _ in range(r):
        w = relaxed.best()
        W.append(w)
        relaxed.subtract(signs_product(K, w, rows), weight)
    return torch.stack(W, 1)


def signs_product(K: Tensor, w: Tensor, rows: Tensor) -> Tensor:
    """Kᵀ sgn(K w) over some rows of K."""
    if K.device.type == "cpu":
        return torch.from_numpy(_signs_product(K.numpy(), w.numpy(), rows.numpy()))
    K = K[rows]
    return K.T @ torch.where(K @ w >= 0, 1.0, -1.0).to(K.dtype)


@njit(parallel=True, cache=True, fastmath=True)
def _signs_product(K: Any, w: Any, rows: Any) -> Any:
    """One pass over K, each row used twice while it is in cache (two products read it from memory twice)."""
    n, m = len(rows), K.shape[1]
    chunks = 64
    size = (n + chunks - 1) // chunks
    partial = np.zeros((chunks, m), K.dtype)
    for c in prange(chunks):
        for i in rows[c * size : (c + 1) * size]:
            f = K[i, 0] * w[0]
            for j in range(1, m):
                f += K[i, j] * w[j]
            if f >= 0:
                for j in range(m):
                    partial[c, j] += K[i, j]
            else:
                for j in range(m):
                    partial[c, j] -= K[i, j]
    return partial.sum(axis=0)


def _sample_rows(K: Tensor, random_state: np.random.RandomState) -> tuple[Tensor, float]:
    """Numbers of the rows for KᵀH, and the weight each stands for."""
    n, m = K.shape
    size = max(START_ROWS, 8 * m)  # with few rows an anchor, signs fitted to those rows would not be typical
    if n <= size:
        return torch.arange(n, device=K.device), 1.0
    picked = np.sort(random_state.choice(n, size, replace=False))
    return torch.from_numpy(picked).to(K.device), n / size


def _range(C: Tensor) -> Tensor:
    """Orthonormal basis (m, p) of the columns of C."""
    U, s, _ = torch.linalg.svd(C, full_matrices=False)
    return U[:, s > 1e-10 * s[0].clamp(min=1e-300)] if s[0] > 0 else U[:, :1]


def _leading_eigenvector(T: Tensor) -> Tensor:
    """Eigenvector of the largest eigenvalue of a symmetric matrix."""
    if len(T) <= 256:
        return torch.linalg.eigh(T).eigenvectors[:, -1]
    start = np.ones(len(T))  # a fixed start keeps Lanczos deterministic
    return torch.from_numpy(eigsh(T.cpu().numpy(), k=1, which="LA", v0=start, tol=1e-8)[1][:, 0]).to(T)


def _deflate(B: Tensor, T: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Subtract vvᵀ from the problem, adding what of v lies outside B to the basis."""
    t = B.T @ v
    rest = v - B @ t
    again = B.T @ rest  # twice is enough (Gram–Schmidt)
    rest, t = rest - B @ again, t + again
    length = rest.norm()
    if B.shape[1] < len(B) and length > 1e-8 * v.norm():
        B = torch.cat([B, (rest / length)[:, None]], 1)
        T = torch.nn.functional.pad(T, (0, 1, 0, 1))
        t = torch.cat([t, length[None]])
    return B, T - torch.outer(t, t)


# --- Polish -----------------------------------------------------------------------------------------------

POLISH_ROWS = 100_000  # of more rows a sample is enough, and its arrays stay small


def polish(
    K: Tensor, G: Tensor, S: Similarity, W: Tensor, n_steps: int, random_state: np.random.RandomState
) -> Tensor:
    """W (m, r) whose codes come nearer to S: accelerated gradient steps on ‖rS − ΦΦᵀ‖², Φ = tanh(KW), for all bits.

    The F-step fits F to H, one bit at a time; this fits what codes are for. Steps are taken in the coordinates in
    which KᵀK + ρI is the identity. ρ falls with the rows there are for an anchor: with few of them W would learn the
    rows by heart. ``G`` is KᵀK. Two products with K a step.
    """
    n, m = K.shape
    if n > POLISH_ROWS:
        picked = torch.from_numpy(np.sort(random_state.choice(n, POLISH_ROWS, replace=False))).to(K.device)
        K, S = K[picked], S.rows(picked)
    L_inv = Whitening.of(G.clone(), 0.05 * m / len(K)).inverse_factor().to(K.dtype) * (n / len(K)) ** 0.5
    F = K @ W
    scale = 1 / float(F.double().square().mean().sqrt())  # as in the relaxed problem: ‖Kw‖² = n
    W, F = scale * W, scale * F
    W_before, F_before, loss_before, t = W, F, float("inf"), 1.0
    curvature = len(K) * W.shape[1] / 64  # too small: the first steps find what it has to be
    for _ in range(n_steps):
        t, beta = _nesterov(t)
        V, F_V = W + beta * (W - W_before), F + beta * (F - F_before)
        loss_V, slope = smooth_loss(F_V, S)
        grad = K.T @ slope
        D = L_inv.T @ (L_inv @ grad)
        fall, KD = float((grad.double() * D.double()).sum()), K @ D
        while (loss := smooth_loss(F_V - KD / curvature, S)[0]) > loss_V - fall / (2 * curvature) + 1e-6 * abs(
            loss_V
        ):
            curvature *= 2
        W_before, F_before = W, F
        W, F = V - D / curvature, F_V - KD / curvature
        if loss > loss_before:  # the momentum has carried it past: start anew from here
            t, W_before, F_before = 1.0, W, F
        loss_before = loss
    return W


def _nesterov(t: float) -> tuple[float, float]:
    """The next t, and the share β of the last move that is made again."""
    after = (1 + (1 + 4 * t * t) ** 0.5) / 2
    return after, (t - 1) / after


def smooth_loss(F: Tensor, S: Similarity) -> tuple[float, Tensor]:
    """‖rS − ΦΦᵀ‖² less its constant, −2r tr(ΦᵀSΦ) + ‖ΦᵀΦ‖² for Φ = tanh F, and its slope in F."""
    r = F.shape[1]
    phi = torch.tanh(F)
    S_phi, gram = S.times(phi), phi.T @ phi
    loss = -2 * r * float((phi.double() * S_phi.double()).sum()) + float(gram.double().square().sum())
    return loss, 4 * (phi @ gram - r * S_phi) * (1 - phi * phi)


# --- F-step -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loss:
    """l(h, f) of Eq. (2) with h = ±1, by what the two steps need of it.

    ``half_difference`` and ``half_sum`` are ½[l(1, f) ∓ l(−1, f)]: the linear and the constant term of the
    H-step. ``target`` is the minimiser of the quadratic with curvature ``curvature`` that touches l at f and
    bounds it from above: regressing on it never raises the loss.
    """

    half_difference: Callable[[Tensor], Tensor]
    half_sum: Callable[[Tensor], Tensor]
    target: Callable[[Tensor, Tensor], Tensor]
    curvature: float
    one_solve: bool = False


def _hinge(f: Tensor) -> Tensor:
    return (1 - f).clamp(min=0).square()


LOSSES = {
    # (h − f)²
    "ridge": Loss(
        half_difference=lambda f: -2 * f,
        half_sum=lambda f: 1 + f * f,
        target=lambda h, f: h,
        curvature=2.0,
        one_solve=True,
    ),
    # max(0, 1 − hf)²
    "hinge": Loss(
        half_difference=lambda f: (_hinge(f) - _hinge(-f)) / 2,
        half_sum=lambda f: (_hinge(f) + _hinge(-f)) / 2,
        target=lambda h, f: f + h * (1 - h * f).clamp(min=0),
        curvature=2.0,
    ),
    # log(1 + exp(−hf))
    "logistic": Loss(
        half_difference=lambda f: -f / 2,
        half_sum=lambda f: torch.nn.functional.softplus(f) - f / 2,
        target=lambda h, f: f + 4 * h * torch.sigmoid(-h * f),
        curvature=0.25,
    ),
}


class LinearStep:
    """The F-step with F = K W: lowers Σ l(h_ik, (KW)_ik) + ½ curvature·ρ‖W‖² over W (m, r).

    Ridge regression is one solve, W = (KᵀK + ρI)⁻¹ KᵀH. The other losses take ``N_STEPS`` of the same solve
    towards their working targets, starting from the last W; none of these steps raises the loss.
    """

    N_STEPS = 10

    def __init__(self, K: Tensor, white: Whitening, loss: Loss, r: int) -> None:
        self.K, self.white, self.loss, self.r = K, white, loss, r
        self.W = K.new_zeros(K.shape[1], r)
        self.q: Tensor | None = None  # (r, n), made once: it is the largest array beside K

    def start(self, W: Tensor) -> None:
        """Begin with F = K W."""
        self.W = W

    def fit(self, packed: NDArray[np.uint8]) -> None:
        """Fit F to codes H."""
        for _ in range(1 if self.loss.one_solve else self.N_STEPS):
            KtT = torch.zeros(self.W.shape, dtype=torch.float64, device=self.K.device)
            for rows, K in blocks_of(self.K):
                h = signs(packed, self.r, rows, K)
                KtT += K.T @ (h if self.loss.one_solve else self.loss.target(h, K @ self.W))
            self.W = self.white.solve(KtT).to(self.K.dtype)

    def linear_terms(self, scale: float) -> tuple[Tensor, float]:
        """q (r, n) of the H-step and the rest of the loss, which H does not change; ``scale`` is nν."""
        if self.q is None:
            self.q = self.K.new_empty(self.r, len(self.K))
        constant = linear_terms(F_blocks(self.K, self.W), self.loss, scale, out=self.q)
        weights = self.loss.curvature / 2 * self.white.rho * float(self.W.double().square().sum())
        return self.q, constant + scale * weights


class ClassifierStep:
    """The F-step with any scikit-learn classifier, one clone a bit, on the kernel features.

    f is its ``decision_function`` (or 2p − 1 from ``predict_proba``), scored by the squared hinge. A bit keeps
    its former classifier when the new one has the larger loss, so that the objective does not rise.
    """

    def __init__(self, K: Tensor, classifier: Any, r: int) -> None:
        self.K, self.classifier, self.r = K, classifier, r
        self.loss = LOSSES["hinge"]
        self.F = np.zeros((len(K), r), np.float32)
        self.models: list[Any] = []

    def start(self, W: Tensor) -> None:
        """Begin with F = K W."""
        self.F = (self.K @ W).cpu().numpy().astype(np.float32)

    def fit(self, packed: NDArray[np.uint8]) -> None:
        """Fit F to codes H."""
        from sklearn.base import clone

        K, H = self.K.cpu().numpy(), codes.unpack(packed, self.r)
        former = self.models or [None] * self.r
        self.models = list(former)
        for k, h in enumerate(H.T):
            model = clone(self.classifier).fit(K, h)
            f = decide(model, K)
            if former[k] is None or self._loss(h, f) <= self._loss(h, self.F[:, k]):
                self.models[k], self.F[:, k] = model, f

    def linear_terms(self, scale: float) -> tuple[Tensor, float]:
        """q (r, n) of the H-step and the rest of the loss."""
        q = torch.empty(self.r, len(self.K), device=self.K.device)
        blocks = ((rows, torch.from_numpy(self.F[rows]).to(q.device)) for rows in row_blocks(len(self.K)))
        return q, linear_terms(blocks, self.loss, scale, out=q)

    @staticmethod
    def _loss(h: NDArray[Any], f: NDArray[Any]) -> float:
        return float(np.square(np.maximum(0, 1 - h * f.astype(np.float64))).sum())


def decide(model: Any, K: NDArray[Any]) -> NDArray[np.float32]:
    """f (n,) of a binary classifier with classes −1 and +1."""
    if hasattr(model, "decision_function"):
        return np.asarray(model.decision_function(K), np.float32)
    return np.asarray(2 * model.predict_proba(K)[:, 1] - 1, np.float32)


def linear_terms(F_blocks: Iterator[tuple[slice, Tensor]], loss: Loss, scale: float, out: Tensor) -> float:
    """q = scale·½[l(1, F) − l(−1, F)] into ``out`` (r, n), and scale·Σ ½[l(1, F) + l(−1, F)], from blocks of F."""
    constant = 0.0
    for rows, F in F_blocks:
        out[:, rows] = (scale * loss.half_difference(F)).T
        constant += float(loss.half_sum(F).sum(dtype=torch.float64))
    return scale * constant


def F_blocks(K: Tensor, W: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """F = K W by row blocks."""
    for rows, block in blocks_of(K):
        yield rows, block @ W


def pack_F(K: Tensor, W: Tensor) -> NDArray[np.uint8]:
    """sgn(K W), packed."""
    return np.concatenate([codes.pack(F.cpu().numpy()) for _, F in F_blocks(K, W)])
