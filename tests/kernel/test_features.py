"""The feature map and K."""

import numpy as np
import pytest
import torch
from sklearn.metrics.pairwise import rbf_kernel

from dish.io.rows import RowSource
from dish.kernel import features

RNG = np.random.default_rng(5)
CPU = torch.device("cpu")


def rbf(X, A, gamma):
    return features.rbf(torch.from_numpy(X), features.prepare_rbf(torch.from_numpy(A), gamma), gamma)


def test_rbf_equals_scikit_learn():
    X, A = RNG.standard_normal((30, 4)), RNG.standard_normal((7, 4))
    np.testing.assert_allclose(rbf(X, A, 0.7), rbf_kernel(X, A, gamma=0.7), atol=1e-12)


def test_rbf_in_float32_survives_an_offset():
    """Squared distances come from norms; far from the origin that would cancel, so both are centred first."""
    X, A = RNG.standard_normal((30, 4)) + 1000, RNG.standard_normal((7, 4)) + 1000
    X, A = X.astype(np.float32), A.astype(np.float32)
    exact = rbf_kernel(X.astype(np.float64), A.astype(np.float64), gamma=0.7)
    np.testing.assert_allclose(rbf(X, A, 0.7), exact, atol=1e-5)


@pytest.mark.parametrize("name", ["rbf", "linear", "function"])
def test_features_are_centred_and_blocks_do_not_matter(name, monkeypatch):
    X = torch.from_numpy(RNG.standard_normal((100, 5)))
    phi = (lambda X, A: (X @ A.T + 1) ** 2) if name == "function" else name
    whole = features.FeatureMap(phi, X[:9], 0.3)
    K = whole.fit_rows(RowSource(X), CPU)
    np.testing.assert_allclose(K.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(whole(X), K, atol=1e-12)
    monkeypatch.setattr(features, "ROWS_IN_CACHE", 7)
    monkeypatch.setattr(features.row_blocks, "__defaults__", (7,))
    np.testing.assert_allclose(features.FeatureMap(phi, X[:9], 0.3).fit_rows(RowSource(X), CPU), K, atol=1e-12)


def test_a_kernel_function_of_the_wrong_shape_is_named():
    X = torch.zeros(4, 2)
    with pytest.raises(ValueError, match="kernel must return"):
        features.FeatureMap(lambda X, A: np.zeros(3), X, 1.0).raw(X)
