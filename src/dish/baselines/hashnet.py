"""HashNet: a weighted pairwise likelihood, and a tanh that grows into the sign.

Cao, Long, Wang, Yu, "HashNet: deep learning to hash by continuation", ICCV 2017.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from dish.baselines.dhn import similar_pairs
from dish.deep.checkpoint import State
from dish.deep.deep_hasher import DeepHasher, Fitted
from dish.deep.training import Batch, Training

STEEPEST = 10.0  # β at the end
SLOPE = 10.0  # of the likelihood in z·z′/r


class HashNet(DeepHasher):
    """max Σ w_ij log p(s_ij | z_i, z_j), p the logistic function of 10 z_i·z_j / r, z = tanh(βF), β from 1 to 10.

    Pairs are those within a batch; w_ij makes similar and dissimilar ones count alike.
    """

    def _learn(self, training: Training, done: State | None) -> Fitted:
        targets = training.problem.targets
        total = training.steps_of(training.problem.n) * training.settings.accumulate
        growing = torch.ones((), device=training.problem.device)  # a tensor: recorded steps see it change

        def loss(phi: Tensor, F: Tensor, batch: Batch) -> Tensor:
            beta = growing.clone()
            growing.add_((STEEPEST - 1) / total)
            return weighted_pair_loss(F, targets[batch.rows], beta)

        if done is None:
            training.run(loss, 0, training.optimiser(), same=True)
            training.save(0, training.codes())
        return {}


def weighted_pair_loss(F: Tensor, target: Tensor, beta: Tensor | float) -> Tensor:
    """−log p of the pairs of a batch, those of similar rows weighing as much in all as the others."""
    z = torch.tanh(beta * F)
    theta = SLOPE * z @ z.T / F.shape[1]
    similar = similar_pairs(target)
    likelihood = functional.softplus(theta) - similar * theta  # −log p
    pairs = 1 - torch.eye(len(z), device=z.device)
    parts = [(likelihood * w).sum() / w.sum().clamp(min=1) for w in (similar * pairs, (1 - similar) * pairs)]
    return parts[0] + parts[1]
