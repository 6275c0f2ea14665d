"""Projections V (l, r) of label probabilities onto bits.

Codes should preserve p(x)·p(x′), the chance that two rows share a class. The signs of p V preserve the angle between
p(x) and p(x′) if V has nearly orthogonal rows or columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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
from dish.progress import progress

STEPS, RATE, BATCH = 100, 0.02, 1024  # of ``refine``
REFINEMENT = 0.1  # time of all steps, in regressions: for the progress bar
SET_STEPS, SET_RATE, SET_BATCH = 200, 0.05, 512  # of ``refine_for_sets``
QUERIES = 128  # queries per block: their scores stay in cache
SIGN_ROUNDS = 20  # of ``signed_projection``


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


def extended_projection(
    U: NDArray[np.float64], C: NDArray[np.float64], rng: np.random.RandomState
) -> NDArray[np.float64]:
    """Rows (k, r) with the signs of C that extend U (l, r) to a matrix with nearly orthogonal columns or rows.

    The same alternation as ``signed_projection``, with the rows U fixed.
    """
    more = C * np.abs(rng.standard_normal(C.shape))
    with one_blas_thread():
        for _ in range(SIGN_ROUNDS if len(C) else 0):
            near = nearest_orthogonal(np.concatenate([U, more]))
            size = np.linalg.norm(U) / np.linalg.norm(near[: len(U)])
            more = C * np.abs(size * near[len(U) :])
    return more


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
    return V, -centre(len(V)) * V.sum(0)


def centre(l: int) -> float:  # noqa: E741
    """c: nearly the mean 1/l of p. With exactly 1/l, all bits of two classes would be the same."""
    return (1 - 1 / l**2) / l


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
    (p, y), (p_seen, y_seen), c = held, seen, centre(len(V))
    return _ranking_steps(V, (p - c, y), (p_seen - c, y_seen), rng, batch)


def refine_new_rows(
    U: Tensor,
    is_old: Tensor,
    held: tuple[Tensor, Tensor],
    seen: tuple[Tensor, Tensor],
    rng: np.random.RandomState,
    batch: int = BATCH,
) -> Tensor:
    """U (l, r) after the same steps, for outputs pU; rows of old classes (l,) stay as they are."""
    if bool(is_old.all()):
        return U
    found = _ranking_steps(U, held, seen, rng, batch, is_old)
    return torch.where(is_old[:, None], U, found)


def _ranking_steps(
    V: Tensor,
    held: tuple[Tensor, Tensor],
    seen: tuple[Tensor, Tensor],
    rng: np.random.RandomState,
    batch: int,
    fixed: Tensor | None = None,
) -> Tensor:
    """V after Adam steps for scores G and classes of both kinds of rows; ``fixed``: rows of V without steps."""
    (G, y), (G_seen, y_seen) = held, seen
    scale = (G @ V).square().mean().sqrt()
    V = V / scale
    log_beta = V.new_tensor(math.log(10.0))
    size = min(batch, len(G), len(G_seen))

    def gradients(rows: Tensor) -> tuple[Tensor, ...]:
        i, j = rows
        of_V, of_beta = ranking_gradient(V, log_beta, (G[i], y[i]), (G_seen[j], y_seen[j]))
        return of_V if fixed is None else of_V.masked_fill(fixed[:, None], 0), of_beta

    with steps_threads(2 * size * size * V.shape[1]):
        draws = _draws([len(G), len(G_seen)], size, STEPS, rng, G.device)
        adam([V, log_beta], [RATE * float(V.square().mean().sqrt()), RATE], gradients, draws)
    return V if fixed is None else V * scale


def refine_for_sets(
    V: Tensor,
    offset: Tensor,
    held: tuple[Tensor, Tensor],
    Y_seen: Tensor,
    rng: np.random.RandomState,
    is_old: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """V and the offset after Adam steps on a pair loss: two rows that share a label should have similar codes.

    ``held`` are scores G (n, l) and labels Y (n, l) of held-out rows, the queries. They and the codes of the label
    sets Y_seen (n′, l), of 0 and 1, are the database: a row with labels needs no scores. ``is_old`` (l,): rows of V
    that stay as they are, and so does the offset.
    """
    if is_old is not None and bool(is_old.all()):
        return V, offset
    (G, Y), start = held, (V, offset)
    scale = (G @ V + offset).square().mean().sqrt()
    V, offset = V / scale, offset / scale
    log_beta, bias = V.new_tensor(math.log(5.0)), V.new_zeros(())
    size = min(SET_BATCH, len(G), len(Y_seen))

    def gradients(rows: Tensor) -> tuple[Tensor, ...]:
        i, j = rows
        of_V, of_offset, *others = pair_gradient(V, offset, log_beta, bias, (G[i], Y[i]), Y_seen[j])
        if is_old is not None:
            of_V, of_offset = of_V.masked_fill(is_old[:, None], 0), torch.zeros_like(of_offset)
        return of_V, of_offset, *others

    with steps_threads(0):  # such small products are quickest on one thread, and sums do not depend on their number
        draws = _draws([len(G), len(Y_seen)], size, SET_STEPS, rng, G.device)
        size_of_V = float(V.square().mean().sqrt())
        rates = [SET_RATE * size_of_V, SET_RATE * size_of_V, SET_RATE, SET_RATE]
        adam([V, offset, log_beta, bias], rates, gradients, draws)
    return (V, offset) if is_old is None else (torch.where(is_old[:, None], start[0], V * scale), start[1])


def _draws(lengths: list[int], size: int, steps: int, rng: np.random.RandomState, device: torch.device) -> Tensor:
    """Row indices (steps, 2, size) for all steps, without repetition within a step; on a GPU they are drawn there."""
    if device.type != "cuda":
        draws = [[rng.choice(n, size, replace=False) for n in lengths] for _ in range(steps)]
        return torch.from_numpy(np.array(draws))
    draw = torch.Generator(device).manual_seed(int(rng.randint(2**31 - 1)))
    keys = [torch.rand(steps, n, generator=draw, device=device) for n in lengths]
    return torch.stack([each.argsort(1)[:, :size] for each in keys], 1)


def adam(
    thetas: list[Tensor],
    rates: list[float],
    gradients: Callable[[Tensor], tuple[Tensor, ...]],
    draws: Tensor,
) -> None:
    """Adam steps on parameters, with rates that fall to 3 %. They are updated in place: a GPU replays a CUDA graph.

    ``gradients`` are those of the parameters on a draw of rows; ``draws`` are those of all steps.
    """
    moments = [(torch.zeros_like(theta), torch.zeros_like(theta)) for theta in thetas]
    times = range(1, len(draws) + 1)
    schedule = thetas[0].new_tensor([[0.03 ** (t / len(draws)), 1 - 0.9**t, 1 - 0.999**t] for t in times])
    rows, constants, graph = draws[0].clone(), schedule[0].clone(), CudaGraph(draws.device)

    def step() -> None:
        decay, first, second = constants
        for theta, gradient, rate, (mean, square) in zip(thetas, gradients(rows), rates, moments, strict=True):
            mean.mul_(0.9).add_(0.1 * gradient)
            square.mul_(0.999).add_(0.001 * gradient.square())
            theta.sub_(rate * decay * (mean / first) / ((square / second).sqrt() + 1e-8))

    with progress("refinement", len(draws), counts=REFINEMENT) as done:
        for draw, values in zip(draws, schedule, strict=True):
            rows.copy_(draw)
            constants.copy_(values)
            graph(step)
            done(1)


def pair_gradient(
    V: Tensor, offset: Tensor, log_beta: Tensor, bias: Tensor, queries: tuple[Tensor, Tensor], Y_other: Tensor
) -> tuple[Tensor, ...]:
    """Gradient of the pair loss in V, the offset, log β and the bias.

    With Φ = tanh(GV + offset) instead of signs, the loss is the cross-entropy, averaged over pairs of a query and
    another row, of "they share a label" under the probability σ(β ΦΦ′ᵀ/r + bias).
    """
    G, Y = queries
    q, beta = len(G), log_beta.exp() / V.shape[1]
    scores, labels = torch.cat([G, Y_other]), torch.cat([Y, Y_other])
    D = torch.tanh(scores @ V + offset)
    products = D[:q] @ D.T
    E = (torch.sigmoid(beta * products + bias) - (Y @ labels.T > 0).to(D)) / products.numel()
    E[:, :q].fill_diagonal_(0)  # a query does not find itself
    gradient = beta * (E.T @ D[:q])
    gradient[:q] += beta * (E @ D)
    gradient.mul_(1 - D * D)
    return scores.T @ gradient, gradient.sum(0), beta * (E * products).sum(), E.sum()


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
