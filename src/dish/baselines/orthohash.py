"""OrthoHash: one cosine softmax with a margin against fixed, nearly orthogonal codewords; batch norm before the sign.

Hoe, Ng, Zhang, Chan, Song, Xiang, "One loss for all: deep hashing with a single cosine similarity based learning
objective", NeurIPS 2021.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dish.baselines._centres import centres
from dish.deep.checkpoint import State
from dish.deep.codewords import codeword_loss, one_hot
from dish.deep.data import Problem
from dish.deep.deep_hasher import DeepHasher, Fitted
from dish.deep.solved import settle
from dish.deep.training import Batch, Training

MIXUP = 0.0  # up to this share of another row is mixed into each


class OrthoHash(DeepHasher):
    """min −log softmax(√r (cos(F, C) − m t)): the loss of ``DeepDISH(head="codewords")`` with codewords that stay.

    The codes are the signs of F.
    """

    def _outputs(self, problem: Problem) -> tuple[int, bool]:
        return self.n_bits, True

    def _learn(self, training: Training, done: State | None) -> Fitted:
        problem = training.problem
        C = torch.from_numpy(centres(problem.n_targets, self.n_bits, problem.seed)).to(problem.device)
        t = one_hot(problem.targets, problem.n_targets)

        def loss(phi: Tensor, F: Tensor, batch: Batch) -> Tensor:
            return codeword_loss(F, C, batch.blend(t[batch.rows]))

        if done is None:
            training.run(loss, 0, training.optimiser(), mixup=MIXUP, same=True)
            if MIXUP:
                settle(problem, training.model)
            training.save(0, training.codes())
        return {}
