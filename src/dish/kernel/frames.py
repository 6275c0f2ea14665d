"""Frames V (l, r): what turns scores of labels into bits, so that signs keep the angles between rows."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager

import numpy as np
from numpy.typing import NDArray

from dish.kernel.features import feature_blocks
from dish.lazy import Tensor, torch
from dish.machine import one_blas_thread, threads_for

FRAME_STEPS, FRAME_RATE, FRAME_BATCH = 100, 0.02, 1024
ROTATIONS = 30  # rounds of ITQ


def frame(C: NDArray[np.float64], rng: np.random.RandomState) -> Tensor:
    """V (l, r) with the signs of C, and with columns (r ≤ l) or rows that are nearly orthogonal.

    Alternates between the nearest orthogonal matrix and the nearest one with these signs.
    """
    V = C * np.abs(rng.standard_normal(C.shape))
    with one_blas_thread():
        for _ in range(20):
            left, _, right = np.linalg.svd(V, full_matrices=False)
            V = C * np.abs(left @ right)
    return torch.from_numpy(V)


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
    squared_norm = float(V.square().sum())
    loss = []
    for _ in range(n_iter):
        VtB = V.new_zeros(p, r)
        for _, v in feature_blocks(V):  # B is never kept
            VtB += v.T @ torch.where(v @ R >= 0, 1.0, -1.0).to(v)
        U, s, Wt = torch.linalg.svd(VtB, full_matrices=False)
        R = U @ Wt  # the Procrustes solution: tr(BᵀVR) = Σ s, the most there is
        loss.append(n * r + squared_norm - 2 * float(s.sum()))  # ‖B‖² + ‖VR‖² − 2 tr(BᵀVR)
    return R.cpu().numpy(), np.array(loss)


def turn_frame(
    V: Tensor, held: tuple[Tensor, Tensor], seen: tuple[Tensor, Tensor], rng: np.random.RandomState
) -> Tensor:
    """V after a few of Adam's steps towards codes that rank rows of the same class first.

    A held-out row is the query; held-out rows and rows that B has seen are the database.
    """
    (G, y), (G_seen, y_seen) = ((p - 0.75 / p.shape[1], y) for p, y in (held, seen))
    V = V / (G @ V).square().mean().sqrt()
    size = min(FRAME_BATCH, len(G), len(G_seen))
    scale = float(V.square().mean().sqrt())
    theta, moments = [V, V.new_tensor(math.log(10.0))], [[torch.zeros_like(V), V.new_zeros(())] for _ in range(2)]
    with steps_threads(2 * size * size * V.shape[1]):
        for t in range(1, FRAME_STEPS + 1):
            i, j = (torch.from_numpy(rng.choice(len(part), size, replace=False)).to(G.device) for part in (G, G_seen))
            slopes = ranking_loss(theta[0], theta[1], (G[i], y[i]), (G_seen[j], y_seen[j]))[1:]
            fall = 0.03 ** (t / FRAME_STEPS)
            for k, (slope, rate) in enumerate(zip(slopes, (FRAME_RATE * scale, FRAME_RATE), strict=True)):
                moments[0][k] = 0.9 * moments[0][k] + 0.1 * slope
                moments[1][k] = 0.999 * moments[1][k] + 0.001 * slope.square()
                size_of = (moments[1][k] / (1 - 0.999**t)).sqrt() + 1e-8
                theta[k] = theta[k] - fall * rate * (moments[0][k] / (1 - 0.9**t)) / size_of
    return theta[0]


def ranking_loss(
    V: Tensor, log_beta: Tensor, queries: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, and its slopes in V and log β.

    With Φ = tanh(GV) in place of signs: the cross-entropy, mean over queries, of "another row of my class" under
    softmax(β ΦΦ′ᵀ/r) over the queries themselves and the other rows.
    """
    (G, y), (G_other, y_other) = queries, others
    q, beta = len(G), log_beta.exp() / V.shape[1]
    Phi, Phi_other = torch.tanh(G @ V), torch.tanh(G_other @ V)
    database, y_database = torch.cat([Phi, Phi_other]), torch.cat([y, y_other])
    scores = beta * (Phi @ database.T)  # (q, rows)
    scores[torch.arange(q), torch.arange(q)] = -1e4  # nobody finds itself
    same = (y[:, None] == y_database[None]).to(V.dtype)
    same[torch.arange(q), torch.arange(q)] = 0
    same /= same.sum(1, keepdim=True).clamp(min=1)
    log_p = torch.log_softmax(scores, 1)
    loss = -(same * log_p).sum(1).mean()
    slope = (log_p.exp() * same.sum(1, keepdim=True) - same) / q  # in the scores
    slope_Phi = beta * (slope @ database)
    slope_database = beta * (slope.T @ Phi)
    slope_Phi += slope_database[:q]
    slope_V = G.T @ (slope_Phi * (1 - Phi * Phi)) + G_other.T @ (slope_database[q:] * (1 - Phi_other * Phi_other))
    scores[torch.arange(q), torch.arange(q)] = 0
    return loss, slope_V, (slope * scores).sum()


def steps_threads(products: int) -> AbstractContextManager[None]:
    """Threads of torch for steps of so many products each: small ones are faster on one."""
    return threads_for(products // 500)
