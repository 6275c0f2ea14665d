"""Codewords from a Hadamard matrix: as far apart from each other as a few draws of its columns make them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dish.similarity import Classes, LabelCounts

DRAWS = 32


def codewords(n: int, r: int, rng: np.random.RandomState) -> NDArray[np.float64]:
    """n codewords of r bits, ±1 (n, r): rows of a Hadamard matrix of order N = 2^k ≥ max(n, r), in r columns.

    Entry (i, j) of Sylvester's matrix is −1 to the number of ones that i and j share. Whole rows differ in exactly
    N/2 places. Rows i and j differ in as many of some columns as row i xor j has entries −1 there: of a few draws of
    columns the one with the largest minimum is taken. Column 0 is constant, and left out where that is possible.
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
    """Where numbers i and j share an odd number of ones, (len(i), len(j))."""
    return (np.bitwise_count(i[:, None] & j[None]) & 1).astype(bool)


def codes_by_group(S: Classes | LabelCounts, C: NDArray[np.float64]) -> NDArray[np.float64]:
    """The code of each group of rows with the same labels, ±1 (g, r): its codeword, or the majority of several."""
    if isinstance(S, Classes):
        return C
    return np.where(sparse.csr_array(S.sets) @ C >= 0, 1.0, -1.0)
