"""DHN: the likelihood of pairs, with a quantisation loss.

Zhu, Long, Wang, Cao, "Deep hashing network for efficient similarity retrieval", AAAI 2016.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from dish.deep.deep_hasher import DeepHasher
from dish.deep.training import Batch, Objective, Training

QUANTISATION = 0.1  # weight of Σ log cosh(|z| − 1), scaled by the mean over entries


class DHN(DeepHasher):
    """max Σ_ij log p(s_ij | z_i, z_j) − λ Σ log cosh(|z| − 1), p the logistic function of ½⟨z_i, z_j⟩, z = tanh F.

    Pairs are those within a batch. Similar pairs together weigh as much as dissimilar ones.
    """

    def _objective(self, training: Training) -> Objective:
        targets = training.data.targets

        def loss(phi: Tensor, F: Tensor, batch: Batch) -> Tensor:
            return pair_loss(F, targets[batch.rows])

        return Objective(loss)


def pair_loss(F: Tensor, target: Tensor) -> Tensor:
    """−log p of all pairs of a batch, plus a penalty for z far from ±1."""
    z = torch.tanh(F)
    theta = z @ z.T / 2
    similar = similar_pairs(target)
    likelihood = functional.softplus(theta) - similar * theta  # −log p
    pairs = 1 - torch.eye(len(z), device=z.device)
    positive, negative = similar * pairs, (1 - similar) * pairs
    balanced = sum((likelihood * w).sum() / w.sum().clamp(min=1) for w in (positive, negative))
    quantisation = torch.log(torch.cosh(z.abs() - 1)).mean()
    return balanced + QUANTISATION * quantisation


def similar_pairs(target: Tensor) -> Tensor:
    """(b, b) of 1 where two rows share a class (or a label), else 0."""
    if target.ndim == 2:
        return (target @ target.T > 0).float()
    return (target[:, None] == target).float()
