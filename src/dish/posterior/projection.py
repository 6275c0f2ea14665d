"""Projections V (l, r) of label probabilities onto bits.

Codes should preserve p(x)·p(x′), the chance that two rows share a class. The signs of p V preserve the angle between
p(x) and p(x′) if V has nearly orthogonal rows or columns.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from dish import threads
from dish.cuda.graph import CudaGraph
from dish.kernel.features import feature_blocks
from dish.kernel.spectral import polar_factor
from dish.lazy import Tensor, torch
from dish.machine import one_blas_thread, threads_for

STEPS, RATE, BATCH = 100, 0.02, 1024  # of ``refine``
QUERIES = 128  # queries per block: their scores stay in cache
ITQ_ROUNDS = 30
SIGN_ROUNDS = 20  # of ``signed_projection``
CENTRE = 0.75  # share of the mean 1/l of p that is subtracted; with all of it, two classes would get only one bit


def signed_projection(
    C: NDArray[np.float64], rng: np.random.RandomState, device: torch.device | None = None
) -> Tensor:
    """V (l, r) with the signs of C and nearly orthogonal columns (r ≤ l) or rows.

    Alternates between the nearest orthogonal matrix and the nearest matrix with these signs.
    """
    V = C * np.abs(rng.standard_normal(C.shape))
    if device is not None and device.type == "cuda":
        return _signed_on_device(*(torch.from_numpy(A).to(device) for A in (V, C)))
    with one_blas_thread():
        for _ in range(SIGN_ROUNDS):
            V = C * np.abs(nearest_orthogonal(V))
    return torch.from_numpy(V)


def _signed_on_device(V: Tensor, C: Tensor) -> Tensor:
    """The same on a GPU, without synchronisation."""
    graph = CudaGraph(V.device)

    def turn() -> None:
        V.copy_(C * polar_factor(V).abs())

    for _ in range(SIGN_ROUNDS):
        graph(turn)
    return V


def nearest_orthogonal(V: NDArray[np.float64]) -> NDArray[np.float64]:
    """UWᵀ of the singular value decomposition of V, that is V (VᵀV)^−½, or (VVᵀ)^−½ V if V is wide."""
    if len(V) < V.shape[1]:
        return nearest_orthogonal(V.T).T
    values, Q = np.linalg.eigh(V.T @ V)
    if values[0] > 1e-6 * values[-1]:  # a small eigenproblem takes a tenth of the time
        return np.asarray(V @ ((Q / np.sqrt(values)) @ Q.T))
    left, _, right = np.linalg.svd(V, full_matrices=False)
    return np.asarray(left @ right)


def centred(V: Tensor) -> tuple[Tensor, Tensor]:
    """V, and the offset −c 1ᵀV that centres p."""
    return V, -CENTRE / len(V) * V.sum(0)


def principal_projections(G: Tensor, r: int, rng: np.random.RandomState) -> list[Tensor]:
    """Projections onto the principal directions of the scores G (n, l).

    All directions or half of them, rotated by ITQ so that signs lose little, and all directions rotated at random.
    """
    l = G.shape[1]  # noqa: E741
    _, U = torch.linalg.eigh((G.T @ G).double().cpu())
    found = []
    for p, rounds in ((min(l, r), ITQ_ROUNDS), (max(1, min(l, r) // 2), ITQ_ROUNDS), (min(l, r), 0)):
        U_p = U[:, -p:].to(G)
        R, _ = rotation((G @ U_p).double(), r, rounds, rng)
        found.append(U_p @ torch.from_numpy(R).to(G))
    return found


def rotation(
    V: Tensor, r: int, n_iter: int, random_state: np.random.RandomState
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """ITQ: minimise ‖B − VR‖² over R (p, r) with orthonormal rows and B = sgn(VR). Returns R, the loss per round."""
    n, p = V.shape
    R = torch.from_numpy(np.linalg.qr(random_state.standard_normal((r, r)))[0][:p]).to(V)
    if V.device.type == "cuda":
        return _rotation_on_device(V, R, n_iter)
    squared_norm = float(V.square().sum())
    loss = []
    for _ in range(n_iter):
        U, s, Wt = torch.linalg.svd(_signs_product(V, R), full_matrices=False)
        R = U @ Wt  # the Procrustes solution maximises tr(BᵀVR) = Σ s
        loss.append(n * r + squared_norm - 2 * float(s.sum()))  # ‖B‖² + ‖VR‖² − 2 tr(BᵀVR)
    return R.numpy(), np.array(loss)


def _rotation_on_device(V: Tensor, R: Tensor, n_iter: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The same on a GPU, without synchronisation."""
    graph, trace, traces = CudaGraph(V.device), V.new_zeros(()), V.new_zeros(n_iter)

    def turn() -> None:
        VtB = _signs_product(V, R)
        R.copy_(polar_factor(VtB))
        trace.copy_((VtB * R).sum())

    for i in range(n_iter):
        graph(turn)
        traces[i] = trace
    loss = len(V) * R.shape[1] + V.square().sum() - 2 * traces
    return R.cpu().numpy(), loss.cpu().numpy()


