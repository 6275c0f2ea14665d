"""GreedyHash: the sign in the forward pass, the identity in the backward pass.

Su, Zhang, Han, Tian, "Greedy hash: towards fast optimization for accurate hash coding in CNN", NeurIPS 2018.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dish.deep.deep_hasher import DeepHasher
from dish.deep.training import Batch, Objective, Training

PENALTY = 0.1  # weight of the mean of |F − sgn F|³
RATE = 0.03  # learning rate for lr="auto" from scratch: with few bits the cubic penalty diverges at the usual 0.1


class GreedyHash(DeepHasher):
    """Classify rows by h = sgn F with a linear layer; the gradient passes the sign unchanged."""

    def _objective(self, training: Training) -> Objective:
        data = training.data
        layer = nn.Linear(training.model.n_outputs, data.n_targets).to(data.device)

        def loss(phi: Tensor, F: Tensor, batch: Batch) -> Tensor:
            h = sign(F)
            return data.classification_loss(layer(h), batch.rows) + PENALTY * (F - h.detach()).abs().pow(3).mean()

        return Objective(loss, layer, recordable=True, rate=None if training.settings.fine_tuning else RATE)


def sign(F: Tensor) -> Tensor:
    """±1, with gradient one."""
    return F + (torch.where(F >= 0, 1.0, -1.0).to(F) - F).detach()
