"""Hadamard codewords: how far apart they are."""

import numpy as np
import pytest

from dish.baselines._hadamard import codewords


@pytest.mark.parametrize(("n", "r"), [(10, 64), (64, 64), (16, 16), (2, 4)])
def test_codewords_as_long_as_the_matrix_differ_in_half_of_the_bits(n, r):
    C = codewords(n, r, np.random.RandomState(0))
    assert C.shape == (n, r)
    np.testing.assert_array_equal(C @ C.T, r * np.eye(n))


@pytest.mark.parametrize(("n", "r"), [(200, 32), (200, 64), (1000, 128), (3, 2), (5, 3), (1, 1)])
def test_shorter_codewords_are_distinct_and_as_far_apart_as_random_ones(n, r):
    C = codewords(n, r, np.random.RandomState(0))
    assert set(np.unique(C)) <= {-1.0, 1.0}
    distance = (r - C @ C.T) / 2
    distance[np.diag_indices(n)] = r
    drawn = np.random.RandomState(1).choice([-1.0, 1.0], (n, r))
    random = (r - drawn @ drawn.T) / 2
    random[np.diag_indices(n)] = r
    assert distance.min() >= max(1, random.min())
