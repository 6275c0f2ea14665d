"""The kernel hash function F(x) = Wᵀ k(x): anchors, feature map, spectral start and F-step.

K (n, m) holds the centred features of the training rows: a tensor, or ``KernelRows`` where it has no room. All that
touches it runs over blocks of rows, and what is summed over rows goes through a ``parallel.Ranks``.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numba import njit, prange
from numpy.typing import NDArray
from scipy.linalg import eigh_tridiagonal
from torch import Tensor

from dish import codes
from dish.io.rows import Rows, scratch
from dish.io.tables import release
from dish.parallel import ALONE, Ranks
from dish.progress import LONG, progress
from dish.similarity.labelled import Classes, Similarity
from dish.solver.cbcd import Columns, pack_signs

KernelFunction = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]
BLOCK = 512  # rows of K made at a time: with 1,000 anchors 2 MB, which stays in cache
LEADING = 256  # of more label directions the spectral start keeps that many, or 2r if that is more
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
    _prepared: tuple[Tensor, ...] = field(default=(), repr=False)  # what every block of rows needs of the anchors

    @property
    def m(self) -> int:
        """Features of a row."""
        return self.anchors.shape[1] if self.kernel == "linear" else len(self.anchors)

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
        if self.kernel == "linear":
            return X.clone()
        if not self._prepared:
            self._prepared = prepare_rbf(self.anchors, self.gamma)
        return rbf(X, self._prepared, self.gamma, out)

    def __call__(self, X: Tensor) -> Tensor:
        """Centred features: (rows, d) → (rows, m)."""
        assert self.mean is not None
        return self.raw(X).sub_(self.mean)

    def fit_rows(self, X: Rows, device: torch.device, budget: int | None = None, ranks: Ranks = ALONE) -> Any:
        """K (n, m) of the training rows, and ``mean`` on the way.

        K is a tensor if it takes no more than ``budget`` bytes (None: whatever it takes), else ``KernelRows``.
        """
        n, m = len(X), self.m
        room = None if device.type == "cuda" else budget
        if device.type == "cuda":
            room = int(0.8 * torch.cuda.mem_get_info(device)[0])
        size = torch.finfo(X.dtype).bits // 8
        if room is None or n * m * size <= room:
            K: Any = _empty(n, m, X.dtype, device)
            keep: Tensor | None = K
        else:
            K = KernelRows(X, self, device)
            with ranks.raise_together():
                K.decide()
            keep = K.stored
        total = torch.zeros(m, dtype=torch.float64, device=device)
        finite = []
        with (
            ranks.raise_together(),
            progress("kernel features", n, worth=n >= LONG or n * X.shape[1] > 1 << 24) as step,
        ):
            for rows in row_blocks(n, rows_at_a_time(device, X.shape[1], m)):
                on_place = keep is not None and keep.device.type == device.type
                x = X.read(rows, device, check=device.type == "cpu")
                if device.type == "cuda":  # asked for at the end: an answer now would wait for all that is under way
                    finite.append(x.isfinite().all())
                block = self.raw(x, out=keep[rows] if keep is not None and on_place else None)
                if keep is not None and (not on_place or block.data_ptr() != keep[rows].data_ptr()):
                    keep[rows] = block
                total += block.sum(0, dtype=torch.float64)
                X.release(rows)
                if isinstance(K, KernelRows):
                    K.release(rows)
                step(rows.stop - rows.start)
            if finite and not bool(torch.stack(finite).all()):
                for rows in row_blocks(n):
                    X.read(rows, device)  # says which row it is
        sums, n_all = ranks.sum(total, torch.tensor([float(n)], device=device))
        self.mean = (sums / n_all).to(X.dtype)
        return K if isinstance(K, KernelRows) else K.sub_(self.mean)


class KernelRows:
    """K (n, m) that has no room in memory: in a scratch file, or made anew in every pass, whichever is faster."""

    def __init__(self, X: Rows, features: FeatureMap, device: torch.device) -> None:
        self.X, self.features, self.device = X, features, device
        self.shape = (len(X), features.m)
        self.dtype = X.dtype
        self.file: np.memmap[Any, Any] | None = None

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def stored(self) -> Tensor | None:
        """The scratch file as a tensor: features before centring."""
        return None if self.file is None else torch.from_numpy(self.file)

    def decide(self) -> None:
        """Take a scratch file if a row is read from it sooner than it is made."""
        n, m = self.shape
        some = slice(0, min(n, 4 * BLOCK))
        np_dtype = np.dtype(str(self.dtype).removeprefix("torch."))
        start = time.perf_counter()
        block = self.features.raw(self.X.read(some, self.device)).cpu().numpy()
        made = time.perf_counter() - start
        try:
            trial = scratch(len(block), m, np_dtype)
            start = time.perf_counter()
            trial[:] = block
            trial.flush()  # to the disk and back: what a pass over a file larger than memory pays
            release(trial)
            trial.sum()
            if time.perf_counter() - start < made:
                self.file = scratch(n, m, np_dtype)
        except OSError as error:
            folder = tempfile.gettempdir()
            warnings.warn(f"no room for a scratch file in {folder} ({error}): features are made anew", stacklevel=2)

    def release(self, rows: slice) -> None:
        """Let go of rows of the scratch file."""
        if self.file is not None:
            release(self.file[rows])

    def blocks(self, size: int) -> Iterator[tuple[slice, Tensor]]:
        """Centred row blocks with their slices."""
        assert self.features.mean is not None
        for rows in row_blocks(len(self), size):
            stored = self.stored
            if stored is None:
                yield rows, self.features(self.X.read(rows, self.device))
                self.X.release(rows)
            else:
                yield rows, stored[rows].to(self.device) - self.features.mean
                self.release(rows)

    def __getitem__(self, picked: Tensor) -> Tensor:
        """Some rows, centred."""
        assert self.features.mean is not None
        if self.file is None:
            return self.features(self.X.take(picked.cpu().numpy(), self.device))
        rows = torch.from_numpy(self.file[picked.cpu().numpy()]).to(self.device) - self.features.mean
        self.release(slice(0, len(self)))
        return rows


KernelMatrix = Tensor | KernelRows


def prepare_rbf(A: Tensor, gamma: float) -> tuple[Tensor, Tensor, Tensor]:
    """Centre c of the anchors, (A − c)ᵀ, and −γ‖a − c‖²: distances do not change, cancellation in float32 does."""
    centre = A.mean(0)
    A = A - centre
    return centre, A.T, -gamma * (A * A).sum(1)


def rbf(X: Tensor, prepared: tuple[Tensor, ...], gamma: float, out: Tensor | None = None) -> Tensor:
    """exp(−γ‖x − a‖²) for all pairs: (rows, d) and prepared anchors → (rows, m)."""
    centre, At, a = prepared
    X = X - centre
    # −γ‖x − a‖² = 2γ x·a − γ‖a‖² − γ‖x‖²
    exponent = torch.addmm(a, X, At, alpha=2 * gamma, out=out)
    return exponent.sub_(gamma * (X * X).sum(1, keepdim=True)).clamp_(max=0).exp_()


def _empty(n: int, m: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Room for an (n, m) matrix; on the CPU from NumPy, which asks for huge pages (fewer page faults)."""
    if device.type == "cpu":
        return torch.from_numpy(np.empty((n, m), str(dtype).removeprefix("torch.")))
    return torch.empty(n, m, dtype=dtype, device=device)


