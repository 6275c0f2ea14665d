"""Photos that are there twice: the same picture again, smaller, compressed anew or slightly cropped."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dish.errors import InputError

SAME = 0.9  # cosine of the features of two copies, at least: nine of ten are found (benchmarks/photos.py)
MOST = 20_000  # photos that are compared, each with each
ROWS = 1024


def groups_alike(names: Sequence[str], features: NDArray[np.float32], least: float = SAME) -> list[list[str]]:
    """Groups of two or more, largest first. ``features`` have length one; a copy of a copy belongs to the group."""
    n = len(names)
    if n > MOST:
        raise InputError(f"duplicates are looked for among at most {MOST:,} photos; here are {n:,}")
    first = np.arange(n)  # the group of each photo, by the number of its first member
    for start in range(0, n, ROWS):
        cosine = features[start : start + ROWS] @ features[start:].T
        for i, j in np.argwhere(cosine >= least) + start:
            a, b = first[i], first[j]
            if a != b:
                first[first == max(a, b)] = min(a, b)
    groups: dict[int, list[str]] = {}
    for name, group in zip(names, first.tolist(), strict=True):
        groups.setdefault(group, []).append(name)
    return sorted((g for g in groups.values() if len(g) > 1), key=len, reverse=True)
