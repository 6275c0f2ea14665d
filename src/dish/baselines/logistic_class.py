"""Logistic regression with the class as the code: what a classifier alone gives a search for rows of one class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dish.baselines._hadamard import codewords
from dish.baselines._logistic import LogisticHasher
from dish.kernel.functions import Posterior
from dish.posterior.regression import Pool


@dataclass(frozen=True)
class MostLikely(Posterior):
    """F = p_c v_c, c the most likely label: the signs are those of its codeword v_c, whatever the others are."""

    NAMES = ("posterior_B_", "posterior_b_", "codewords_", "offset_", "link_")

    def __call__(self, K: Tensor) -> NDArray[np.float32]:
        """p_c v_c."""
        p, label = self.probabilities(K).max(1)
        return np.asarray((p[:, None] * self.V[label]).cpu().numpy(), np.float32)


class LogisticClass(LogisticHasher):
    """The codeword of the most likely label, by logistic regression on the features of ``DISH``.

    Rows that are taken for the same class have the same code. The codewords are rows of a Hadamard matrix: with as
    many bits as it has columns any two differ in half of them, so that a search finds the rows of the query's class
    first and all others after that, in no order. Of several labels the most likely one alone counts.

    Parameters
    ----------
    n_bits, n_anchors, gamma, kernel, ridge, device, random_state
        As in ``DISH``.

    Attributes
    ----------
    posterior_B_ (m, l), posterior_b_ (l,)
        p(x) = softmax(k(x) B + b), or sigmoid with several labels per row.
    codewords_ (l, r)
        Of ±1.
    """

    _function_of = MostLikely

    def _codes(self, pool: Pool, W: Tensor, b: Tensor, rng: np.random.RandomState) -> tuple[Tensor, Tensor]:
        C = torch.from_numpy(codewords(len(b), self.n_bits, rng))
        return C, C.new_zeros(self.n_bits)
