"""Find duplicate photos: the same picture resized, recompressed or slightly cropped."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from dish.errors import InputError

SAME = 0.9  # least cosine of two copies: finds nine of ten (benchmarks/photos.py)
MOST = 20_000  # photos; every pair is compared
ROWS = 1024  # photos compared with all others at a time


def find_duplicates(names: Sequence[str], features: NDArray[np.float32], least: float = SAME) -> list[list[str]]:
    """Return groups of two or more copies, largest first; copies of copies belong to the same group.

    ``features`` (n, D) have length one. Photos whose features have a cosine of at least ``least`` are copies.
    """
    n = len(names)
    if n > MOST:
        raise InputError(f"duplicates can be searched among at most {MOST:,} photos, got {n:,}")
    first = np.arange(n)  # the first photo of each photo's group
    for start in range(0, n, ROWS):
        i, j = np.nonzero(features[start : start + ROWS] @ features[start:].T >= least)
        edges = np.concatenate([i + start, np.arange(n)]), np.concatenate([j + start, first])
        graph = sp.coo_array((np.ones(len(edges[0]), bool), edges), shape=(n, n))
        _, representative, group = np.unique(
            connected_components(graph, directed=False)[1], return_index=True, return_inverse=True
        )
        first = representative[group]
    groups: dict[int, list[str]] = {}
    for name, group_of in zip(names, first.tolist(), strict=True):
        groups.setdefault(group_of, []).append(name)
    return sorted((group for group in groups.values() if len(group) > 1), key=len, reverse=True)
