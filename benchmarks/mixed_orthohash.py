"""OrthoHash with mixed training images, as DeepDISH has them: a rival in ``deep_codewords.py``."""

from __future__ import annotations

import torch
from torch import Tensor

from dish.baselines._centres import centres
from dish.baselines.orthohash import OrthoHash
from dish.deep.codewords import codeword_loss, recalibrate_batch_norm
from dish.deep.data import one_hot
from dish.deep.deep_hasher import Learned
from dish.deep.training import Batch, RoundState, Training


class MixedOrthoHash(OrthoHash):
    """Each image is mixed with up to half of another one."""

    def _learn(self, training: Training, state: RoundState | None) -> Learned:
        data = training.data
        C = torch.from_numpy(centres(data.n_targets, self.n_bits, data.seed)).to(data.device)
        t = one_hot(data.targets, data.n_targets)

        def loss(phi: Tensor, F: Tensor, batch: Batch) -> Tensor:
            return codeword_loss(F, C, batch.blend(t[batch.rows]))

        training.run(loss, 0, training.optimiser(), mixup=0.5, recordable=True)
        recalibrate_batch_norm(data, training.model)
        return Learned()
