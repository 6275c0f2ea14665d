"""Polish: gradient steps that fit F to S itself, past the paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dish.kernel.accelerated import descend
from dish.kernel.anchors import local_rows
from dish.kernel.fit_data import Problem
from dish.kernel.whitening import Whitening
from dish.lazy import Tensor, torch
from dish.parallel import ALONE, Ranks
from dish.similarity import Similarity

POLISH_ROWS = 100_000  # of more rows a sample is enough, and its arrays stay small
EMPHASIS = 1.5  # weight of similar pairs beside what they have in S


class Products(Protocol):
    """A similarity by its products."""

    def times(self, Z: Tensor, ranks: Ranks = ALONE) -> Tensor:
        """S Z (n, k) for a dense Z (n, k)."""


@dataclass(frozen=True)
class Emphasised:
    """cS + (c − 1)11ᵀ: where S = w·A − 1 this is cw·A − 1, in which similar pairs weigh c times as much."""

    S: Similarity
    c: float = EMPHASIS

    def times(self, Z: Tensor, ranks: Ranks = ALONE) -> Tensor:
        """(cS + (c − 1)11ᵀ) Z."""
        column_sums = ranks.total(Z.sum(0, dtype=torch.float64)).to(Z.dtype)
        return self.c * self.S.times(Z, ranks) + (self.c - 1) * column_sums


def polish(problem: Problem, W: Tensor, n_steps: int) -> Tensor:
    """W (m, r) whose codes come nearer to S: accelerated gradient steps on ‖rS − ΦΦᵀ‖², Φ = tanh(KW), for all bits.

    The F-step fits F to H, one bit at a time; this fits what codes are for. Steps are taken in the coordinates in
    which KᵀK + ρI is the identity. ρ falls with the number of rows per anchor: with few of them W would learn the
    rows by heart.
    """
    K, S, ranks = problem.K, problem.S, problem.ranks
    n, n_some, r = problem.n, min(problem.n, POLISH_ROWS), W.shape[1]
    if n > n_some:
        mine, _ = local_rows(len(K), np.sort(problem.rng.choice(n, n_some, replace=False)), ranks)
        picked = torch.from_numpy(mine).to(K.device)
        K, S = K[picked], S.rows(picked)
    elif not isinstance(K, Tensor):
        K = K[torch.arange(len(K))]
    white = Whitening.of(problem.white.gram(), 0.05 * K.shape[1] / n_some)
    L_inv = white.inverse_factor().to(K.dtype) * (n / n_some) ** 0.5
    target = Emphasised(S)
    F = K @ W
    scale = (
        n_some * r / float(ranks.total(F.double().square().sum()))
    ) ** 0.5  # as in the relaxed problem: ‖Kw‖² = n
    return descend(
        K,
        scale * W,
        lambda F: smooth_loss(F, target, ranks),
        n_steps,
        F=scale * F,
        curvature=n_some * r / 64,
        precondition=lambda gradient: L_inv.T @ (L_inv @ gradient),
        ranks=ranks,
    )[0]


def smooth_loss(F: Tensor, S: Products, ranks: Ranks = ALONE) -> tuple[float, Tensor]:
    """‖rS − ΦΦᵀ‖² less its constant, −2r tr(ΦᵀSΦ) + ‖ΦᵀΦ‖² for Φ = tanh F, and its slope in F."""
    r = F.shape[1]
    phi = torch.tanh(F)
    S_phi, gram = S.times(phi, ranks), ranks.total(phi.T @ phi).to(F.dtype)
    fit = ranks.total((phi.double() * S_phi.double()).sum())
    loss = -2 * r * float(fit) + float(gram.double().square().sum())
    return loss, 4 * (phi @ gram - r * S_phi) * (1 - phi * phi)
