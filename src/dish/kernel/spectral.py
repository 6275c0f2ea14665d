"""The initial codes H: from the spectral relaxation, bit by bit; or random; or given by the user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh_tridiagonal

from dish import codes, threads
from dish.cbcd import pack_signs
from dish.cuda.graph import CudaGraph
from dish.errors import InputError
from dish.io.rows import local_rows
from dish.kernel.features import KernelMatrix, feature_blocks, pack_F
from dish.kernel.fit_data import FitData
from dish.lazy import Tensor, torch
from dish.machine import lost_threads, one_blas_thread
from dish.numba_lazy import njit
from dish.parallel import ALONE, Ranks
from dish.progress import progress
from dish.similarity import Classes

LEADING = 256  # with more label directions, the spectral start keeps the leading ones: this many, or 2r if larger
SQUARINGS = 30  # squarings of a matrix: equivalent to a billion power iterations
START_ROWS = 8192  # the spectral start estimates KᵀH from this many rows, or 8m if larger


class Relaxation:
    """The relaxed problem, solved for one bit after another: max (Kw)ᵀ (rS − H_k H_kᵀ) (Kw) with ‖Kw‖² = n.

    With x = Lᵀw, its matrix is r·L⁻¹KᵀSKL⁻ᵀ − VVᵀ with V = L⁻¹KᵀH_k. The leading eigenvector lies in the span of the
    factors of S (at most l + 1 vectors) and the k columns of V. We keep an orthonormal basis B of this span (of its
    leading part if l is large, since r bits need no more) and solve a problem of its size. This class works on the
    CPU; ``DeviceRelaxation`` is its GPU version.

    ``literal``: S without r, and the basis with all factors of S, as in the paper.
    """

    def __init__(self, data: FitData, r: int, literal: bool = False) -> None:
        K, S, white, ranks = data.K, data.S, data.white, data.ranks
        self.n = data.n
        self.L_inv = white.inverse_factor()
        A = data.class_totals if isinstance(S, Classes) else None  # Eᵀ K
        PtK, RtK = S.project(feature_blocks(K), ranks) if A is None else (S.Pt(A), S.Rt(A))
        self.M = None if A is None else A @ self.L_inv.T  # (g, m): EᵀK L⁻ᵀ
        C_P, C_R = self.L_inv @ PtK.T, self.L_inv @ RtK.T  # (m, l)
        most = max(LEADING, 2 * r)
        B = _range(C_P) if literal or min(C_P.shape) <= most else _leading_space(C_P, C_R, most)  # (m, p)
        T = (1 if literal else r) * (B.T @ C_P) @ (C_R.T @ B)  # (p, p): the problem in the basis B
        m, self.p = B.shape
        room = B.new_zeros(self.p + r, m), B.new_zeros(self.p + r, self.p + r)  # room for r more vectors
        room[0][: self.p], room[1][: self.p, : self.p] = B.T, (T + T.T) / 2
        self.Bt: Any
        self.T: Any
        self.Bt, self.T = (A.numpy() if A.device.type == "cpu" else A for A in room)

    def best(self) -> NDArray[np.float64]:
        """x (m,) of the next bit, of length √n."""
        x = leading_eigenvector(self.T[: self.p, : self.p], tolerance=1e-5) @ self.Bt[: self.p]
        x *= np.sign(x[abs(x).argmax()])  # choose the sign independently of the basis
        return np.asarray(self.n**0.5 * x)

    def group_codes(self, x: NDArray[np.float64]) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """h (g,), the sign of the mean F of each group, and v = L⁻¹Kᵀh (m,)."""
        assert self.M is not None
        M = self.M.numpy()
        h = M @ x >= 0
        return h, np.where(h, 1.0, -1.0) @ M

    def on_device(self) -> DeviceRelaxation:
        """The same problem on the device of K."""
        return DeviceRelaxation(self.Bt, self.T, self.p, self.n, self.L_inv.device)

    def weights(self, x: NDArray[np.float64] | Tensor) -> Tensor:
        """w = L⁻ᵀ x: (m,) → (m,), or (r, m) → (r, m)."""
        return torch.as_tensor(x).to(self.L_inv) @ self.L_inv

    def subtract(self, Kth: Tensor, weight: float = 1.0) -> None:
        """Add a bit h to H_k, given Kᵀh up to the factor ``weight``."""
        self.deflate(weight * (self.L_inv @ Kth.to(self.L_inv)).cpu().numpy())

    def deflate(self, v: NDArray[np.float64]) -> None:
        """Replace T by T − ttᵀ with t = Bᵀv and v = L⁻¹Kᵀh; the part of v outside B extends the basis."""
        B, rest = self.Bt[: self.p], v.copy()
        for _ in range(2):  # twice is enough (Gram–Schmidt)
            rest -= (B @ rest) @ B
        length = np.linalg.norm(rest)
        if self.p < len(v) and length > 1e-8 * np.linalg.norm(v):
            self.Bt[self.p] = rest / length
            self.p += 1
        t = self.Bt[: self.p] @ v
        self.T[: self.p, : self.p] -= np.outer(t, t)


def spectral_start(data: FitData, r: int, literal: bool = False) -> tuple[Tensor, Tensor]:
    """W (m, r) of the relaxed problem, and the initial codes, packed.

    With classes, all rows of a class get the same code: the sign of their mean F. All sums over rows are then sums
    over classes, which are exact and cheap, and rounding in F hardly matters. With other similarities, codes are the
    signs of F, because equal codes for equal labels lead to worse optima there. KᵀH_k is then estimated from
    ``START_ROWS`` random rows, so that no bit needs a pass over K. All processes get these rows and compute the same.

    ``literal`` is the start as the paper prints it (Eq. 22, 23): S has no factor r, and codes are the signs of F of
    every row, also with classes. Each bit takes a pass over K.
    """
    K, S = data.K, data.S
    relaxed = Relaxation(data, r, literal)
    if relaxed.M is None or literal:
        W = _start_by_rows(relaxed, data, r, literal)
        return W, pack_F(K, W)
    W, H = class_start(relaxed, r)
    return W.to(K.dtype).contiguous(), H[S.row_group.long()]


def class_start(relaxed: Relaxation, r: int) -> tuple[Tensor, Tensor]:
    """W (m, r) of the relaxed problem, and the codes of the classes, packed."""
    on_cpu = relaxed.L_inv.device.type == "cpu"
    X, H = (_start_by_classes if on_cpu else _start_by_classes_on_device)(relaxed, r)
    return relaxed.weights(X).T, H


def first_codes(data: FitData, init: Any, r: int) -> NDArray[np.uint8]:
    """The user's codes, or random ones in which every bit is +1 on half of the rows."""
    n_here = len(data.K)
    if isinstance(init, str):
        half, mine = np.arange(data.n) < (data.n + 1) // 2, slice(data.first, data.first + n_here)
        return np.packbits(np.stack([data.rng.permutation(half)[mine] for _ in range(r)], 1), axis=1)
    packed = codes.pack(codes.unpack(codes.check_codes(init, r, name="init"), r))  # unused bits zero
    if len(packed) != n_here:
        raise InputError(f"init has {len(packed)} codes, but X has {n_here} rows")
    return packed


