"""HashNet: the weighted likelihood of pairs, with a tanh that approaches the sign.

Cao, Long, Wang, Yu, "HashNet: deep learning to hash by continuation", ICCV 2017.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from dish.baselines.dhn import similar_pairs
from dish.deep.deep_hasher import DeepHasher
from dish.deep.training import Batch, Objective, Training

STEEPEST = 10.0  # β at the end
SCALE = 10.0  # of z·z′/r in the likelihood


class HashNet(DeepHasher):
    """max Σ w_ij log p(s_ij | z_i, z_j), p the logistic function of 10 z_i·z_j / r, z = tanh(βF), β from 1 to 10.

    Pairs are those within a batch. The weights w_ij make similar and dissimilar pairs count equally.
    """

    def _objective(self, training: Training) -> Objective:
        targets = training.data.targets
        n, settings = training.data.n, training.settings
        total = settings.epochs * training.steps_per_epoch(n) * settings.accumulate
        growing = torch.ones((), device=training.data.device)  # a tensor, so that recorded steps can change it

        def loss(phi: Tensor, F: Tensor, batch: Batch) -> Tensor:
            beta = growing.clone()
            growing.add_((STEEPEST - 1) / total)
            return weighted_pair_loss(F, targets[batch.rows], beta)

        return Objective(loss, recordable=True)


def weighted_pair_loss(F: Tensor, target: Tensor, beta: Tensor | float) -> Tensor:
    """−log p of the pairs of a batch; similar pairs together weigh as much as the others."""
    z = torch.tanh(beta * F)
    theta = SCALE * z @ z.T / F.shape[1]
    similar = similar_pairs(target)
    likelihood = functional.softplus(theta) - similar * theta  # −log p
    pairs = 1 - torch.eye(len(z), device=z.device)
    parts = [(likelihood * w).sum() / w.sum().clamp(min=1) for w in (similar * pairs, (1 - similar) * pairs)]
    return parts[0] + parts[1]