def rows_at_a_time(device: torch.device, *widths: int) -> int:
    """Rows of a block: what stays in cache on a CPU, a quarter of a gigabyte on a GPU."""
    return BLOCK if device.type == "cpu" else max(BLOCK, (1 << 26) // max(widths))


def row_blocks(n: int, size: int = BLOCK) -> Iterator[slice]:
    """Slices that cover 0 … n−1."""
    for start in range(0, n, size):
        yield slice(start, min(n, start + size))


def blocks_of(K: KernelMatrix, size: int | None = None, title: str = "") -> Iterator[tuple[slice, Tensor]]:
    """Row blocks of K with their slices, for products; a pass with a title shows how far it is."""
    size = size or max(8 * BLOCK, rows_at_a_time(K.device, K.shape[1]))
    blocks = ((rows, K[rows]) for rows in row_blocks(len(K), size)) if isinstance(K, Tensor) else K.blocks(size)
    with progress(title, len(K), worth=bool(title) and len(K) >= LONG) as step:
        for rows, block in blocks:
            yield rows, block
            step(len(block))


def choose_anchors(X: Tensor, n_anchors: int, how: str, random_state: np.random.RandomState) -> Tensor:
    """(m, d): random rows of X, or k-means centres."""
    return find_anchors(Rows(X), n_anchors, how, random_state, X.device)


def find_anchors(
    X: Rows,
    n_anchors: int,
    how: str,
    random_state: np.random.RandomState,
    device: torch.device,
    ranks: Ranks = ALONE,
) -> Tensor:
    """Anchors (m, d) from the rows of all processes: random rows, or k-means centres (of at most 50 rows each)."""
    n = ranks.offset_and_total(len(X))[1]
    n_anchors = min(n_anchors, n)
    if how == "random":
        picked = np.sort(random_state.choice(n, n_anchors, replace=False))
        return take_everywhere(X, picked, device, ranks)
    from sklearn.cluster import MiniBatchKMeans

    seed = random_state.randint(2**31 - 1)
    means = MiniBatchKMeans(n_anchors, n_init=1, batch_size=max(1024, n_anchors), random_state=seed)
    most = 50 * n_anchors if X.on_disk or ranks.world > 1 else n
    picked = np.arange(n) if n <= most else np.sort(random_state.choice(n, most, replace=False))
    some = take_everywhere(X, picked, device, ranks)
    return torch.from_numpy(means.fit(some.cpu().numpy()).cluster_centers_).to(some)


def take_everywhere(X: Rows, picked: NDArray[np.intp], device: torch.device, ranks: Ranks) -> Tensor:
    """Rows by their numbers among those of all processes."""
    mine, rows = local_rows(len(X), picked, ranks)
    with ranks.raise_together():
        found = X.take(mine, device)
    if ranks.world == 1:
        return found
    out = torch.zeros(len(picked), X.shape[1], dtype=X.dtype, device=device)
    out[rows] = found
    return ranks.total(out).to(X.dtype)


def local_rows(n: int, picked: NDArray[np.intp], ranks: Ranks) -> tuple[NDArray[np.intp], slice]:
    """Of ascending numbers of rows those of this process, as its own numbers, and which of them they are."""
    start = ranks.offset_and_total(n)[0]
    low, high = np.searchsorted(picked, [start, start + n])
    return picked[low:high] - start, slice(int(low), int(high))


def mean_squared_distance(X: Rows, A: Tensor, ranks: Ranks = ALONE) -> float:
    """Mean of ‖x − a‖² over pairs, which is that of ‖x − c‖² + ‖a − c‖² with c the mean of A, from ≤ 16,384 rows."""
    n = ranks.offset_and_total(len(X))[1]
    mine, _ = local_rows(len(X), np.arange(0, n, max(1, n // 8192)), ranks)
    centre = A.double().mean(0)
    with ranks.raise_together():
        some = X.take(mine, A.device)
    squares = sum((block.double() - centre).square().sum() for block in some.split(1024)) if len(mine) else 0.0
    sums = ranks.total(torch.tensor([float(squares), len(mine)], dtype=torch.float64))
    return float(sums[0] / sums[1]) + float((A.double() - centre).square().sum(1).mean())


# --- Products with K --------------------------------------------------------------------------------------


def gram(K: KernelMatrix, ranks: Ranks = ALONE) -> Tensor:
    """KᵀK (m, m) float64: products in the type of K within a block, sums in float64 across blocks."""
    m = K.shape[1]
    quarters = [slice(m * i // 4, m * (i + 1) // 4) for i in range(4)]
    G = torch.zeros(m, m, dtype=torch.float64, device=K.device)
    for _, block in blocks_of(K, 16 * BLOCK, "KᵀK"):
        for part in quarters:  # on and right of the diagonal only: 0.6 of the work
            G[part, part.start :] += block[:, part].T @ block[:, part.start :]
    for part in quarters:
        G[part.stop :, part] = G[part, part.stop :].T
    return ranks.total(G)


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
    basis B of that span (of its leading part if l is large: r bits use no more) and solve a problem of its size,
    always on the CPU: it is small.
    """

    def __init__(self, K: KernelMatrix, white: Whitening, S: Similarity, r: int, ranks: Ranks = ALONE) -> None:
        self.n = ranks.offset_and_total(len(K))[1]
        self.L_inv = white.inverse_factor()
        A = S.group_totals(blocks_of(K), ranks) if isinstance(S, Classes) else None  # Eᵀ K
        PtK, RtK = S.project(blocks_of(K), ranks) if A is None else (S.Pt(A), S.Rt(A))
        self.M = None if A is None else (A @ self.L_inv.T).cpu().numpy()  # (g, m): EᵀK L⁻ᵀ
        C_P, C_R = self.L_inv @ PtK.T, self.L_inv @ RtK.T  # (m, l)
        most = max(LEADING, 2 * r)
        B = _range(C_P) if min(C_P.shape) <= most else _leading_space(C_P, C_R, most)  # (m, p)
        T = r * (B.T @ C_P) @ (C_R.T @ B)  # (p, p): the problem in the basis B
        m, self.p = B.shape
        self.Bt, self.T = np.zeros((self.p + r, m)), np.zeros((self.p + r, self.p + r))  # r bits will add to them
        self.Bt[: self.p], self.T[: self.p, : self.p] = B.T.cpu().numpy(), ((T + T.T) / 2).cpu().numpy()

    def best(self) -> NDArray[np.float64]:
        """x (m,) of the next bit, of length √n."""
        x = leading_eigenvector(self.T[: self.p, : self.p], tolerance=1e-5) @ self.Bt[: self.p]
        x *= np.sign(x[abs(x).argmax()])  # of the two signs, one that does not depend on the basis
        return np.asarray(self.n**0.5 * x)

    def weights(self, x: NDArray[np.float64]) -> Tensor:
        """w = L⁻ᵀ x: (m,) → (m,), or (r, m) → (r, m)."""
        return torch.from_numpy(x).to(self.L_inv) @ self.L_inv

    def subtract(self, Kth: Tensor, weight: float = 1.0) -> None:
        """Take a bit h into H_k, given Kᵀh up to the factor ``weight``."""
        self.deflate(weight * (self.L_inv @ Kth.to(self.L_inv)).cpu().numpy())

    def deflate(self, v: NDArray[np.float64]) -> None:
        """T − ttᵀ with t = Bᵀv, given v = L⁻¹Kᵀh; what of v lies outside B is added to the basis."""
        B, rest = self.Bt[: self.p], v.copy()
        for _ in range(2):  # twice is enough (Gram–Schmidt)
            rest -= (B @ rest) @ B
        length = np.linalg.norm(rest)
        if self.p < len(v) and length > 1e-8 * np.linalg.norm(v):
            self.Bt[self.p] = rest / length
            self.p += 1
        t = self.Bt[: self.p] @ v
        self.T[: self.p, : self.p] -= np.outer(t, t)


def spectral_start(
    K: KernelMatrix,
    white: Whitening,
    S: Similarity,
    r: int,
    random_state: np.random.RandomState,
    ranks: Ranks = ALONE,
) -> tuple[Tensor, Tensor]:
    """W (m, r) of the relaxed problem, bit by bit, and the first codes, packed.

    Rows of a class share a row of S, and here their code: the sign of their mean F. All sums over rows are then sums
    over classes, exact and cheap, and the codes do not hang on the last digits of F. For other similarities, which
    come in degrees, codes are the signs of F: equal codes for equal labels end in worse optima there. For more than
    ``START_ROWS`` rows KᵀH_k is then estimated from that many random rows, so that a bit costs no pass over K, and
    all processes get these rows and do the same.
    """
    relaxed = Relaxation(K, white, S, r, ranks)
    if relaxed.M is None:
        W = _start_by_rows(relaxed, K, r, random_state, ranks)
        return W, pack_F(K, W)
    X = np.empty((r, K.shape[1]))
    H = np.empty((S.n_groups, r), bool)
    with progress("spectral start", r, worth=relaxed.n >= LONG) as step:
        for k in range(r):
            X[k] = relaxed.best()
            H[:, k] = relaxed.M @ X[k] >= 0
            relaxed.deflate(np.where(H[:, k], 1.0, -1.0) @ relaxed.M)
            step(1)
    codes_of_classes = torch.from_numpy(np.packbits(H, axis=1)).to(K.device)
    return relaxed.weights(X).T.to(K.dtype).contiguous(), codes_of_classes[S.row_group.long()]


def _start_by_rows(
    relaxed: Relaxation, K: KernelMatrix, r: int, random_state: np.random.RandomState, ranks: Ranks
) -> Tensor:
    """W (m, r), with the codes of rows in place of those of groups."""
    some, weight = _sample_rows(K, random_state, ranks)
    W = []
    for _ in range(r):
        w = relaxed.weights(relaxed.best()).to(K.dtype)
        W.append(w)
        relaxed.subtract(signs_product(some, w), weight)
    return torch.stack(W, 1)


def signs_product(K: Tensor, w: Tensor) -> Tensor:
    """Kᵀ sgn(K w)."""
    if K.device.type == "cpu":
        return torch.from_numpy(_signs_product(K.numpy(), w.numpy()))
    return K.T @ torch.where(K @ w >= 0, 1.0, -1.0).to(K.dtype)


@njit(parallel=True, cache=True, fastmath=True)
def _signs_product(K: Any, w: Any) -> Any:
    """One pass over K, each row used twice while it is in cache (two products read it from memory twice)."""
    n, m = K.shape
    chunks = 64
    size = (n + chunks - 1) // chunks
    partial = np.zeros((chunks, m), K.dtype)
    for c in prange(chunks):
        for i in range(c * size, min(n, (c + 1) * size)):
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


def _sample_rows(K: KernelMatrix, random_state: np.random.RandomState, ranks: Ranks) -> tuple[Tensor, float]:
    """Rows of K for KᵀH, the same on all processes, and the weight each stands for."""
    n, m = ranks.offset_and_total(len(K))[1], K.shape[1]
    size = max(START_ROWS, 8 * m)  # with few rows an anchor, signs fitted to those rows would not be typical
    if n <= size:
        if ranks.world == 1 and isinstance(K, Tensor):
            return K, 1.0
        picked = np.arange(n)
    else:
        picked = np.sort(random_state.choice(n, size, replace=False))
    mine, rows = local_rows(len(K), picked, ranks)
    found = K[torch.from_numpy(mine).to(K.device)]
    if ranks.world == 1:
        return found, n / len(picked)
    out = torch.zeros(len(picked), m, dtype=K.dtype, device=K.device)
    out[rows] = found
    return ranks.total(out).to(K.dtype), n / len(picked)


def _range(C: Tensor) -> Tensor:
    """Orthonormal basis (m, p) of the columns of C."""
    U, s, _ = torch.linalg.svd(C, full_matrices=False)
    return U[:, s > 1e-10 * s[0].clamp(min=1e-300)] if s[0] > 0 else U[:, :1]


def _leading_space(C_P: Tensor, C_R: Tensor, p: int) -> Tensor:
    """Orthonormal basis (m, p) of a space that holds the leading eigenvectors of C_P C_Rᵀ: subspace iteration."""
    draws = torch.from_numpy(np.random.default_rng(0).standard_normal((len(C_P), p))).to(C_P)
    B = torch.linalg.qr(draws).Q
    for _ in range(8):
        B = torch.linalg.qr(C_P @ (C_R.T @ B)).Q
    return B


def leading_eigenvector(T: NDArray[np.float64], steps: int = 120, tolerance: float = 1e-8) -> NDArray[np.float64]:
    """Eigenvector of the largest eigenvalue of a symmetric matrix, by Lanczos from a fixed start if it is large."""
    p = len(T)
    if p <= 96:
        return np.asarray(np.linalg.eigh(T)[1][:, -1])
    Q = np.zeros((steps + 1, p))
    alpha, beta = np.zeros(steps), np.zeros(steps)
    Q[0] = np.cos(np.arange(p)) + 2  # no symmetry that an eigenvector could be orthogonal to
    Q[0] /= np.linalg.norm(Q[0])
    for j in range(steps):
        v = T @ Q[j]
        alpha[j] = v @ Q[j]
        for _ in range(2):  # twice is enough (Gram–Schmidt)
            v -= (Q[: j + 1] @ v) @ Q[: j + 1]
        beta[j] = np.linalg.norm(v)
        last = j == min(steps, p) - 1 or beta[j] <= 1e-12 * abs(alpha[: j + 1]).max()
        if last or j % 8 == 7:
            value, s = eigh_tridiagonal(alpha[: j + 1], beta[:j], select="i", select_range=(j, j))
            if last or beta[j] * abs(s[-1, 0]) <= tolerance * abs(value[0]):
                break
        Q[j + 1] = v / beta[j]
    return np.asarray(s[:, 0] @ Q[: j + 1])


# --- Polish -----------------------------------------------------------------------------------------------

POLISH_ROWS = 100_000  # of more rows a sample is enough, and its arrays stay small


def polish(
    K: KernelMatrix,
    G: Tensor,
    S: Similarity,
    W: Tensor,
    n_steps: int,
    random_state: np.random.RandomState,
    ranks: Ranks = ALONE,
) -> Tensor:
    """W (m, r) whose codes come nearer to S: accelerated gradient steps on ‖rS − ΦΦᵀ‖², Φ = tanh(KW), for all bits.

    The F-step fits F to H, one bit at a time; this fits what codes are for. Steps are taken in the coordinates in
    which KᵀK + ρI is the identity. ρ falls with the rows there are for an anchor: with few of them W would learn the
    rows by heart. ``G`` is KᵀK. Two products with K a step.
    """
    m = K.shape[1]
    n = n_some = ranks.offset_and_total(len(K))[1]
    if n > POLISH_ROWS:
        n_some = POLISH_ROWS
        mine, _ = local_rows(len(K), np.sort(random_state.choice(n, n_some, replace=False)), ranks)
        picked = torch.from_numpy(mine).to(K.device)
        K, S = K[picked], S.rows(picked)
    elif not isinstance(K, Tensor):
        K = K[torch.arange(len(K))]
    L_inv = Whitening.of(G.clone(), 0.05 * m / n_some).inverse_factor().to(K.dtype) * (n / n_some) ** 0.5
    F = K @ W
    squares = float(ranks.total(F.double().square().sum()))
    scale = (n_some * W.shape[1] / squares) ** 0.5  # as in the relaxed problem: ‖Kw‖² = n
    W, F = scale * W, scale * F
    W_before, F_before, loss_before, t = W, F, float("inf"), 1.0
    curvature = n_some * W.shape[1] / 64  # too small: the first steps find what it has to be
    for _ in range(n_steps):
        t, beta = _nesterov(t)
        V, F_V = W + beta * (W - W_before), F + beta * (F - F_before)
        loss_V, slope = smooth_loss(F_V, S, ranks)
        grad = ranks.total(K.T @ slope).to(K.dtype)
        D = L_inv.T @ (L_inv @ grad)
        fall, KD = float((grad.double() * D.double()).sum()), K @ D
        enough = loss_V + 1e-6 * abs(loss_V)
        while (loss := smooth_loss(F_V - KD / curvature, S, ranks)[0]) > enough - fall / (2 * curvature):
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


def smooth_loss(F: Tensor, S: Similarity, ranks: Ranks = ALONE) -> tuple[float, Tensor]:
    """‖rS − ΦΦᵀ‖² less its constant, −2r tr(ΦᵀSΦ) + ‖ΦᵀΦ‖² for Φ = tanh F, and its slope in F."""
    r = F.shape[1]
    phi = torch.tanh(F)
    S_phi, gram = S.times(phi, ranks), ranks.total(phi.T @ phi).to(F.dtype)
    fit = ranks.total((phi.double() * S_phi.double()).sum())
    loss = -2 * r * float(fit) + float(gram.double().square().sum())
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

    def __init__(self, K: KernelMatrix, white: Whitening, loss: Loss, r: int, ranks: Ranks = ALONE) -> None:
        self.K, self.white, self.loss, self.r, self.ranks = K, white, loss, r, ranks
        self.W = torch.zeros(K.shape[1], r, dtype=K.dtype, device=K.device)
        self.q: Tensor | None = None  # (r, n), made once: it is the largest array beside K

    def start(self, W: Tensor) -> None:
        """Begin with F = K W."""
        self.W = W

    def fit(self, H: Columns) -> None:
        """Fit F to codes H."""
        for _ in range(1 if self.loss.one_solve else self.N_STEPS):
            KtT = torch.zeros(self.W.shape, dtype=torch.float64, device=self.K.device)
            for rows, K in blocks_of(self.K, title="F-step"):
                h = H.signs(rows, K)
                KtT += K.T @ (h if self.loss.one_solve else self.loss.target(h, K @ self.W))
            self.W = self.white.solve(self.ranks.total(KtT)).to(self.K.dtype)

    def linear_terms(self, scale: float) -> tuple[Tensor, float]:
        """q (r, n) of the H-step and the rest of the loss, which H does not change; ``scale`` is nν."""
        if self.q is None:
            self.q = torch.empty(self.r, len(self.K), dtype=self.K.dtype, device=self.K.device)
        part = linear_terms(F_blocks(self.K, self.W), self.loss, scale, out=self.q)
        constant = float(self.ranks.total(torch.tensor(part, dtype=torch.float64)))
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

    def fit(self, H: Columns) -> None:
        """Fit F to codes H."""
        from sklearn.base import clone

        K, signs = self.K.cpu().numpy(), codes.unpack(H.packed(), self.r)
        former = self.models or [None] * self.r
        self.models = list(former)
        for k, h in enumerate(signs.T):
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
    constant = torch.zeros((), dtype=torch.float64, device=out.device)
    for rows, F in F_blocks:
        out[:, rows] = (scale * loss.half_difference(F)).T
        constant += loss.half_sum(F).sum(dtype=torch.float64)
    return scale * float(constant)


def F_blocks(K: KernelMatrix, W: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """F = K W by row blocks."""
    for rows, block in blocks_of(K, title="F = KW"):
        yield rows, block @ W


def pack_F(K: KernelMatrix, W: Tensor) -> Tensor:
    """sgn(K W), packed, uint8 (n, ceil(r/8)) on the device of K."""
    out = torch.empty(len(K), codes.n_bytes(W.shape[1]), dtype=torch.uint8, device=K.device)
    for rows, F in F_blocks(K, W):
        out[rows] = torch.from_numpy(codes.pack(F.numpy())) if F.device.type == "cpu" else pack_signs(F)
    return out