def _start_by_classes(relaxed: Relaxation, r: int) -> tuple[Tensor, Tensor]:
    """X (r, m), one whitened weight vector per bit, and the codes of the classes, packed."""
    assert relaxed.M is not None
    n_groups, m = relaxed.M.shape
    X, H = np.empty((r, m)), np.empty((n_groups, r), bool)
    with one_blas_thread(), progress("spectral start", r) as step:
        for k in range(r):
            X[k] = relaxed.best()
            H[:, k], v = relaxed.group_codes(X[k])
            relaxed.deflate(v)
            step(1)
    return torch.from_numpy(X), torch.from_numpy(np.packbits(H, axis=1))


def _start_by_classes_on_device(relaxed: Relaxation, r: int) -> tuple[Tensor, Tensor]:
    """The same on a GPU, without synchronisation."""
    M = relaxed.M
    assert M is not None
    bits = relaxed.on_device()
    X, H = M.new_empty(r, M.shape[1]), M.new_empty(r, len(M))

    def bit() -> None:
        x = bits.best()
        h = torch.where(M @ x >= 0, 1.0, -1.0).to(M)
        bits.keep(x, X)
        bits.keep(h, H)
        bits.deflate(h @ M)

    bits.solve(r, bit)
    return X, pack_signs(H.T)


