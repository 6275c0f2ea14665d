"""Frames V (l, r): what turns scores of labels into bits, so that signs keep the angles between rows."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from dish import threads
from dish.cuda.graph import CudaGraph
from dish.kernel.features import feature_blocks
from dish.lazy import Tensor, torch
from dish.machine import one_blas_thread, threads_for

FRAME_STEPS, FRAME_RATE, FRAME_BATCH = 100, 0.02, 1024
QUERIES = 128  # whose scores are kept in cache
ROTATIONS = 30  # rounds of ITQ
SIGNINGS = 20  # rounds of ``frame``
FAST, EXACT = 8, 8  # rounds of ``polar_factor``


def frame(C: NDArray[np.float64], rng: np.random.RandomState, device: torch.device | None = None) -> Tensor:
    """V (l, r) with the signs of C, and with columns (r ≤ l) or rows that are nearly orthogonal.

    Alternates between the nearest orthogonal matrix and the nearest one with these signs; on a GPU if ``device`` is.
    """
    V = C * np.abs(rng.standard_normal(C.shape))
    if device is not None and device.type == "cuda":
        return _signed_on_device(*(torch.from_numpy(A).to(device) for A in (V, C)))
    with one_blas_thread():
        for _ in range(SIGNINGS):
            V = C * np.abs(nearest_orthogonal(V))
    return torch.from_numpy(V)


def _signed_on_device(V: Tensor, C: Tensor) -> Tensor:
    """The same alternation, which waits for nothing."""
    recorded = CudaGraph(V.device)

    def turn() -> None:
        V.copy_(C * polar_factor(V).abs())

    for _ in range(SIGNINGS):
        recorded(turn)
    return V


def polar_factor(V: Tensor) -> Tensor:
    """UWᵀ of V's singular value decomposition, by products alone: small decompositions are slow on a GPU.

    Polynomials of degree 5 bring singular values of 10⁻⁴ of the largest and more close to 1, cubic ones all the way.
    """
    if len(V) > V.shape[1]:
        return polar_factor(V.T).T
    X = V / V.norm().clamp(min=1e-300)
    for i in range(FAST + EXACT):
        A = X @ X.T
        X = 3.4445 * X + (2.0315 * A @ A - 4.775 * A) @ X if i < FAST else 1.5 * X - 0.5 * A @ X
    return X


def nearest_orthogonal(V: NDArray[np.float64]) -> NDArray[np.float64]:
    """V (VᵀV)^−½, or (VVᵀ)^−½ V where V is wide: of its singular value decomposition, UWᵀ."""
    if len(V) < V.shape[1]:
        return nearest_orthogonal(V.T).T
    values, Q = np.linalg.eigh(V.T @ V)
    if values[0] > 1e-6 * values[-1]:  # by a small eigenproblem, in a tenth of the time
        return np.asarray(V @ ((Q / np.sqrt(values)) @ Q.T))
    left, _, right = np.linalg.svd(V, full_matrices=False)
    return np.asarray(left @ right)


def centred_frame(V: Tensor) -> tuple[Tensor, Tensor]:
    """V, and the offset −c 1ᵀV that centres p: c = ¾/l, since all of its mean 1/l would leave two classes one bit."""
    return V, -0.75 / len(V) * V.sum(0)


def principal_frames(G: Tensor, r: int, rng: np.random.RandomState) -> list[Tensor]:
    """Frames that spend bits on the scores G (n, l) that rows have: their leading directions, rotated.

    All directions or half of them, rotated so that signs lose little (ITQ), and all of them rotated at random.
    """
    l = G.shape[1]  # noqa: E741
    _, U = torch.linalg.eigh((G.T @ G).double().cpu())
    found = []
    for p, rounds in ((min(l, r), ROTATIONS), (max(1, min(l, r) // 2), ROTATIONS), (min(l, r), 0)):
        U_p = U[:, -p:].to(G)
        R, _ = rotation((G @ U_p).double(), r, rounds, rng)
        found.append(U_p @ torch.from_numpy(R).to(G))
    return found


def rotation(
    V: Tensor, r: int, n_iter: int, random_state: np.random.RandomState
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """R (p, r) with orthonormal rows that lowers ‖B − VR‖² in turn with B = sgn(VR), and that loss by round."""
    n, p = V.shape
    R = torch.from_numpy(np.linalg.qr(random_state.standard_normal((r, r)))[0][:p]).to(V)
    if V.device.type == "cuda":
        return _rotation_on_device(V, R, n_iter)
    squared_norm = float(V.square().sum())
    loss = []
    for _ in range(n_iter):
        U, s, Wt = torch.linalg.svd(_signs_product(V, R), full_matrices=False)
        R = U @ Wt  # the Procrustes solution: tr(BᵀVR) = Σ s, the most there is
        loss.append(n * r + squared_norm - 2 * float(s.sum()))  # ‖B‖² + ‖VR‖² − 2 tr(BᵀVR)
    return R.numpy(), np.array(loss)


def _rotation_on_device(V: Tensor, R: Tensor, n_iter: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The same on a GPU, which waits for nothing in between."""
    recorded, trace, traces = CudaGraph(V.device), V.new_zeros(()), V.new_zeros(n_iter)

    def turn() -> None:
        VtB = _signs_product(V, R)
        R.copy_(polar_factor(VtB))
        trace.copy_((VtB * R).sum())

    for i in range(n_iter):
        recorded(turn)
        traces[i] = trace
    loss = len(V) * R.shape[1] + V.square().sum() - 2 * traces
    return R.cpu().numpy(), loss.cpu().numpy()


