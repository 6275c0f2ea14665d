"""DGH (Liu, Mu, Kumar, Chang, "Discrete graph hashing", NIPS 2014)."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dish import codes
from dish.baselines._anchorgraph import AnchorGraphHasher, graph_eigenvectors, mass
from dish.baselines._pca import Matrix
from dish.checks import check_integer, check_number, check_option, check_random_state
from dish.errors import InputError
from dish.lazy import torch
from dish.numba_lazy import njit, prange
from dish.posterior.projection import rotation
from dish.progress import rounds


class DGH(AnchorGraphHasher):
    """Codes B of ±1 that maximise tr(BᵀAB) + ρ tr(BᵀY) on an anchor graph A; ignores y.

    Y is any (n, r) matrix with 1ᵀY = 0 and YᵀY = nI, so the second term makes the bits balanced and uncorrelated.
    The code of a new row is sgn(BᵀZΛ⁻¹ z(x)), the majority of its neighbours in the graph. There must be more rows
    than bits.

    Parameters
    ----------
    n_bits : int
        Code length r.
    n_anchors, n_neighbors
        As in ``AGH``.
    rho : float
        Weight ρ.
    init : "rotated" or "spectral"
        The initial Y: graph eigenvectors, rotated as in ITQ (the paper's DGH-R) or unchanged (DGH-I). With more
        bits than eigenvectors, random balanced columns are added.
    n_iter : int
        Maximum number of iterations of B-step and Y-step.
    random_state : int, RandomState or None
        Seed of k-means, of the rotation and of random columns.

    Attributes
    ----------
    codes_ : uint8 (n, ceil(n_bits/8))
        B of the training rows, packed.
    objective_ : float64 (n_iter_ + 1,)
        tr(BᵀAB) + ρ tr(BᵀY) at the start and after every iteration; it never falls.
    n_iter_ : int
        Number of iterations; the last one raised the objective by less than 10⁻⁶ of its value, or n_iter was reached.
    anchors_, width_, W_
        F(x) = W_ᵀ z(x), W_ = Λ⁻¹ZᵀB (m, r).
    """

    MOST_B_STEPS = 300
    _state = (*AnchorGraphHasher._state, "W_", "codes_", "objective_", "n_iter_")

    def __init__(
        self,
        n_bits: int = 64,
        *,
        n_anchors: int = 300,
        n_neighbors: int = 3,
        rho: float = 0.1,
        init: str = "rotated",
        n_iter: int = 20,
        random_state: Any = 0,
    ) -> None:
        self.n_bits, self.n_anchors, self.n_neighbors, self.rho = n_bits, n_anchors, n_neighbors, rho
        self.init, self.n_iter, self.random_state = init, n_iter, random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from rows X (n, d)."""
        self._check_graph_params()
        check_number("rho", self.rho, low=0)
        check_option("init", self.init, ("rotated", "spectral"))
        check_integer("n_iter", self.n_iter, low=0)
        X = self._check_X(X, reset=True)
        if self.n_bits >= len(X):
            raise InputError(
                f"n_bits={self.n_bits} must be less than the number of rows, n_samples={len(X)}, for balanced and "
                "uncorrelated bits"
            )
        random_state = check_random_state(self.random_state)
        Z = self._graph(X, random_state)
        B = self._alternate(AnchorGraph(Z), self._start(Z, random_state), random_state)
        self.codes_ = codes.pack(B)
        self.W_ = (Z.T @ B) / mass(Z)[:, None]  # Λ⁻¹ZᵀB (m, r)
        return self

    def _start(self, Z: sp.csr_array, random_state: np.random.RandomState) -> Matrix:
        """The initial Y."""
        n, r = Z.shape[0], self.n_bits
        Y: Matrix = Z @ graph_eigenvectors(Z, r)[1]  # (n, p), YᵀY = nI
        if Y.shape[1] < r:
            Y = np.hstack([Y, np.sqrt(n) * complement(Y / np.sqrt(n), r - Y.shape[1], random_state)])
        if self.init == "rotated":
            R, _ = rotation(torch.from_numpy(Y), r, 50, random_state)
            Y = product(Y, R)
        return Y

    def _alternate(self, A: AnchorGraph, Y: Matrix, random_state: np.random.RandomState) -> Matrix:
        """Alternate B-step and Y-step, starting from B = sgn(Y)."""
        B = np.where(Y >= 0, 1.0, -1.0)
        value = [A.quadratic(B) + self.rho * float((B * Y).sum())]
        for _ in rounds(self.n_iter):
            B = b_step(A, B, Y, self.rho, self.MOST_B_STEPS)
            Y = y_step(B, random_state)
            value.append(A.quadratic(B) + self.rho * float((B * Y).sum()))
            if value[-1] - value[-2] <= 1e-6 * abs(value[-2]):
                break
        self.objective_, self.n_iter_ = np.array(value), len(value) - 1
        return B

    def _decision_values(self, X: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(self._weights(X) @ self.W_)


class AnchorGraph:
    """A = Z Λ⁻¹ Zᵀ, which is never built."""

    def __init__(self, Z: sp.csr_array) -> None:
        self.Zt, self.mass = sp.csr_array(Z.T), mass(Z)[:, None]
        s = np.diff(Z.indptr)[0]  # every row has s weights
        self.near, self.weight = Z.indices.reshape(-1, s), Z.data.reshape(-1, s)  # (n, s)

    def quadratic(self, B: Matrix) -> float:
        """tr(BᵀAB) = ‖Λ^-½ ZᵀB‖²."""
        return float(((self.Zt @ B) ** 2 / self.mass).sum())


def b_step(A: AnchorGraph, B: Matrix, Y: Matrix, rho: float, most: int) -> Matrix:
    """Maximise tr(BᵀAB) + ρ tr(BᵀY) over B of ±1: B becomes the signs of the gradient, until nothing changes.

    A is positive semidefinite, so the linearisation at B is a lower bound, and its maximiser is at least as good.
    """
    B = B.copy()
    ZtB = A.Zt @ B  # (m, r)
    for _ in range(most):
        flips, change = follow_gradient(A.near, A.weight, 2 * ZtB / A.mass, rho, Y, B)
        if flips == 0:
            break
        ZtB += change
    return B


@njit(parallel=True, cache=True)
def follow_gradient(near: Any, weight: Any, C: Any, rho: float, Y: Any, B: Any) -> Any:
    """B ← sgn(ZC + ρY), in place; where this is 0, B is kept. Returns the number of flips and Zᵀ(B_new − B_old)."""
    (n, r), s, chunks = B.shape, near.shape[1], 16
    size = (n + chunks - 1) // chunks
    flips = np.zeros(chunks, np.int64)
    change = np.zeros((chunks, len(C), r))
    for c in prange(chunks):
        g = np.empty(r)
        for i in range(c * size, min(n, (c + 1) * size)):
            for j in range(r):
                g[j] = rho * Y[i, j]
            for k in range(s):
                for j in range(r):
                    g[j] += weight[i, k] * C[near[i, k], j]
            for j in range(r):
                if g[j] * B[i, j] < 0:
                    B[i, j] = -B[i, j]
                    flips[c] += 1
                    for k in range(s):
                        change[c, near[i, k], j] += 2 * weight[i, k] * B[i, j]
    return flips.sum(), change.sum(axis=0)


def y_step(B: Matrix, random_state: np.random.RandomState) -> Matrix:
    """The Y closest to B with 1ᵀY = 0 and YᵀY = nI: √n UVᵀ from the SVD JB = UΣVᵀ of B with centred columns."""
    n, r = B.shape
    JB = B - B.mean(axis=0)
    square, V = np.linalg.eigh(product(JB.T, JB))
    full = square > 1e-8 * n
    U = np.empty((n, r))
    U[:, full] = product(JB, V[:, full] / np.sqrt(square[full]))
    if not full.all():  # constant or repeated bits: any balanced directions are optimal
        U[:, ~full] = complement(U[:, full], int((~full).sum()), random_state)
    return np.sqrt(n) * product(U, V.T)


def product(A: Matrix, B: Matrix) -> Matrix:
    """A B by torch: its threads do not spin while they wait, unlike those of most NumPy builds."""
    return (torch.from_numpy(A) @ torch.from_numpy(B)).numpy()


def complement(U: Matrix, k: int, random_state: np.random.RandomState) -> Matrix:
    """k random orthonormal columns (n, k), orthogonal to the columns of U and to 1."""
    n = len(U)
    basis = np.hstack([np.full((n, 1), n**-0.5), U, random_state.standard_normal((n, k))])
    return np.linalg.qr(basis)[0][:, -k:]
