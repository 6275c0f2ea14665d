"""Histograms of distances, counted by compiled kernels and by NumPy."""

import numpy as np
import pytest

from dish.metrics.counting import histograms
from helpers.codes import all_distances, make_codes


@pytest.mark.parametrize("n_bits", [13, 64, 130])
@pytest.mark.parametrize("multilabel", [False, True])
def test_histograms_count_rows_by_distance(n_bits, multilabel, kernels):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, (89, 5)) if multilabel else rng.integers(0, 4, 89)
    B = make_codes("clustered", 89, n_bits)
    found = histograms(B[:9], y[:9], B[9:], y[9:], n_bits)
    D = all_distances(B[:9], B[9:])
    relevant = (y[:9] @ y[9:].T) > 0 if multilabel else y[:9, None] == y[9:]
    for i in range(9):
        np.testing.assert_array_equal(found.all_[i], np.bincount(D[i], minlength=n_bits + 1))
        np.testing.assert_array_equal(found.relevant[i], np.bincount(D[i][relevant[i]], minlength=n_bits + 1))
