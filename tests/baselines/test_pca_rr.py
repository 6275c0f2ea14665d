"""PCA-RR: a random rotation of principal components."""

import numpy as np
import pytest

from dish.baselines.pca_rr import PCARR


@pytest.mark.parametrize("r", [4, 9])
def test_rotation_keeps_inner_products_of_principal_components(r):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 6)) * np.arange(1, 7)
    F = PCARR(n_bits=r).fit(X).decision_function(X).astype(float)
    U, s, _ = np.linalg.svd(X - X.mean(0), full_matrices=False)
    V = (U * s)[:, : min(r, 6)]
    np.testing.assert_allclose(F @ F.T, V @ V.T, atol=1e-3)
    other = PCARR(n_bits=r, random_state=1).fit(X).decision_function(X)
    assert np.abs(F - other).max() > 0.1
