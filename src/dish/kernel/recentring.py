"""Recentring: what the features of a shifted database need to look like those that a hasher has learned from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.encoder import Recentring
from dish.errors import InputError

FEWEST = 2  # rows
FLAT = 1e-6  # features whose deviation is below this share of that in training are constant


def feature_moments(blocks: Iterable[NDArray[Any]]) -> NDArray[np.float64]:
    """The mean and the standard deviation of every feature, (2, d), of rows that come in blocks.

    Blocks are joined by the formula of Chan, Golub and LeVeque, which loses no digits if means are large.
    """
    n, mean, squares = 0, np.zeros(0), np.zeros(0)
    for block in blocks:
        X = np.asarray(block, np.float64)
        if not len(X):
            continue
        of_block = X.mean(0)
        of_squares = np.square(X - of_block).sum(0)
        if n == 0:
            n, mean, squares = len(X), of_block, of_squares
            continue
        both, gap = n + len(X), of_block - mean
        mean, squares = mean + gap * len(X) / both, squares + of_squares + np.square(gap) * n * len(X) / both
        n = both
    if n < FEWEST:
        raise InputError(f"X must have at least {FEWEST} rows to tell how its features are spread, got {n}")
    return np.stack([mean, np.sqrt(squares / n)])


def recentring(shifted: NDArray[np.float64], training: NDArray[np.float64], dtype: Any) -> Recentring:
    """The map from rows with the moments ``shifted`` (2, d) to rows with those of the training rows.

    A feature that is constant in either keeps its scale.
    """
    (mean, deviation), (target, wanted) = shifted, training
    spread = (deviation > FLAT * wanted) & (wanted > FLAT * deviation)
    factor = np.where(spread, wanted / np.where(spread, deviation, 1.0), 1.0)
    return Recentring(*(np.asarray(a, dtype) for a in (mean, factor, target)))
