"""What a network learns from: rows on their device, labels, their similarity, and a seed that all processes share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from dish.errors import InputError
from dish.labels import as_array, is_tags
from dish.parallel import Ranks
from dish.similarity import Classes, LabelCounts, LabelSets, Similarity, from_labels


@dataclass(frozen=True)
class DeepFitData:
    """Rows and labels of one fit, with its seed, device and processes. Every process has all rows."""

    rows: Tensor  # uint8 (n, H, W, 3) or float32 (n, d)
    labels: Tensor | None  # classes (n,) int64, or (n, l) float32 in 0 … 1, NaN if missing; None: only S is known
    S: Similarity
    seed: int
    device: torch.device
    ranks: Ranks

    def with_shared_seed(self) -> DeepFitData:
        """The same data with the seed of the first process."""
        return replace(self, seed=int(self.ranks.gather(torch.tensor([self.seed]))[0, 0]))

    @property
    def n(self) -> int:
        """Number of training rows."""
        return len(self.rows)

    @property
    def targets(self) -> Tensor:
        """The labels, for methods that cannot learn without them."""
        assert self.labels is not None
        return self.labels

    @property
    def multilabel(self) -> bool:
        """Whether a row can have several labels."""
        return self.targets.ndim == 2

    @property
    def n_targets(self) -> int:
        """Number of classes or labels."""
        return int(self.targets.shape[1]) if self.multilabel else self.S.n_groups

    def classification_loss(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Softmax loss for classes, a logistic loss per label for multi-label rows."""
        target = self.targets[rows]
        if target.ndim == 2:
            return functional.binary_cross_entropy_with_logits(logits, target)
        return functional.cross_entropy(logits, target)


def one_hot(targets: Tensor, n_targets: int) -> Tensor:
    """Classes (n,) or labels (n, l) as float32 (n, l)."""
    return targets if targets.ndim == 2 else functional.one_hot(targets, n_targets).float()


def read_labels(y: Any, n_rows: int, method: str, graded: bool, similarity: bool) -> tuple[Similarity, Tensor | None]:
    """The similarity S of the rows, and their labels: (n,), (n, l), or None if y is a similarity without labels.

    ``graded`` and ``similarity`` tell whether the method learns from labels that are missing or between 0 and 1, and
    from a similarity.
    """
    if isinstance(y, Similarity):
        if not similarity:
            raise InputError(f"y: {method} learns from labels, not from a similarity; use DISHD to learn from one")
        if y.n != n_rows:
            raise InputError(f"y: the similarity has {y.n:,} rows, but X has {n_rows:,}")
        return y, labels_of(y)
    values = graded_labels(y)
    if values is None:
        S = from_labels(y, n_rows=n_rows)
        return S, labels_of(S)
    if not graded:
        raise InputError(
            f"y has labels that are missing (NaN) or between 0 and 1: {method} learns from labels of 0 and 1; use "
            "DeepDISH (without freeze) for these"
        )
    rounded = (np.nan_to_num(values) >= 0.5).astype(np.uint8)
    return from_labels(rounded, n_rows=n_rows), torch.from_numpy(values)


def graded_labels(y: Any) -> NDArray[np.float32] | None:
    """(n, l) labels some of which are missing (NaN) or between 0 and 1; None for classes and labels of 0 and 1."""
    if sp.issparse(y) or is_tags(y):
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
            f"y: label {int(unknown.argmax())} is NaN in all rows (as are {int(unknown.sum())} of {y.shape[1]} "
            "labels): drop such labels, y[:, ~np.isnan(y).all(0)]"
        )
    return y.astype(np.float32)


def labels_of(S: Similarity) -> Tensor | None:
    """Classes (n,) int64 or labels (n, l) float32 that a similarity was made of; None for any other similarity."""
    if isinstance(S, Classes):
        return S.row_group.long()
    if isinstance(S, LabelCounts | LabelSets):
        return torch.from_numpy(S.sets.toarray()).float()[S.row_group.cpu().long()]
    return None
