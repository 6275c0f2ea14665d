"""SFHC: features and codes learned together from triplets.

Lai, Pan, Liu, Yan, "Simultaneous feature learning and hash coding with deep neural networks", CVPR 2015.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dish.baselines.dhn import similar_pairs
from dish.deep.deep_hasher import DeepHasher
from dish.deep.training import Batch, Objective, Training


class SFHC(DeepHasher):
    """min Σ max(0, m − ‖z − z⁻‖² + ‖z − z⁺‖²), z = sigmoid(F) in [0, 1], over triplets within a batch.

    The margin is m = r/4, so that it grows with the codes. All triplets within a batch are used.
    """

    def _objective(self, training: Training) -> Objective:
        targets = training.data.targets

        def loss(phi: Tensor, F: Tensor, batch: Batch) -> Tensor:
            return triplet_loss(F, targets[batch.rows])

        return Objective(loss)


def triplet_loss(F: Tensor, target: Tensor) -> Tensor:
    """The mean of max(0, r/4 − ‖z − z⁻‖² + ‖z − z⁺‖²) over the triplets of a batch."""
    z = torch.sigmoid(F)
    squared = (z * z).sum(1)
    distance = squared[:, None] + squared - 2 * z @ z.T  # (b, b)
    similar = similar_pairs(target).bool()
    anchor, positive = torch.nonzero(similar.fill_diagonal_(False), as_tuple=True)
    if len(anchor) == 0:
        return 0 * F.sum()
    other = ~similar[anchor]  # (pairs, b): rows that are dissimilar to the anchor
    other[torch.arange(len(anchor)), anchor] = False
    gap = F.shape[1] / 4 - distance[anchor] + distance[anchor, positive][:, None]  # (pairs, b)
    return (gap.clamp(min=0) * other).sum() / other.sum().clamp(min=1)
