"""What a deep fit learns from: rows on their device, targets, and the numbers every process agrees on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from dish.deep.model import HashingNet
from dish.errors import InputError
from dish.labels import as_array, is_tags
from dish.parallel import Ranks
from dish.similarity import Classes, LabelCounts, Similarity, from_labels


@dataclass(frozen=True)
class Problem:
    """Rows and labels of one fit, with its seed, its device and its processes. Every process has all rows."""

    rows: Tensor  # uint8 (n, H, W, 3) or float32 (n, d)
    targets: Tensor  # classes (n,) int64, or labels (n, l) float32 from 0 to 1, NaN where they are missing
    S: Similarity
    seed: int
    device: torch.device
    ranks: Ranks

    def with_first_seed(self) -> Problem:
        """The same problem with the seed of the first process."""
        return replace(self, seed=int(self.ranks.gather(torch.tensor([self.seed]))[0, 0]))

    def seen_by(self, model: HashingNet) -> Problem:
        """The same problem with Φ (n, D) as its rows; every process computes its part."""
        size, model = model.rows_at_once(self.rows.shape), model.eval()
        with torch.no_grad():
            phi = torch.zeros(self.n, model.width, device=self.device)
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


def learnable(y: Any, n_rows: int, takes_graded: bool) -> tuple[Similarity, Tensor]:
    """The similarity of the rows, and what a network learns: classes (n,), or labels (n, l)."""
    graded = graded_labels(y)
    if graded is None:
        S = from_labels(y, n_rows=n_rows)
        return S, targets_of(S)
    if not takes_graded:
        raise InputError(
            "y has labels that are missing (NaN) or between 0 and 1: only DeepDISH(head='codewords') accepts "
            "these; give labels of 0 and 1"
        )
    rather = (np.nan_to_num(graded) >= 0.5).astype(np.uint8)
    return from_labels(rather, n_rows=n_rows), torch.from_numpy(graded)


def graded_labels(y: Any) -> NDArray[np.float32] | None:
    """(n, l) labels some of which are missing (NaN) or between 0 and 1; None for classes and other labels."""
    if isinstance(y, Similarity) or sp.issparse(y) or is_tags(y):
        return None
    y = as_array(y)
    if y.ndim != 2 or y.shape[1] < 2 or y.dtype.kind != "f":
        return None
    known = y[~np.isnan(y)]
    if len(known) == y.size and np.isin(known, (0, 1)).all():
        return None
    low, high = (known.min(), known.max()) if len(known) else (0, 0)
    if not 0 <= low <= high <= 1:
        raise InputError(
            f"y: labels (n, l) must be from 0 to 1, or NaN where they are not known; they go from {low} to {high}"
        )
    if (unknown := np.isnan(y).all(0)).any():
        raise InputError(
            f"y: nothing is known about label {int(unknown.argmax())}, all rows have NaN there (as they have for "
            f"{int(unknown.sum())} of {y.shape[1]} labels): drop such labels, y[:, ~np.isnan(y).all(0)]"
        )
    return y.astype(np.float32)


def targets_of(S: Similarity) -> Tensor:
    """Class numbers (n,) int64, or labels (n, l) float32 of 0 and 1, as the similarity encoded them."""
    if isinstance(S, Classes):
        return S.row_group.long()
    if isinstance(S, LabelCounts):
        return S.Y_g.to_dense().float()[S.row_group.long()]
    raise InputError(f"y: a network learns from classes or labels, not from a {type(S).__name__} similarity")