@dataclass(frozen=True)
class SignsProduct:
    """Kᵀ sgn(K w) up to the factor ``weight``: from rows in memory, or in a pass over K of all processes."""

    K: KernelMatrix
    weight: float = 1.0
    ranks: Ranks = ALONE

    @classmethod
    def of(cls, data: FitData, literal: bool) -> SignsProduct:
        """From a sample of the rows; ``literal``: from all."""
        return cls(data.K, 1.0, data.ranks) if literal else cls(*_sample_rows(data))

    @property
    def in_memory(self) -> bool:
        """Whether the rows are in the memory of this process, so that a GPU may record the product."""
        return isinstance(self.K, Tensor) and self.ranks.world == 1

    def __call__(self, w: Tensor) -> Tensor:
        """Kᵀ sgn(K w) (m,), up to the factor."""
        if self.in_memory:
            assert isinstance(self.K, Tensor)
            return signs_product(self.K, w)
        total = torch.zeros(len(w), dtype=torch.float64, device=w.device)
        for _, block in feature_blocks(self.K):
            total += signs_product(block, w)
        return self.ranks.total(total)


def _start_by_rows(relaxed: Relaxation, data: FitData, r: int, literal: bool = False) -> Tensor:
    """W (m, r), using the codes of rows instead of classes."""
    product = SignsProduct.of(data, literal)
    if product.K.device.type != "cpu":
        return _start_by_rows_on_device(relaxed, product, r)
    W = []
    with one_blas_thread(), progress("spectral start", r) as step:
        for _ in range(r):
            w = relaxed.weights(relaxed.best()).to(product.K.dtype)
            W.append(w)
            relaxed.subtract(product(w), product.weight)
            step(1)
    return torch.stack(W, 1)


def _start_by_rows_on_device(relaxed: Relaxation, product: SignsProduct, r: int) -> Tensor:
    """The same on a GPU."""
    bits, dtype = relaxed.on_device(), product.K.dtype
    W = relaxed.L_inv.new_empty(r, len(relaxed.L_inv), dtype=dtype)

    def bit() -> None:
        w = (bits.best() @ relaxed.L_inv).to(dtype)
        bits.keep(w, W)
        bits.deflate(product.weight * (relaxed.L_inv @ product(w).to(relaxed.L_inv)))

    bits.solve(r, bit, record=product.in_memory)
    return W.T.contiguous()


def signs_product(K: Tensor, w: Tensor) -> Tensor:
    """Kᵀ sgn(K w)."""
    if K.device.type == "cpu" and not lost_threads():
        return torch.from_numpy(_signs_product_in_threads(K.numpy(), w.numpy()))
    return K.T @ torch.where(K @ w >= 0, 1.0, -1.0).to(K.dtype)


