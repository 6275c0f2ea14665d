"""DPN: outputs that are at least a margin on the right side of zero.

Fan, Ng, Ju, Zhang, Chan, "Deep polarized network for supervised learning of accurate binary hashing codes",
IJCAI 2020.
"""

from __future__ import annotations

from torch import Tensor

from dish.baselines._centres import row_centres
from dish.deep.checkpoint import State
from dish.deep.deep_hasher import DeepHasher, Fitted
from dish.deep.training import Batch, Training

MARGIN = 1.0


class DPN(DeepHasher):
    """min Σ max(0, m − cF), c the bits of fixed centres, one per class; the hinge stands for the Hamming distance."""

    def _learn(self, training: Training, done: State | None) -> Fitted:
        centre = row_centres(training.problem, self.n_bits)

        def loss(phi: Tensor, F: Tensor, batch: Batch) -> Tensor:
            return (MARGIN - centre[batch.rows] * F).clamp(min=0).mean()

        if done is None:
            training.run(loss, 0, training.optimiser(), same=True)
            training.save(0, training.codes())
        return {}
