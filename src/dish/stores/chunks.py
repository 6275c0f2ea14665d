"""Chunks of codes: integers whose b-tree indexes find all codes within a small radius."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np

CHUNKS = 3  # if codes differ in at most R bits, one of three chunks differs in at most R // 3; so none for R ≤ 2
CHUNK_BITS = 31  # most bits per chunk: a chunk is an int


def places(n_bits: int) -> list[tuple[int, int]]:
    """Return (start, width) of each chunk: a third of the code, or its first bits if it is too long."""
    bounds = np.linspace(0, n_bits, min(CHUNKS, n_bits) + 1).astype(int).tolist()
    return [(a, min(b - a, CHUNK_BITS)) for a, b in pairwise(bounds)]


def candidates(bits: str, radius: int) -> list[list[int]] | None:
    """Return, for each chunk, its values in codes that may be within the radius of ``bits`` (a text of 0 and 1).

    A code within the radius has one of these values in at least one chunk. None: too many to list.
    """
    spans = places(len(bits))
    flips = radius // len(spans)
    if flips > 1:
        return None
    return [_neighbours(int(bits[start : start + width], 2), width, flips) for start, width in spans]


def _neighbours(x: int, width: int, flips: int) -> list[int]:
    """Return all integers of ``width`` bits within Hamming distance ``flips`` of x."""
    masks = (sum(1 << b for b in bits) for i in range(flips + 1) for bits in combinations(range(width), i))
    return [x ^ mask for mask in masks]