def _signs_product(V: Tensor, R: Tensor) -> Tensor:
    """VᵀB (p, r), B = sgn(VR), which is never kept."""
    VtB = torch.zeros_like(R)
    for _, v in feature_blocks(V):
        VtB += v.T @ torch.where(v @ R >= 0, 1.0, -1.0).to(v)
    return VtB


def turn_frame(
    V: Tensor, held: tuple[Tensor, Tensor], seen: tuple[Tensor, Tensor], rng: np.random.RandomState
) -> Tensor:
    """V after a few of Adam's steps towards codes that rank rows of the same class first.

    A held-out row is the query; held-out rows and rows that B has seen are the database.
    """
    (G, y), (G_seen, y_seen) = ((p - 0.75 / p.shape[1], y) for p, y in (held, seen))
    V = V / (G @ V).square().mean().sqrt()
    size = min(FRAME_BATCH, len(G), len(G_seen))
    turning = Turning(V, (G, y), (G_seen, y_seen), size)
    with steps_threads(2 * size * size * V.shape[1]):
        for t, rows in enumerate(_draws([len(G), len(G_seen)], size, rng, G.device), 1):
            turning.step(t, rows)
    return turning.V


def _draws(lengths: list[int], size: int, rng: np.random.RandomState, device: torch.device) -> Tensor:
    """Rows (steps, 2, size) of every step, no row twice in one; on a GPU they are drawn there."""
    if device.type != "cuda":
        draws = [[rng.choice(n, size, replace=False) for n in lengths] for _ in range(FRAME_STEPS)]
        return torch.from_numpy(np.array(draws))
    draw = torch.Generator(device).manual_seed(int(rng.randint(2**31 - 1)))
    keys = [torch.rand(FRAME_STEPS, n, generator=draw, device=device) for n in lengths]
    return torch.stack([each.argsort(1)[:, :size] for each in keys], 1)