def _signs_product_in_threads(K: NDArray[Any], w: NDArray[Any]) -> NDArray[Any]:
    """Kᵀ sgn(K w) in 64 chunks for any number of threads, so that the sums do not depend on it."""
    partial = np.zeros((64, K.shape[1]), K.dtype)
    parts = threads.size(len(K) * K.shape[1] >> 18)
    threads.run(lambda t: _signs_product(64 * t // parts, 64 * (t + 1) // parts, K, w, partial), parts)
    return np.asarray(partial.sum(axis=0))


@njit(nogil=True, cache=True, fastmath=True)
def _signs_product(first: int, last: int, K: Any, w: Any, partial: Any) -> None:
    """One pass over K that uses each row twice while it is in cache; two products would read K twice."""
    n, m = K.shape
    size = (n + len(partial) - 1) // len(partial)
    for c in range(first, last):
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


def _sample_rows(data: FitData) -> tuple[Tensor, float]:
    """A sample of rows of K for KᵀH, equal on all processes, and the number of rows each one represents."""
    K, n, ranks = data.K, data.n, data.ranks
    m = K.shape[1]
    size = max(START_ROWS, 8 * m)  # with fewer rows per anchor, W would overfit the sample
    if n <= size:
        if ranks.world == 1 and isinstance(K, Tensor):
            return K, 1.0
        picked = np.arange(n)
    else:
        picked = np.sort(data.rng.choice(n, size, replace=False))
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
    """Orthonormal basis (m, p) that contains the leading eigenvectors of C_P C_Rᵀ, by subspace iteration."""
    if C_P.device.type == "cuda":
        draw = torch.Generator(C_P.device).manual_seed(0)
        B = polar_factor(torch.randn(len(C_P), p, generator=draw, device=C_P.device, dtype=C_P.dtype))
        for _ in range(7):  # nearly orthonormal is enough here, and uses products only
            B = polar_factor(C_P @ (C_R.T @ B))
        return torch.linalg.qr(C_P @ (C_R.T @ B)).Q
    draws = torch.from_numpy(np.random.default_rng(0).standard_normal((len(C_P), p)))
    B = torch.linalg.qr(draws).Q
    for _ in range(8):
        B = torch.linalg.qr(C_P @ (C_R.T @ B)).Q
    return B


def leading_eigenvector(T: NDArray[np.float64], steps: int = 120, tolerance: float = 1e-8) -> NDArray[np.float64]:
    """Eigenvector of the largest eigenvalue of a symmetric matrix; if it is large, by Lanczos from a fixed start."""
    p = len(T)
    if p <= 96:
        return np.asarray(np.linalg.eigh(T)[1][:, -1])
    Q = np.zeros((steps + 1, p))
    alpha, beta = np.zeros(steps), np.zeros(steps)
    Q[0] = np.cos(np.arange(p)) + 2  # asymmetric, so that no eigenvector is orthogonal to it
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


# --- On a GPU ---

FAST, EXACT = 8, 8  # iterations of ``polar_factor`` by polynomials of degree 5 and 3


def polar_factor(V: Tensor) -> Tensor:
    """UWᵀ of the singular value decomposition of V, by products alone: small decompositions are slow on a GPU.

    Polynomials of degree 5 bring singular values above 10⁻⁴ of the largest close to 1; cubic ones then converge.
    """
    if len(V) > V.shape[1]:
        return polar_factor(V.T).T
    X = V / V.norm().clamp(min=1e-300)
    for i in range(FAST + EXACT):
        A = X @ X.T
        X = 3.4445 * X + (2.0315 * A @ A - 4.775 * A) @ X if i < FAST else 1.5 * X - 0.5 * A @ X
    return X


class DeviceRelaxation:
    """``Relaxation.best`` and ``deflate`` in tensors of fixed size on a GPU, so that each bit replays one CUDA graph.

    A bit that does not extend the basis leaves a row of zeros.
    """

    def __init__(self, Bt: Any, T: Any, p: int, n: int, device: torch.device) -> None:
        """The first p rows of Bt and T are in use; the others are zero and get one row per bit."""
        self.length = n**0.5
        self.Bt, self.T = torch.as_tensor(Bt, device=device), torch.as_tensor(T, device=device)
        self.bit, self.place = (torch.tensor([number], device=device) for number in (0, p))  # of the next bit
        every = torch.arange(len(self.T), dtype=torch.float64, device=device)
        self.draws = torch.cos(every) + 2  # asymmetric, so that no eigenvector is orthogonal to it
        self.start = torch.where(every < p, self.draws, 0)
        self.graph = CudaGraph(device)

    def solve(self, r: int, bit: Callable[[], None], record: bool = True) -> None:
        """Run ``bit`` r times; it calls ``keep`` to store its results. ``record``: as a CUDA graph."""
        for _ in range(r):
            self.graph(bit) if record else bit()

    def keep(self, row: Tensor, table: Tensor) -> None:
        """Write a row of a table at the index of the current bit."""
        table.index_copy_(0, self.bit, row[None])

    def best(self) -> Tensor:
        """x (m,) of the next bit, of length √n."""
        x = eigenvector_by_squaring(self.T, self.start) @ self.Bt
        return self.length * torch.sign(x.take(x.abs().argmax())) * x

    def deflate(self, v: Tensor) -> None:
        """Replace T by T − ttᵀ with t = Bᵀv; the part of v outside B extends the basis."""
        rest = v.clone()
        for _ in range(2):  # twice is enough (Gram–Schmidt)
            rest -= (self.Bt @ rest) @ self.Bt
        length = rest.norm()
        new = length > 1e-8 * v.norm()
        self.Bt.index_copy_(0, self.place, torch.where(new, rest / length, 0)[None])
        self.start.index_copy_(0, self.place, torch.where(new, self.draws[self.place], 0))
        self.bit += 1
        self.place += 1
        t = self.Bt @ v
        self.T.addr_(t, t, alpha=-1)


def eigenvector_by_squaring(T: Tensor, start: Tensor) -> Tensor:
    """Eigenvector of the largest eigenvalue of a symmetric matrix: (T + σI)ᵗ start with t = 2³⁰, normalised.

    On a GPU, a product of small matrices takes no longer than a product with a vector, and the power method would
    need a hundred of those. ``start`` is 0 where rows and columns of T are 0.
    """
    A = T / T.norm().clamp(min=1e-300) + torch.diag((start != 0).to(T))  # σ: the eigenvalues are 0 … 2
    for i in range(SQUARINGS):
        A = A @ A
        if i % 5 == 4:
            A = A / A.norm()
    x = A @ start
    return x / x.norm()
