"""SFHC: features and codes learned at once from triplets.

Lai, Pan, Liu, Yan, "Simultaneous feature learning and hash coding with deep neural networks", CVPR 2015.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dish import codes
from dish.baselines.dhn import similar_pairs
from dish.deep.hasher import DeepHasher
from dish.similarity import Similarity


class SFHC(DeepHasher):
    """min Σ max(0, m − ‖z − z⁻‖² + ‖z − z⁺‖²), z = sigmoid(F) in [0, 1], over triplets within a batch.

    The margin is m = r/4, so that it does not fade as codes grow; every anchor and similar row of the batch meets
    every dissimilar row.
    """

    def _learn(self, S: Similarity) -> None:
        if self._read_checkpoint() is None:
            self._train(self._triplet_loss, 0)
            self._write_checkpoint(0, codes.pack(self._outputs().cpu().numpy()))

    def _triplet_loss(self, phi: Tensor, F: Tensor, rows: Tensor) -> Tensor:
        z = torch.sigmoid(F)
        squared = (z * z).sum(1)
        distance = squared[:, None] + squared - 2 * z @ z.T  # (b, b)
        similar = similar_pairs(self._targets[rows]).bool()
        anchor, positive = torch.nonzero(similar.fill_diagonal_(False), as_tuple=True)
        if len(anchor) == 0:
            return 0 * F.sum()
        other = ~similar[anchor]  # (pairs, b): dissimilar to the anchor
        other[torch.arange(len(anchor)), anchor] = False
        gap = self.n_bits / 4 - distance[anchor] + distance[anchor, positive][:, None]  # (pairs, b)
        return (gap.clamp(min=0) * other).sum() / other.sum().clamp(min=1)
