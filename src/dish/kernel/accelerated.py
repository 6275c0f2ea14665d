"""Nesterov's accelerated gradient with backtracking and restart, for a loss of F = K W."""

from __future__ import annotations

from collections.abc import Callable

from dish.lazy import Tensor
from dish.parallel import ALONE, Ranks

LossAndSlope = Callable[[Tensor], tuple[float, Tensor]]


def descend(
    K: Tensor,
    W: Tensor,
    loss: LossAndSlope,
    n_steps: int,
    *,
    F: Tensor,
    curvature: float,
    precondition: Callable[[Tensor], Tensor] = lambda gradient: gradient,
    ranks: Ranks = ALONE,
) -> tuple[Tensor, Tensor]:
    """W (m, r) or (m,) with a lower loss(F), and its F = K W, given W and F = K W to start from.

    ``loss`` gives the loss of F over all processes and its slope in F. Steps are −D/c with D the preconditioned
    gradient. The curvature c is doubled until the loss falls as far as a function of that curvature must: start it
    low. A step that raises the loss all the same ends the run of the momentum. Two products with K per step.
    """
    W_before, F_before, loss_before, t = W, F, float("inf"), 1.0
    for _ in range(n_steps):
        t, beta = _momentum(t)
        V, F_V = W + beta * (W - W_before), F + beta * (F - F_before)
        loss_V, slope = loss(F_V)
        gradient = ranks.total(K.T @ slope).to(K.dtype)
        D = precondition(gradient)
        fall, KD = float((gradient.double() * D.double()).sum()), K @ D
        enough = loss_V + 1e-6 * abs(loss_V)
        while (reached := loss(F_V - KD / curvature)[0]) > enough - fall / (2 * curvature):
            curvature *= 2
        W_before, F_before = W, F
        W, F = V - D / curvature, F_V - KD / curvature
        if reached > loss_before:  # the momentum has carried it past the minimum
            t, W_before, F_before = 1.0, W, F
        loss_before = reached
    return W, F


def _momentum(t: float) -> tuple[float, float]:
    """The next t, and the share β of the last move that is made again."""
    after = (1 + (1 + 4 * t * t) ** 0.5) / 2
    return after, (t - 1) / after
