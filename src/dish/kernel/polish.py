"""Polish: gradient steps that fit F to S itself, past the paper."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dish.kernel.anchors import local_rows
from dish.kernel.features import KernelMatrix
from dish.kernel.whitening import Whitening
from dish.parallel import ALONE, Ranks
from dish.similarity.labelled import Similarity

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
