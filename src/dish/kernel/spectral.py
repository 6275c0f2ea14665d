"""Where H starts: W and codes from the relaxed problem, one bit after another; or random codes; or the user's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh_tridiagonal

from dish import codes, threads
from dish.cbcd import pack_signs
from dish.errors import InputError
from dish.kernel.anchors import local_rows
from dish.kernel.features import feature_blocks, pack_F
from dish.kernel.fit_data import Problem
from dish.kernel.squaring import DeviceBits
from dish.lazy import Tensor, torch
from dish.machine import lost_threads, one_blas_thread
from dish.numba_lazy import njit
from dish.posterior.projection import polar_factor
from dish.progress import LONG, progress
from dish.similarity import Classes

LEADING = 256  # of more label directions the spectral start keeps that many, or 2r if that is more
START_ROWS = 8192  # the spectral start estimates KᵀH from that many rows, or 8 m if that is more


class Relaxation:
    """The relaxed problem of one bit after another: max (Kw)ᵀ (rS − H_k H_kᵀ) (Kw) with ‖Kw‖² = n.

    With x = Lᵀw the matrix of the problem is r·L⁻¹KᵀSKL⁻ᵀ − VVᵀ, V = L⁻¹KᵀH_k: its leading eigenvector lies
    in the span of the factors of S (at most l + 1 of them) and of the k columns of V. We keep an orthonormal
    basis B of that span (of its leading part if l is large: r bits use no more) and solve a problem of its size.
    That is done here on the CPU; ``on_device`` goes on with it on a GPU.
    """

    def __init__(self, problem: Problem, r: int) -> None:
        K, S, white, ranks = problem.K, problem.S, problem.white, problem.ranks
        self.n = problem.n
        self.L_inv = white.inverse_factor()
        A = S.group_totals(feature_blocks(K), ranks) if isinstance(S, Classes) else None  # Eᵀ K
        PtK, RtK = S.project(feature_blocks(K), ranks) if A is None else (S.Pt(A), S.Rt(A))
        self.M = None if A is None else A @ self.L_inv.T  # (g, m): EᵀK L⁻ᵀ
        C_P, C_R = self.L_inv @ PtK.T, self.L_inv @ RtK.T  # (m, l)
        most = max(LEADING, 2 * r)
        B = _range(C_P) if min(C_P.shape) <= most else _leading_space(C_P, C_R, most)  # (m, p)
        T = r * (B.T @ C_P) @ (C_R.T @ B)  # (p, p): the problem in the basis B
        m, self.p = B.shape
        room = B.new_zeros(self.p + r, m), B.new_zeros(self.p + r, self.p + r)  # r bits will add to them
        room[0][: self.p], room[1][: self.p, : self.p] = B.T, (T + T.T) / 2
        self.Bt: Any
        self.T: Any
        self.Bt, self.T = (A.numpy() if A.device.type == "cpu" else A for A in room)

    def best(self) -> NDArray[np.float64]:
        """x (m,) of the next bit, of length √n."""
        x = leading_eigenvector(self.T[: self.p, : self.p], tolerance=1e-5) @ self.Bt[: self.p]
        x *= np.sign(x[abs(x).argmax()])  # of the two signs, one that does not depend on the basis
        return np.asarray(self.n**0.5 * x)

    def group_codes(self, x: NDArray[np.float64]) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """h (g,), the signs of the mean F of every group, and v = L⁻¹Kᵀh (m,)."""
        assert self.M is not None
        M = self.M.numpy()
        h = M @ x >= 0
        return h, np.where(h, 1.0, -1.0) @ M

    def on_device(self) -> DeviceBits:
        """The problem of the first bit, and all that follow, where K is."""
        return DeviceBits(self.Bt, self.T, self.p, self.n, self.L_inv.device)

    def weights(self, x: NDArray[np.float64] | Tensor) -> Tensor:
        """w = L⁻ᵀ x: (m,) → (m,), or (r, m) → (r, m)."""
        return torch.as_tensor(x).to(self.L_inv) @ self.L_inv

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


def spectral_start(problem: Problem, r: int) -> tuple[Tensor, Tensor]:
    """W (m, r) of the relaxed problem, bit by bit, and the first codes, packed.

    Rows of a class share a row of S, and here their code: the sign of their mean F. All sums over rows are then sums
    over classes, exact and cheap, and the codes are insensitive to rounding in F. For other similarities, which
    come in degrees, codes are the signs of F: equal codes for equal labels end in worse optima there. For more than
    ``START_ROWS`` rows KᵀH_k is then estimated from that many random rows, so that a bit costs no pass over K, and
    all processes get these rows and do the same.
    """
    K, S = problem.K, problem.S
    relaxed = Relaxation(problem, r)
    if relaxed.M is None:
        W = _start_by_rows(relaxed, problem, r)
        return W, pack_F(K, W)
    X, H = (_start_by_classes if K.device.type == "cpu" else _start_by_classes_on_device)(relaxed, r)
    return relaxed.weights(X).T.to(K.dtype).contiguous(), H[S.row_group.long()]


def first_codes(problem: Problem, init: Any, r: int) -> NDArray[np.uint8]:
    """The user's own codes, or random ones: every bit +1 on half of the rows."""
    n_here = len(problem.K)
    if isinstance(init, str):
        half, mine = np.arange(problem.n) < (problem.n + 1) // 2, slice(problem.first, problem.first + n_here)
        return np.packbits(np.stack([problem.rng.permutation(half)[mine] for _ in range(r)], 1), axis=1)
    packed = codes.pack(codes.unpack(codes.check_codes(init, r, name="init"), r))  # unused bits zero
    if len(packed) != n_here:
        raise InputError(f"init has {len(packed)} codes, but X has {n_here} rows")
    return packed