class Turning:
    """Adam's steps on V and log β in tensors that stay where they are: on a GPU a step is recorded once."""

    def __init__(self, V: Tensor, held: tuple[Tensor, Tensor], seen: tuple[Tensor, Tensor], size: int) -> None:
        self.V, self.log_beta = V, V.new_tensor(math.log(10.0))
        self.held, self.seen = held, seen
        self.scale = float(V.square().mean().sqrt())
        self.moments = [(torch.zeros_like(part), torch.zeros_like(part)) for part in (V, self.log_beta)]
        self.rows = torch.zeros(2, size, dtype=torch.int64, device=V.device)
        self.numbers = V.new_zeros(4)  # both rates, and what the moments are divided by
        self.of_step = V.new_tensor([self._numbers(t) for t in range(1, FRAME_STEPS + 1)])
        self.recorded = CudaGraph(V.device)

    def _numbers(self, t: int) -> list[float]:
        fall = 0.03 ** (t / FRAME_STEPS)
        return [fall * (FRAME_RATE * self.scale), fall * FRAME_RATE, 1 - 0.9**t, 1 - 0.999**t]

    def step(self, t: int, rows: Tensor) -> None:
        """Step t = 1, 2, … on some rows (2, size) of those held out and of those seen."""
        self.numbers.copy_(self.of_step[t - 1])
        self.rows.copy_(rows)
        self.recorded(self._step)

    def _step(self) -> None:
        some = [(G[i], y[i]) for (G, y), i in zip((self.held, self.seen), self.rows, strict=True)]
        slopes = ranking_slopes(self.V, self.log_beta, some[0], some[1])
        *rates, first, second = self.numbers
        for theta, slope, rate, (mean, square) in zip(
            (self.V, self.log_beta), slopes, rates, self.moments, strict=True
        ):
            mean.mul_(0.9).add_(0.1 * slope)
            square.mul_(0.999).add_(0.001 * slope.square())
            theta.sub_(rate * (mean / first) / ((square / second).sqrt() + 1e-8))


def ranking_slopes(
    V: Tensor, log_beta: Tensor, queries: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Slopes of a loss in V and log β.

    With Φ = tanh(GV) in place of signs: the cross-entropy, mean over queries, of "another row of my class" under
    P = softmax(β ΦΦ′ᵀ/r) over the queries themselves and the other rows. Its slope in the scores is P less equal
    shares for the rows of the class. Products with those shares are means over classes: of all pairs only P is made.
    """
    (G, y), (G_other, y_other) = queries, others
    q, beta = len(G), log_beta.exp() / V.shape[1]
    Phi, Phi_other = torch.tanh(G @ V), torch.tanh(G_other @ V)
    D, y_all, l = torch.cat([Phi, Phi_other]), torch.cat([y, y_other]), G.shape[1]  # noqa: E741
    mates = class_sums(y_all, l, torch.ones_like(D[:, :1]))[y].sub_(1)  # (q, 1): rows of a query's class but itself
    has = (mates > 0).to(D)
    share = has / mates.clamp(min=1)
    mean = share * (class_sums(y_all, l, D)[y] - Phi)  # (q, r), of them
    asking = share * Phi
    asked = class_sums(y, l, asking)[y_all]  # by row of the database, the queries that it is a mate of
    asked[:q] -= asking

    found, by_row = found_by_softmax(beta, D, has)
    slope = beta / q * (by_row - asked)
    slope[:q] += beta / q * (has * found - mean)
    slope_beta = beta / q * (Phi * (has * found - mean)).sum()
    slope.mul_(1 - D * D)
    return G.T @ slope[:q] + G_other.T @ slope[q:], slope_beta


def found_by_softmax(beta: Tensor, D: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """P D (q, r) and Pᵀ(w ∘ D_q) (n, r) with P = softmax(β D_q Dᵀ), D_q the first q rows and w their weights (q, 1).

    Nobody finds itself: P_ii = 0. On the CPU a few queries at a time: their P stays in cache.
    """
    q = len(weight)
    size = QUERIES if D.device.type == "cpu" else q

    def some(i: int) -> tuple[Tensor, Tensor]:
        rows = slice(size * i, min(q, size * (i + 1)))
        scores = (beta * D[rows]) @ D.T
        scores[:, rows].fill_diagonal_(-1e4)
        P = torch.softmax(scores, 1)
        return P @ D, P.T @ (weight[rows] * D[rows])

    found = threads.results(some, -(-q // size), q * len(D) >> 18)
    return torch.cat([part[0] for part in found]), reduce(torch.add, [part[1] for part in found])


def class_sums(y: Tensor, l: int, X: Tensor) -> Tensor:  # noqa: E741
    """Rows of X summed by class, (l, r), in the same order every time, also on a GPU."""
    if X.device.type == "cpu":
        return X.new_zeros(l, X.shape[1]).index_add_(0, y, X)
    return X.new_zeros(len(y), l).scatter_(1, y[:, None], 1).T @ X


def steps_threads(products: int) -> AbstractContextManager[None]:
    """Threads of torch for steps of so many products each: small ones are faster on one."""
    return threads_for(products // 500)
