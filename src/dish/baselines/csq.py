"""CSQ: every bit towards that of the row's hash centre.

Yuan, Wang, Zhang, Tay, Jie, Liu, Feng, "Central similarity quantization for efficient image and video retrieval",
CVPR 2020.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dish.baselines._centres import row_centres
from dish.deep.checkpoint import State
from dish.deep.deep_hasher import DeepHasher, Fitted
from dish.deep.training import Batch, Training

QUANTISATION = 1e-4  # weight of the mean of (|z| − 1)²


class CSQ(DeepHasher):
    """Binary cross-entropy of (1 + z)/2, z = tanh F, against the bits of fixed centres far from each other."""

    def _learn(self, training: Training, done: State | None) -> Fitted:
        centre = row_centres(training.problem, self.n_bits)

        def loss(phi: Tensor, F: Tensor, batch: Batch) -> Tensor:
            return central_loss(F, centre[batch.rows])

        if done is None:
            training.run(loss, 0, training.optimiser(), same=True)
            training.save(0, training.codes())
        return {}


def central_loss(F: Tensor, c: Tensor) -> Tensor:
    """−log of the chance (1 + cz)/2 of each bit, and how far z is from ±1."""
    z = torch.tanh(F)
    chance = ((1 + c * z) / 2).clamp(min=1e-6)
    return -chance.log().mean() + QUANTISATION * (z.abs() - 1).square().mean()