def _start_by_classes(relaxed: Relaxation, r: int) -> tuple[Tensor, Tensor]:
    """X (r, m), the bits in whitened coordinates, and the codes of the classes, packed."""
    assert relaxed.M is not None
    n_groups, m = relaxed.M.shape
    X, H = np.empty((r, m)), np.empty((n_groups, r), bool)
    with one_blas_thread(), progress("spectral start", r, worth=relaxed.n >= LONG) as step:
        for k in range(r):
            X[k] = relaxed.best()
            H[:, k], v = relaxed.group_codes(X[k])
            relaxed.deflate(v)
            step(1)
    return torch.from_numpy(X), torch.from_numpy(np.packbits(H, axis=1))


def _start_by_classes_on_device(relaxed: Relaxation, r: int) -> tuple[Tensor, Tensor]:
    """The same on a GPU, which waits for nothing in between."""
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


def _start_by_rows(relaxed: Relaxation, problem: Problem, r: int) -> Tensor:
    """W (m, r), with the codes of rows in place of those of groups."""
    some, weight = _sample_rows(problem)
    if some.device.type != "cpu":
        return _start_by_rows_on_device(relaxed, some, weight, r)
    W = []
    with one_blas_thread():
        for _ in range(r):
            w = relaxed.weights(relaxed.best()).to(some.dtype)
            W.append(w)
            relaxed.subtract(signs_product(some, w), weight)
    return torch.stack(W, 1)


def _start_by_rows_on_device(relaxed: Relaxation, some: Tensor, weight: float, r: int) -> Tensor:
    """The same on a GPU."""
    bits, W = relaxed.on_device(), some.new_empty(r, some.shape[1])

    def bit() -> None:
        w = (bits.best() @ relaxed.L_inv).to(some.dtype)
        bits.keep(w, W)
        bits.deflate(weight * (relaxed.L_inv @ signs_product(some, w).to(relaxed.L_inv)))

    bits.solve(r, bit)
    return W.T.contiguous()


def signs_product(K: Tensor, w: Tensor) -> Tensor:
    """Kᵀ sgn(K w)."""
    if K.device.type == "cpu" and not lost_threads():
        return torch.from_numpy(_signs_product_in_threads(K.numpy(), w.numpy()))
    return K.T @ torch.where(K @ w >= 0, 1.0, -1.0).to(K.dtype)


def _signs_product_in_threads(K: NDArray[Any], w: NDArray[Any]) -> NDArray[Any]:
    """In 64 chunks, whatever the number of threads: the sums are the same then."""
    partial = np.zeros((64, K.shape[1]), K.dtype)
    parts = threads.size(len(K) * K.shape[1] >> 18)
    threads.run(lambda t: _signs_product(64 * t // parts, 64 * (t + 1) // parts, K, w, partial), parts)
    return np.asarray(partial.sum(axis=0))


@njit(nogil=True, cache=True, fastmath=True)
def _signs_product(first: int, last: int, K: Any, w: Any, partial: Any) -> None:
    """One pass over K, each row used twice while it is in cache (two products read it from memory twice)."""
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


def _sample_rows(problem: Problem) -> tuple[Tensor, float]:
    """Rows of K for KᵀH, the same on all processes, and the weight each stands for."""
    K, n, ranks = problem.K, problem.n, problem.ranks
    m = K.shape[1]
    size = max(START_ROWS, 8 * m)  # with few rows per anchor, signs fitted to those rows would not be typical
    if n <= size:
        if ranks.world == 1 and isinstance(K, Tensor):
            return K, 1.0
        picked = np.arange(n)
    else:
        picked = np.sort(problem.rng.choice(n, size, replace=False))
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
    if C_P.device.type == "cuda":
        draw = torch.Generator(C_P.device).manual_seed(0)
        B = polar_factor(torch.randn(len(C_P), p, generator=draw, device=C_P.device, dtype=C_P.dtype))
        for _ in range(7):  # near enough to orthonormal on the way, and by products
            B = polar_factor(C_P @ (C_R.T @ B))
        return torch.linalg.qr(C_P @ (C_R.T @ B)).Q
    draws = torch.from_numpy(np.random.default_rng(0).standard_normal((len(C_P), p)))
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