def _signs_product(V: Tensor, R: Tensor) -> Tensor:
    """VᵀB (p, r) with B = sgn(VR), which is not stored."""
    VtB = torch.zeros_like(R)
    for _, v in feature_blocks(V):
        VtB += v.T @ torch.where(v @ R >= 0, 1.0, -1.0).to(v)
    return VtB


def refine(
    V: Tensor,
    held: tuple[Tensor, Tensor],
    seen: tuple[Tensor, Tensor],
    rng: np.random.RandomState,
    batch: int = BATCH,
) -> Tensor:
    """V after a few Adam steps on a ranking loss: rows of a query's class should come first.

    ``held`` and ``seen`` are p (n, l) and classes (n,) of held-out rows and of rows that B was trained on. Held-out
    rows are the queries; both kinds are the database. Or both are held-out rows, of different folds. ``batch``: rows
    of each kind per step.
    """
    (G, y), (G_seen, y_seen) = ((p - CENTRE / p.shape[1], y) for p, y in (held, seen))
    V = V / (G @ V).square().mean().sqrt()
    size = min(batch, len(G), len(G_seen))
    refinement = Refinement(V, (G, y), (G_seen, y_seen), size)
    with steps_threads(2 * size * size * V.shape[1]):
        for t, rows in enumerate(_draws([len(G), len(G_seen)], size, rng, G.device), 1):
            refinement.step(t, rows)
    return refinement.V


def _draws(lengths: list[int], size: int, rng: np.random.RandomState, device: torch.device) -> Tensor:
    """Row indices (steps, 2, size) for all steps, without repetition within a step; on a GPU they are drawn there."""
    if device.type != "cuda":
        draws = [[rng.choice(n, size, replace=False) for n in lengths] for _ in range(STEPS)]
        return torch.from_numpy(np.array(draws))
    draw = torch.Generator(device).manual_seed(int(rng.randint(2**31 - 1)))
    keys = [torch.rand(STEPS, n, generator=draw, device=device) for n in lengths]
    return torch.stack([each.argsort(1)[:, :size] for each in keys], 1)


