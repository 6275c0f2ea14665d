"""The k largest values of all processes against a sort."""

import numpy as np
import pytest
import torch

from dish.parallel import ALONE, kth_largest
from helpers.processes import succeed
from helpers.rank_worker import values


@pytest.mark.long
def test_selection_over_three_processes_is_a_stable_sort(tmp_path):
    """test_transport.py has that over two."""
    succeed(["select", "select_nan"], 3, tmp_path)


@pytest.mark.parametrize("kind", ["normal", "ties", "constant", "sorted", "two_scales", "outlier"])
@pytest.mark.parametrize("n", [1, 7, 5000])
def test_selection_in_one_process_is_a_sort(kind, n):
    v = values(kind, n)
    for k in {1, (n + 1) // 2, n}:
        threshold, ties = kth_largest(torch.from_numpy(v), k, ALONE)
        assert threshold == np.sort(v)[-k]
        assert (v > threshold).sum() + ties == k


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rejects_nan_and_infinity(bad):
    with pytest.raises(ValueError, match="1 NaN or infinite value"):
        kth_largest(torch.tensor([1.0, bad]), 1, ALONE)
