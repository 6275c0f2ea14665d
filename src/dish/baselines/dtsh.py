"""DTSH: the likelihood of triplets.

Wang, Shi, Kitani, "Deep supervised hashing with triplet labels", ACCV 2016.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from dish.baselines.dhn import similar_pairs
from dish.deep.deep_hasher import DeepHasher
from dish.deep.training import Batch, Objective, Training

MARGIN = 0.25  # of θ⁺ − θ⁻, as a share of r/2, the largest θ of two codes
QUANTISATION = 0.1  # weight of the mean of (F − sgn F)²


class DTSH(DeepHasher):
    """max Σ log σ(θ_ij − θ_ik − margin) − λ ‖F − sgn F‖², θ_ij = ½ F_i·F_j, j similar to i and k not.

    All triplets within a batch are used.
    """

    def _objective(self, training: Training) -> Objective:
        targets = training.data.targets

        def loss(phi: Tensor, F: Tensor, batch: Batch) -> Tensor:
            return triplet_likelihood(F, targets[batch.rows])

        return Objective(loss)


def triplet_likelihood(F: Tensor, target: Tensor) -> Tensor:
    """−log σ(θ_ij − θ_ik − margin), averaged over the triplets of a batch, plus a penalty for F far from ±1."""
    quantisation = QUANTISATION * (F - torch.where(F >= 0, 1.0, -1.0).to(F)).square().mean()
    theta = F @ F.T / 2
    similar = similar_pairs(target).bool()
    positive = similar & ~torch.eye(len(F), dtype=torch.bool, device=F.device)
    anchor, other = torch.nonzero(positive, as_tuple=True)
    if len(anchor) == 0:
        return quantisation
    gap = theta[anchor, other][:, None] - theta[anchor] - MARGIN * F.shape[1] / 2  # (pairs, b)
    negative = (~similar[anchor]).to(F)
    return (functional.softplus(-gap) * negative).sum() / negative.sum().clamp(min=1) + quantisation
