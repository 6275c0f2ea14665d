"""MinHash with one bit per hash (Li, König, "b-bit minwise hashing", WWW 2010), for sets.

The method is that of Broder, "On the resemblance and containment of documents", 1997, and of Broder, Charikar,
Frieze, Mitzenmacher, "Min-wise independent permutations", STOC 1998.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.utils.validation import validate_data

from dish.checks import check_random_state
from dish.hasher import Hasher, as_rows
from dish.numba_lazy import njit, prange

PRIME = 2**31 - 1  # products of two residues fit in uint64
DEGREE = 3  # polynomials of degree 3 are 4-wise independent, which suffices for neighbouring features too


class MinHash(Hasher):
    """Bit j is the lowest bit of min π_j(i) over the members i of a row's set; learns nothing, ignores y.

    Feature i is a member if x_i > 0 (X dense or SciPy sparse). π_j is a random polynomial of degree 3 modulo
    2³¹ − 1. Two sets with Jaccard index J agree in about (1 + J) / 2 of the bits. A row without members has all bits
    0, so it agrees with any other set in half of the bits. F is ±1: it has no magnitude.

    Parameters
    ----------
    n_bits : int
        Code length r.
    random_state : int, RandomState or None
        Seed of the polynomials.

    Attributes
    ----------
    coefficients_ : uint64 (4, r)
        Coefficients of the polynomials, the highest power first.
    """

    _state = ("coefficients_",)

    def __init__(self, n_bits: int = 64, *, random_state: Any = 0) -> None:
        self.n_bits, self.random_state = n_bits, random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Draw the hash functions for the d features of X (n, d)."""
        r = self._check_n_bits()
        self._check_X(X, reset=True)
        random_state = check_random_state(self.random_state)
        self.coefficients_ = random_state.randint(1, PRIME, size=(DEGREE + 1, r), dtype=np.int64).astype(np.uint64)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _check_X(self, X: Any, *, reset: bool) -> Any:
        """X as a finite matrix (n, d), dense or CSR."""
        kinds = [np.float32, np.float64]
        least = int(reset)  # a fit needs a row
        return validate_data(
            self, as_rows(X), reset=reset, accept_sparse="csr", dtype=kinds, ensure_min_samples=least
        )

    def _decision_values(self, X: Any) -> NDArray[Any]:
        members = sp.csr_array(X > 0)
        occurs = np.zeros(X.shape[1], bool)
        occurs[members.indices] = True  # hash only the features that occur, because d may be huge
        hashes = permute(np.flatnonzero(occurs), self.coefficients_)
        place = (np.cumsum(occurs) - 1)[members.indices]  # rows of ``hashes``
        lowest = minima(members.indptr, place, hashes)  # (n, r)
        return np.where(
            lowest % 2 == 1, np.float32(1), np.float32(-1)
        )  # the minimum of an empty set, PRIME + 1, is even


def permute(features: NDArray[Any], coefficients: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """π_j(i) for features i and hash functions j, (len(features), r), by Horner's rule."""
    i = features.astype(np.uint64)[:, None]
    value = np.zeros((len(features), coefficients.shape[1]), np.uint64)
    for c in coefficients:
        value = (value * i + c) % np.uint64(PRIME)
    return value.astype(np.uint32)


@njit(parallel=True, cache=True)
def minima(indptr: Any, place: Any, hashes: Any) -> Any:
    """Minimum of the hashes over the members of each row, (n, r); PRIME + 1 for an empty row."""
    n, r = len(indptr) - 1, hashes.shape[1]
    out = np.full((n, r), PRIME + 1, np.uint32)
    for i in prange(n):
        for at in range(indptr[i], indptr[i + 1]):
            for j in range(r):
                out[i, j] = min(out[i, j], hashes[place[at], j])
    return out