class Refinement:
    """Adam steps on V and log β, updated in place, so that a GPU can replay a step as a CUDA graph."""

    def __init__(self, V: Tensor, held: tuple[Tensor, Tensor], seen: tuple[Tensor, Tensor], size: int) -> None:
        self.V, self.log_beta = V, V.new_tensor(math.log(10.0))
        self.held, self.seen = held, seen
        self.scale = float(V.square().mean().sqrt())
        self.moments = [(torch.zeros_like(part), torch.zeros_like(part)) for part in (V, self.log_beta)]
        self.rows = torch.zeros(2, size, dtype=torch.int64, device=V.device)
        self.constants = V.new_zeros(4)  # both learning rates and both bias corrections of the current step
        self.schedule = V.new_tensor([self._constants(t) for t in range(1, STEPS + 1)])
        self.graph = CudaGraph(V.device)

    def _constants(self, t: int) -> list[float]:
        decay = 0.03 ** (t / STEPS)
        return [decay * (RATE * self.scale), decay * RATE, 1 - 0.9**t, 1 - 0.999**t]

    def step(self, t: int, rows: Tensor) -> None:
        """Step t = 1, 2, … on the given rows (2, size) of the held-out and the seen rows."""
        self.constants.copy_(self.schedule[t - 1])
        self.rows.copy_(rows)
        self.graph(self._step)

    def _step(self) -> None:
        some = [(G[i], y[i]) for (G, y), i in zip((self.held, self.seen), self.rows, strict=True)]
        gradients = ranking_gradient(self.V, self.log_beta, some[0], some[1])
        *rates, first, second = self.constants
        for theta, gradient, rate, (mean, square) in zip(
            (self.V, self.log_beta), gradients, rates, self.moments, strict=True
        ):
            mean.mul_(0.9).add_(0.1 * gradient)
            square.mul_(0.999).add_(0.001 * gradient.square())
            theta.sub_(rate * (mean / first) / ((square / second).sqrt() + 1e-8))


def ranking_gradient(
    V: Tensor, log_beta: Tensor, queries: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Gradient of the ranking loss in V and log β.

    With Φ = tanh(GV) instead of signs, the loss is the cross-entropy, averaged over queries, of "another row of my
    class" under P = softmax(β ΦΦ′ᵀ/r) over the queries and the other rows. Its gradient in the scores is P minus
    equal shares for the rows of the class. Products with these shares are class means, so P is the only pairwise
    matrix.
    """
    (G, y), (G_other, y_other) = queries, others
    q, beta = len(G), log_beta.exp() / V.shape[1]
    Phi, Phi_other = torch.tanh(G @ V), torch.tanh(G_other @ V)
    D, y_all, l = torch.cat([Phi, Phi_other]), torch.cat([y, y_other]), G.shape[1]  # noqa: E741
    mates = class_sums(y_all, l, torch.ones_like(D[:, :1]))[y].sub_(1)  # (q, 1): other rows of the query's class
    has_mates = (mates > 0).to(D)
    share = has_mates / mates.clamp(min=1)
    wanted = share * (class_sums(y_all, l, D)[y] - Phi)  # (q, r): mean Φ of the mates
    shared = share * Phi
    wanting = class_sums(y, l, shared)[y_all]  # for each row, Φ of the queries that it is a mate of
    wanting[:q] -= shared

    found, finding = softmax_products(beta, D, has_mates)
    gradient = beta / q * (finding - wanting)
    gradient[:q] += beta / q * (has_mates * found - wanted)
    gradient_beta = beta / q * (Phi * (has_mates * found - wanted)).sum()
    gradient.mul_(1 - D * D)
    return G.T @ gradient[:q] + G_other.T @ gradient[q:], gradient_beta


def softmax_products(beta: Tensor, D: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """P D (q, r) and Pᵀ(w ∘ D_q) (n, r) with P = softmax(β D_q Dᵀ), D_q the first q rows and w their weights (q, 1).

    P_ii = 0: a query does not find itself. The CPU works on a few queries at a time, so that their P stays in cache.
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
    """Rows of X summed by class, (l, r), in a deterministic order on the GPU too."""
    if X.device.type == "cpu":
        return X.new_zeros(l, X.shape[1]).index_add_(0, y, X)
    return X.new_zeros(len(y), l).scatter_(1, y[:, None], 1).T @ X


def steps_threads(products: int) -> AbstractContextManager[None]:
    """Limit torch's threads to what pays off for steps of this many multiplications."""
    return threads_for(products // 500)
