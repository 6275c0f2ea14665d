"""DPN: outputs that are beyond a margin on the right side of zero.

Fan, Ng, Ju, Zhang, Chan, "Deep polarized network for supervised learning of accurate binary hashing codes",
IJCAI 2020.
"""

from __future__ import annotations

from torch import Tensor

from dish.baselines._centres import row_centres
from dish.deep.deep_hasher import DeepHasher
from dish.deep.training import Batch, Objective, Training

MARGIN = 1.0


class DPN(DeepHasher):
    """min Σ max(0, m − cF), c the bits of fixed centres, one per class; the hinge bounds the Hamming distance."""

    def _objective(self, training: Training) -> Objective:
        centre = row_centres(training.data, self.n_bits)

        def loss(phi: Tensor, F: Tensor, batch: Batch) -> Tensor:
            return (MARGIN - centre[batch.rows] * F).clamp(min=0).mean()

        return Objective(loss, recordable=True)
