"""OrthoHash: a cosine softmax with a margin against fixed, nearly orthogonal codewords; batch norm before the sign.

Hoe, Ng, Zhang, Chan, Song, Xiang, "One loss for all: deep hashing with a single cosine similarity based learning
objective", NeurIPS 2021.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dish.baselines._centres import centres
from dish.deep.codewords import codeword_loss
from dish.deep.data import DeepFitData, one_hot
from dish.deep.deep_hasher import DeepHasher
from dish.deep.training import Batch, Objective, Training


class OrthoHash(DeepHasher):
    """min −log softmax(√r (cos(F, C) − m t)): the loss of ``DeepDISH`` with fixed codewords.

    The codes are the signs of F.
    """

    def _outputs(self, data: DeepFitData) -> tuple[int, bool]:
        return self.n_bits, True

    def _objective(self, training: Training) -> Objective:
        data = training.data
        C = torch.from_numpy(centres(data.n_targets, self.n_bits, data.seed)).to(data.device)
        t = one_hot(data.targets, data.n_targets)

        def loss(phi: Tensor, F: Tensor, batch: Batch) -> Tensor:
            return codeword_loss(F, C, t[batch.rows])

        return Objective(loss, recordable=True)
