"""Principal components against scikit-learn's."""

import numpy as np
import pytest
from sklearn.decomposition import PCA

from dish import machine
from dish.baselines import _pca
from dish.baselines._pca import principal
from dish.baselines.isoh import IsoH
from dish.baselines.pca_itq import PCAITQ
from dish.baselines.pca_rr import PCARR
from dish.baselines.sh import SH
from dish.errors import InputError


def test_directions_and_variances_are_those_of_scikit_learn(cloud):
    mean, W, variance = principal(cloud.astype(np.float32), 3)
    pca = PCA(3).fit(cloud)
    np.testing.assert_allclose(mean, cloud.mean(0), rtol=1e-5)
    np.testing.assert_allclose(np.abs(W.T @ pca.components_.T), np.eye(3), atol=1e-4)
    np.testing.assert_allclose(variance, pca.explained_variance_ * 199 / 200, rtol=1e-4)


def test_few_rows_with_many_features(monkeypatch):
    """Through the products of rows: those of 50,000 features would take 20 GB."""
    X = np.random.default_rng(0).standard_normal((40, 100)) * np.linspace(1, 3, 100) + 5
    monkeypatch.setattr(_pca, "ROWS", 7)
    monkeypatch.setattr(machine, "free_memory", lambda: 16 * 40 * 40)
    _, W, variance = principal(X.astype(np.float32), 50)
    pca = PCA(39).fit(X)
    assert W.shape == (100, 39)
    np.testing.assert_allclose(np.abs(W.T @ pca.components_.T), np.eye(39), atol=1e-4)
    np.testing.assert_allclose(variance, pca.explained_variance_ * 39 / 40, rtol=1e-5)
    with pytest.raises(
        InputError, match=r"covariances of 100 features need 0\.0 GB of memory.*: reduce the features"
    ):
        principal(np.repeat(X, 2, axis=0), 50)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_directions_without_variance_are_left_out(cloud, dtype):
    _, W, variance = principal(cloud.astype(dtype), 7)
    assert W.shape == (7, len(variance)) == (7, 5)


@pytest.mark.parametrize("kind", [SH, IsoH, PCAITQ, PCARR])
def test_rejects_rows_that_are_all_equal(kind):
    with pytest.raises(ValueError, match="all rows of X are equal"):
        kind(n_bits=4).fit(np.full((20, 3), 0.1, np.float32))
