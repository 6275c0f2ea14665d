"""A bounded sample of all rows of a stream, with as many rows of every class as there is room for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.io.rows import RowSource
from dish.lazy import torch
from dish.similarity import Classes, Similarity

SEED = 0
SMALL = 1 << 22  # numbers in the rows of a fit that are kept
NUMBERS, FEWEST = 1 << 26, 1 << 14  # in X (256 MB of float32), and the room for rows at least


@dataclass(frozen=True)
class Reservoir:
    """Rows X (n, d), the index of each row's class (n,), and a random key of each row (n,).

    A class keeps its rows with the smallest keys, so that they are a uniform sample of its rows so far: neither the
    order of the stream nor its batches matter.
    """

    X: NDArray[Any]
    group: NDArray[np.integer[Any]]
    keys: NDArray[np.float64]
    classes: NDArray[Any]
    n_seen: int = 0

    @classmethod
    def none(cls, X: NDArray[Any], classes: NDArray[Any]) -> Reservoir:
        """An empty reservoir for rows like X."""
        return cls(X[:0], np.empty(0, np.intp), np.empty(0), classes)

    def plus(self, X: NDArray[Any], group: NDArray[np.integer[Any]], classes: NDArray[Any]) -> Reservoir:
        """The reservoir after a batch. ``classes``: those of all batches, sorted, which ``group`` counts in."""
        place = {value: j for j, value in enumerate(classes.tolist())}
        moved = np.array([place[value] for value in self.classes.tolist()], np.intp)[self.group]
        keys = np.append(self.keys, np.random.default_rng([SEED, self.n_seen]).random(len(X)))
        X, group = np.concatenate([self.X, X]), np.append(moved, group)
        kept = smallest_of_classes(group, keys, room_for(X.shape[1]))
        n_seen = self.n_seen + len(keys) - len(self.keys)
        return Reservoir(X[kept], group[kept], keys[kept], classes, n_seen)


def small_reservoir(rows: RowSource, S: Similarity) -> Reservoir | None:
    """A reservoir with all rows of a fit, if they are few and in memory and have one class each."""
    n, d = rows.shape
    if rows.on_disk or n * d > SMALL or not isinstance(S, Classes):
        return None
    assert S.labels is not None
    X = rows.take(np.arange(n), torch.device("cpu")).numpy()
    return Reservoir.none(X, S.labels).plus(X, S.row_group.cpu().numpy().astype(np.intp), S.labels)


def room_for(d: int) -> int:
    """The largest number of rows with d features."""
    return max(FEWEST, NUMBERS // d)


def smallest_of_classes(group: NDArray[np.integer[Any]], keys: NDArray[np.float64], room: int) -> NDArray[np.intp]:
    """The places, ascending, of at most ``room`` rows: of every class as many, those with the smallest keys."""
    counts = np.bincount(group)
    order = np.lexsort([keys, group])
    rank = np.arange(len(group)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(order[rank < quota(counts, room)])


def quota(counts: NDArray[np.integer[Any]], room: int) -> int:
    """The largest number of rows per class for which all classes have room."""
    low, high = 0, int(counts.max(initial=0))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if np.minimum(counts, middle).sum() <= room else (low, middle - 1)
    return low
