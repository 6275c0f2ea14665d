"""Products of every kind of similarity against its dense matrix."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from dish.similarity.base import segment_sums
from helpers.similarities import KINDS, RNG


@pytest.mark.parametrize("name", KINDS)
def test_products_equal_those_of_the_dense_matrix(name):
    S, dense = KINDS[name]
    np.testing.assert_allclose(S.dense(), dense, atol=1e-12)
    b = RNG.standard_normal(12)
    group = S.row_group.long()
    sums = torch.zeros(S.n_groups, dtype=torch.float64).index_add_(0, group, torch.from_numpy(b))
    np.testing.assert_allclose(S.P(S.Rt(sums))[group], dense @ b, atol=1e-12)
    np.testing.assert_allclose(S.diag[group], np.diag(dense), atol=1e-12)


@pytest.mark.parametrize("name", [k for k in KINDS if k != "asymmetric"])
def test_squared_norm_equals_that_of_the_dense_matrix(name):
    S, dense = KINDS[name]
    assert S.squared_norm() == pytest.approx((dense**2).sum())


@pytest.mark.parametrize("name", KINDS)
def test_projections_of_row_blocks_equal_the_dense_product(name):
    S, dense = KINDS[name]
    K = RNG.standard_normal((12, 5))
    blocks = [(slice(0, 7), torch.from_numpy(K[:7])), (slice(7, 12), torch.from_numpy(K[7:]))]
    PtK, RtK = S.project(iter(blocks))
    np.testing.assert_allclose(PtK.T @ RtK, K.T @ dense @ K, atol=1e-10)


@pytest.mark.parametrize("name", KINDS)
def test_product_with_a_matrix_and_selection_of_rows(name):
    S, dense = KINDS[name]
    Z = torch.from_numpy(RNG.standard_normal((12, 3)))
    np.testing.assert_allclose(S.times(Z), dense @ Z.numpy(), atol=1e-12)
    picked = torch.tensor([1, 4, 5, 9])
    np.testing.assert_allclose(S.rows(picked).dense(), dense[np.ix_(picked, picked)], atol=1e-12)


@pytest.mark.parametrize("name", KINDS)
def test_moving_to_a_device_makes_a_copy(name):
    S, dense = KINDS[name]
    before = dict(vars(S))
    moved = S.to(torch.device("meta"))
    assert all(vars(S)[attribute] is value for attribute, value in before.items())
    assert moved.row_group.device.type == "meta"
    np.testing.assert_allclose(S.dense(), dense, atol=1e-12)


def test_segment_sums_equal_a_sparse_product():
    rng = np.random.default_rng(0)
    A = sp.csr_array((rng.random((40, 9)) < 0.2).astype(float))
    z = torch.from_numpy(rng.integers(-5, 6, 9).astype(float))
    found = segment_sums(z[torch.from_numpy(A.indices).long()], torch.from_numpy(A.indptr))
    np.testing.assert_array_equal(found, A @ z.numpy())
