"""What a deep fit learns from: rows on their device, targets, and the numbers every process agrees on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from dish.deep.model import HashingNet
from dish.parallel import Ranks
from dish.similarity import Classes, LabelCounts, Similarity


@dataclass(frozen=True)
class Problem:
    """Rows and labels of one fit, with its seed, its device and its processes. Every process has all rows."""

    rows: Tensor  # uint8 (n, H, W, 3) or float32 (n, d)
    targets: Tensor  # classes (n,) int64, or labels (n, l) float32 of 0 and 1
    S: Similarity
    seed: int
    device: torch.device
    ranks: Ranks

    def with_first_seed(self) -> Problem:
        """The same problem with the seed of the first process."""
        return replace(self, seed=int(self.ranks.gather(torch.tensor([self.seed]))[0, 0]))

    def seen_by(self, model: HashingNet) -> Problem:
        """The same problem with Φ (n, D) as its rows; every process computes its part."""
        size, model = model.rows_at_once(), model.eval()
        with torch.no_grad():
            width = model.hash.in_features
            phi = torch.zeros(self.n, width, device=self.device)
            for i in range(self.ranks.rank * size, self.n, self.ranks.world * size):
                phi[i : i + size] = model(model.prepare(self.rows[i : i + size]))[0]
        self.ranks.sum_in_place(phi)
        return replace(self, rows=phi)

    @property
    def n(self) -> int:
        """Training rows."""
        return len(self.rows)

    @property
    def several(self) -> bool:
        """Whether rows have several labels."""
        return self.targets.ndim == 2

    @property
    def n_targets(self) -> int:
        """Classes, or labels."""
        return int(self.targets.shape[1]) if self.targets.ndim == 2 else self.S.n_groups

    def classification_loss(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Softmax loss for classes, a logistic loss per label for multi-label rows."""
        target = self.targets[rows]
        if target.ndim == 2:
            return functional.binary_cross_entropy_with_logits(logits, target)
        return functional.cross_entropy(logits, target)


def targets_of(S: Similarity) -> Tensor:
    """Class numbers (n,) int64, or labels (n, l) float32 of 0 and 1, as the similarity encoded them."""
    if isinstance(S, Classes):
        return S.row_group.long()
    if isinstance(S, LabelCounts):
        return S.Y_g.to_dense().float()[S.row_group.long()]
    raise ValueError(f"y: a network learns from classes or labels, not from a {type(S).__name__} similarity")
