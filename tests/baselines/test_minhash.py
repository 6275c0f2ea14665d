"""MinHash against exact integers and Jaccard indices."""

import numpy as np
import pytest
import scipy.sparse as sp

from dish.baselines import minhash
from dish.baselines.minhash import MinHash


@pytest.mark.parametrize("neighbours", [False, True])
def test_share_of_equal_bits_is_half_of_one_plus_jaccard(neighbours):
    """Five standard deviations of the share of 20,000 bits are 0.0177; neighbouring features are no exception."""
    n_bits = 20_000
    members = np.arange(200) if neighbours else np.random.default_rng(0).choice(1000, 200, replace=False)
    X = np.zeros((4, 1000))
    for row, (low, high) in enumerate([(0, 100), (50, 150), (20, 100), (100, 200)]):
        X[row, members[low:high]] = 1
    bits = np.unpackbits(MinHash(n_bits=n_bits).fit(X).transform(X), axis=1)
    sets = [set(np.flatnonzero(x)) for x in X]
    for a in range(4):
        for b in range(a):
            jaccard = len(sets[a] & sets[b]) / len(sets[a] | sets[b])
            assert (bits[a] == bits[b]).mean() == pytest.approx((1 + jaccard) / 2, abs=0.0177)
    assert np.abs(bits.mean(1) - 0.5).max() < 0.0177


def test_bit_is_the_lowest_bit_of_the_minimum():
    """Evaluates the polynomials with Python's integers."""
    hasher = MinHash(n_bits=50, random_state=2).fit(np.zeros((1, 3000)))
    x = np.zeros((1, 3000))
    x[0, [3, 70, 2999]] = [0.5, 2, 1]
    expected = []
    for a, b, c, d in hasher.coefficients_.T.tolist():
        expected.append(min((a * i**3 + b * i**2 + c * i + d) % minhash.PRIME for i in (3, 70, 2999)) % 2)
    np.testing.assert_array_equal(np.unpackbits(hasher.transform(x), count=50), expected)


def test_members_are_the_positive_entries_of_dense_or_sparse_rows():
    """Explicit zeros and negative values are not members; a row without members has all bits 0."""
    X = np.array([[0, 1.5, 0, 2], [0, 1, -3, 1], [0, 0, 0, 0], [-1, 0, 0, 0], [1, 1, 0, 1]])
    sparse = sp.csr_matrix(([1.5, 2, 0.0], [1, 3, 0], [0, 3]), shape=(1, 4))
    hasher = MinHash(n_bits=32).fit(X)
    packed = hasher.transform(X)
    np.testing.assert_array_equal(packed[0], packed[1])
    np.testing.assert_array_equal(packed[2:4], 0)
    assert (packed[4] != packed[0]).any()
    np.testing.assert_array_equal(hasher.transform(sp.csr_array(X)), packed)
    np.testing.assert_array_equal(MinHash(n_bits=32).fit(sp.csc_matrix(X)).transform(sparse), packed[:1])
    assert set(np.unique(hasher.decision_function(X))) == {-1.0, 1.0}
