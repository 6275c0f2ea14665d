"""GreedyHash: the sign itself in the forward pass, its slope taken as one.

Su, Zhang, Han, Tian, "Greedy hash: towards fast optimization for accurate hash coding in CNN", NeurIPS 2018.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dish.deep.checkpoint import State
from dish.deep.deep_hasher import DeepHasher, Fitted
from dish.deep.training import Batch, Training

PENALTY = 0.1  # weight of the mean of |F − sgn F|³
RATE = 0.03  # of lr="auto" from scratch: the cubes of few bits run away at the usual 0.1


class GreedyHash(DeepHasher):
    """Classes are told from h = sgn F by a linear layer; the gradient passes the sign as if it were not there."""

    def _learn(self, training: Training, done: State | None) -> Fitted:
        problem = training.problem
        head = nn.Linear(training.model.n_outputs, problem.n_targets).to(problem.device)

        def loss(phi: Tensor, F: Tensor, batch: Batch) -> Tensor:
            h = sign(F)
            return problem.classification_loss(head(h), batch.rows) + PENALTY * (F - h.detach()).abs().pow(3).mean()

        if done is None:
            rate = None if training.settings.fine_tuning else RATE
            training.run(loss, 0, training.optimiser(head, rate=rate), same=True)
            training.save(0, training.codes())
        return {}


def sign(F: Tensor) -> Tensor:
    """±1, with slope one."""
    return F + (torch.where(F >= 0, 1.0, -1.0).to(F) - F).detach()
