"""Codewords from a Hadamard matrix, with columns drawn so that the codewords are far apart."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dish.similarity import Classes, LabelCounts

DRAWS = 32


def codewords(n: int, r: int, rng: np.random.RandomState) -> NDArray[np.float64]:
    """n codewords of r bits, ±1 (n, r): rows of a Hadamard matrix of order N = 2^k ≥ max(n, r), in r of its columns.

    Entry (i, j) of Sylvester's matrix is −1 to the number of ones that i and j share. Complete rows differ in N/2
    columns. In a subset of the columns, rows i and j differ as often as row (i xor j) is −1 there. Several random
    subsets are tried, and the one with the largest minimum distance is used. Column 0 is constant and is left out if
    possible.
    """
    N = 1 << (max(n, r) - 1).bit_length()
    pool = np.arange(int(r < N), N)
    best, columns = -1, pool[:0]
    for _ in range(DRAWS if r < len(pool) else 1):
        drawn = rng.permutation(pool)[:r]
        least = int(_odd(np.arange(1, N), drawn).sum(1).min()) if N > 1 else 0
        if least > best:
            best, columns = least, drawn
    return np.where(_odd(rng.permutation(N)[:n], columns), -1.0, 1.0)


def _odd(i: NDArray[np.integer], j: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Whether i and j have an odd number of common ones, (len(i), len(j))."""
    return (np.bitwise_count(i[:, None] & j[None]) & 1).astype(bool)


def codes_by_group(S: Classes | LabelCounts, C: NDArray[np.float64]) -> NDArray[np.float64]:
    """The code of each group of rows, ±1 (g, r): the codeword of its label, or the majority of several codewords."""
    if isinstance(S, Classes):
        return C
    return np.where(sparse.csr_array(S.sets) @ C >= 0, 1.0, -1.0)
