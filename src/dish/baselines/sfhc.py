"""SFHC: features and codes learned at once from triplets.

Lai, Pan, Liu, Yan, "Simultaneous feature learning and hash coding with deep neural networks", CVPR 2015.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dish.baselines.dhn import similar_pairs
from dish.deep.checkpoint import State
from dish.deep.deep_hasher import DeepHasher, Fitted
from dish.deep.training import Batch, Training


class SFHC(DeepHasher):
    """min Σ max(0, m − ‖z − z⁻‖² + ‖z − z⁺‖²), z = sigmoid(F) in [0, 1], over triplets within a batch.

    The margin is m = r/4, so that it does not fade as codes grow; every anchor and similar row of the batch meets
    every dissimilar row.
    """

    def _learn(self, training: Training, done: State | None) -> Fitted:
        targets = training.problem.targets

        def loss(phi: Tensor, F: Tensor, batch: Batch) -> Tensor:
            return triplet_loss(F, targets[batch.rows])

        if done is None:
            training.run(loss, 0, training.optimiser())
            training.save(0, training.codes())
        return {}


def triplet_loss(F: Tensor, target: Tensor) -> Tensor:
    """The mean of max(0, r/4 − ‖z − z⁻‖² + ‖z − z⁺‖²) over the triplets of a batch."""
    z = torch.sigmoid(F)
    squared = (z * z).sum(1)
    distance = squared[:, None] + squared - 2 * z @ z.T  # (b, b)
    similar = similar_pairs(target).bool()
    anchor, positive = torch.nonzero(similar.fill_diagonal_(False), as_tuple=True)
    if len(anchor) == 0:
        return 0 * F.sum()
    other = ~similar[anchor]  # (pairs, b): dissimilar to the anchor
    other[torch.arange(len(anchor)), anchor] = False
    gap = F.shape[1] / 4 - distance[anchor] + distance[anchor, positive][:, None]  # (pairs, b)
    return (gap.clamp(min=0) * other).sum() / other.sum().clamp(min=1)
