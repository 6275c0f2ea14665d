"""Fixed codewords that are far apart."""

import numpy as np
import pytest

from dish.baselines._centres import centres, nearest, row_centres
from helpers.deep import fit_data


@pytest.mark.parametrize(("n_labels", "n_bits", "apart"), [(10, 16, 8), (20, 16, 8), (10, 12, 3)])
def test_centres_are_far_apart(n_labels, n_bits, apart):
    C = centres(n_labels, n_bits, 0)
    assert C.shape == (n_labels, n_bits)
    assert set(np.unique(C)) == {-1, 1}
    assert nearest(C) >= apart


def test_rows_have_the_centre_of_their_class_or_the_vote_of_their_labels():
    X, y = np.zeros((4, 2)), np.array([0, 1, 2, 1])
    C = centres(3, 8, 5)
    np.testing.assert_array_equal(row_centres(fit_data(X, y, seed=5), 8), C[y])
    Y = np.array([[1, 0, 0], [1, 1, 1], [0, 1, 0], [0, 0, 1]])
    expected = np.stack([C[0], np.sign(C.sum(0)), C[1], C[2]])
    np.testing.assert_array_equal(row_centres(fit_data(X, Y, seed=5), 8), expected)
