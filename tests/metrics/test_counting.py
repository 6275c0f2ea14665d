"""Histograms of distances: the torch implementation against the others."""

import numpy as np
import pytest
import torch

from dish import codes, metrics
from dish.metrics.counting import _exact_dtype, _histograms_torch
from dish.metrics.relevance import match_labels
from helpers.rankings import make_codes, relevance


@pytest.mark.parametrize("multi", [False, True])
def test_counts_equal_those_of_all_pairs(multi, kernels):
    q, yq, b, yb = make_codes(nq=5, nb=300, r=11, multi=multi)
    found = metrics.histograms(q, yq, b, yb, n_bits=11)
    D, rel = codes.hamming(q, b), relevance(yq, yb)
    for d in range(12):
        np.testing.assert_array_equal(found.all_[:, d], (d == D).sum(1))
        np.testing.assert_array_equal(found.relevant[:, d], ((d == D) & rel).sum(1))


@pytest.mark.parametrize("multi", [False, True])
def test_torch_counts_equal_those_of_the_cpu_kernel(multi):
    q, yq, b, yb = make_codes(nq=13, nb=500, r=24, multi=multi)
    expected = metrics.histograms(q, yq, b, yb)
    y = match_labels(yq, yb, len(q), len(b))
    for cells in (2**28, 3000):  # one block of rows, and many
        counts = _histograms_torch(q, b, y, "cpu", cells)
        np.testing.assert_array_equal(counts.sum(2), expected.all_)
        np.testing.assert_array_equal(counts[:, :, 1], expected.relevant)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("r", [64, 2048, 2056, 4096])
def test_torch_type_represents_every_product(r, device):
    """A product of ±1 codes is an integer −r … r; float16 cannot represent 2,049."""
    integers = torch.arange(-r, r + 1)
    assert (integers.to(_exact_dtype(r, device)).long() == integers).all()


@pytest.mark.gpu
def test_long_codes_are_counted_exactly_on_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    q, yq, b, yb = make_codes(nq=7, nb=300, r=4096)
    expected, found = (metrics.histograms(q, yq, b, yb, device=device) for device in ("cpu", "cuda"))
    np.testing.assert_array_equal(found.all_, expected.all_)
    np.testing.assert_array_equal(found.relevant, expected.relevant)
