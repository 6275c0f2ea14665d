"""LogisticClass: the codeword of the predicted class (no paper), to show what a classifier alone gives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dish.baselines._hadamard import codewords
from dish.baselines._logistic import LogisticHasher
from dish.encoder import Array, Posterior, namespace
from dish.lazy import Tensor, torch
from dish.posterior.regression import WhitenedRows


@dataclass(frozen=True)
class MostLikely(Posterior):
    """F = p_c v_c for the most likely label c, so the signs are those of its codeword v_c."""

    def __call__(self, K: Array) -> Array:
        """p_c v_c."""
        p = self.probabilities(K)
        label = namespace(p).argmax(p, 1)
        return p[range(len(p)), label][:, None] * self.V[label]


class LogisticClass(LogisticHasher):
    """The codeword of the most likely label, by logistic regression on the features of ``DISH``.

    Rows of the same predicted class have the same code. The codewords are rows of a Hadamard matrix. If all of its
    columns are used, any two codewords differ in half of the bits. A search then returns the query's class first,
    and all other rows at one distance. Multi-label rows are coded by their most likely label only.

    Parameters
    ----------
    n_bits, n_anchors, gamma, kernel, ridge, device, random_state
        As in ``DISH``; ``ridge`` as in ``DISHK``.

    Attributes
    ----------
    hash_function_ : MostLikely
        p(x) = softmax(k(x) B + b), or a sigmoid per label for multi-label data; V (l, r) are the codewords of ±1.
    """

    _function_of = MostLikely

    def _codes(self, rows: WhitenedRows, W: Tensor, b: Tensor, rng: np.random.RandomState) -> tuple[Tensor, Tensor]:
        C = torch.from_numpy(codewords(len(b), self.n_bits, rng))
        return C, C.new_zeros(self.n_bits)
