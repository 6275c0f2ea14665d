"""IsoH: equal variances, unchanged eigenvalues."""

import numpy as np
import pytest

from dish.baselines import isoh
from dish.baselines._pca import principal
from dish.baselines.isoh import IsoH


@pytest.mark.parametrize("r", [1, 2, 5, 12])
def test_all_bits_have_the_same_variance(cloud, r):
    hasher = IsoH(n_bits=r, tol=1e-4, n_iter=3000).fit(cloud)
    _, W, variance = principal(cloud, r)
    F = hasher.decision_function(cloud).astype(float)
    np.testing.assert_allclose(F.var(axis=0), variance.sum() / r, rtol=1e-3)
    Q = W.T @ hasher.W_  # (p, r)
    np.testing.assert_allclose(Q @ Q.T, np.eye(len(variance)), atol=1e-9)
    assert (np.diff(hasher.objective_) <= 1e-12).all()


def test_lift_and_projection_keeps_the_eigenvalues():
    lam = np.array([9.0, 4.0, 1.0, 0.5, 0.0])
    Q, distance = isoh.equalise(lam, 5000, 1e-6, np.random.RandomState(0))
    M = (Q * lam) @ Q.T
    np.testing.assert_allclose(M.diagonal(), lam.mean(), rtol=1e-5)
    np.testing.assert_allclose(np.linalg.eigvalsh(M)[::-1], lam, atol=1e-12)
    assert len(distance) < 5000


@pytest.mark.parametrize("bad", [{"tol": -1}, {"n_iter": 0}])
def test_rejects_bad_parameters(bad, blobs):
    with pytest.raises(ValueError, match=next(iter(bad))):
        IsoH(**bad).fit(*blobs)
