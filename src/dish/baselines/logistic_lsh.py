"""Logistic regression and LSH: signs of random projections of the probabilities of the labels."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dish.baselines._logistic import LogisticHasher
from dish.posterior.regression import MOST_HELD_OUT, Pool


class LogisticLSH(LogisticHasher):
    """h(x) = sgn(Gᵀ(p(x) − mean)), G (l, r) standard normal, p by logistic regression on the features of ``DISH``.

    The posterior hash function of ``DISH`` with random vectors for its frame.

    Parameters
    ----------
    n_bits, n_anchors, gamma, kernel, ridge, device, random_state
        As in ``DISH``.

    Attributes
    ----------
    posterior_B_ (m, l), posterior_b_ (l,), frame_ (l, r), offset_ (r,)
        F(x) = p(x) frame + offset, p(x) = softmax(k(x) B + b), or sigmoid with several labels per row.
    """

    def _codes(self, pool: Pool, W: Tensor, b: Tensor, rng: np.random.RandomState) -> tuple[Tensor, Tensor]:
        G = torch.from_numpy(rng.standard_normal((len(b), self.n_bits))).to(W)
        some = rng.permutation(pool.n)[:MOST_HELD_OUT]
        return G, -pool.scored(some, W, b)[0].mean(0) @ G
