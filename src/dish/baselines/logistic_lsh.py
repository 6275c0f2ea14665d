"""LogisticLSH: signs of random projections of label probabilities (no paper)."""

from __future__ import annotations

import numpy as np

from dish.baselines._logistic import LogisticHasher
from dish.lazy import Tensor, torch
from dish.posterior.regression import WhitenedRows
from dish.posterior.selection import MOST_HELD_OUT


class LogisticLSH(LogisticHasher):
    """h(x) = sgn(Gᵀ(p(x) − mean)) with a standard normal G (l, r) and p by logistic regression.

    It differs from ``DISH`` in that the projection of p is random.

    Parameters
    ----------
    n_bits, n_anchors, gamma, kernel, ridge, device, random_state
        As in ``DISH``; ``ridge`` as in ``DISHK``.

    Attributes
    ----------
    hash_function_ : dish.encoder.Posterior
        F(x) = p(x) V + offset with p(x) = softmax(k(x) B + b), or a sigmoid per label for multi-label data.
    """

    def _codes(self, rows: WhitenedRows, W: Tensor, b: Tensor, rng: np.random.RandomState) -> tuple[Tensor, Tensor]:
        G = torch.from_numpy(rng.standard_normal((len(b), self.n_bits))).to(W)
        some = rng.permutation(rows.n)[:MOST_HELD_OUT]
        return G, -rows.scored(some, W, b)[0].mean(0) @ G
