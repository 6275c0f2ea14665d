"""CSQ: train every bit towards that of the row's hash centre.

Yuan, Wang, Zhang, Tay, Jie, Liu, Feng, "Central similarity quantization for efficient image and video retrieval",
CVPR 2020.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dish.baselines._centres import row_centres
from dish.deep.deep_hasher import DeepHasher
from dish.deep.training import Batch, Objective, Training

QUANTISATION = 1e-4  # weight of the mean of (|z| − 1)²


class CSQ(DeepHasher):
    """Binary cross-entropy of (1 + z)/2, z = tanh F, against the bits of fixed centres that are far apart."""

    def _objective(self, training: Training) -> Objective:
        centre = row_centres(training.data, self.n_bits)

        def loss(phi: Tensor, F: Tensor, batch: Batch) -> Tensor:
            return central_loss(F, centre[batch.rows])

        return Objective(loss, recordable=True)


def central_loss(F: Tensor, c: Tensor) -> Tensor:
    """−log of the probability (1 + cz)/2 of each bit, plus a penalty for z far from ±1."""
    z = torch.tanh(F)
    probability = ((1 + c * z) / 2).clamp(min=1e-6)
    return -probability.log().mean() + QUANTISATION * (z.abs() - 1).square().mean()
