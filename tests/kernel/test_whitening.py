"""KᵀK and its Cholesky factor."""

import warnings
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from dish import machine
from dish.encoder import FeatureMap
from dish.errors import InputError
from dish.kernel import features, whitening
from dish.kernel.whitening import Whitening
from dish.parallel import ALONE

RNG = np.random.default_rng(5)


def factor(K, ridge=1e-6, scale=1.0):
    return whitening.factor(K, ridge, len(K), ALONE, lambda name: nullcontext(), scale)


@pytest.mark.parametrize("m", [1, 3, 50])
def test_gram_is_the_product(m, monkeypatch):
    K = RNG.standard_normal((500, m))
    np.testing.assert_allclose(whitening.gram(torch.from_numpy(K)), K.T @ K, atol=1e-10)
    monkeypatch.setattr(whitening, "ROWS_IN_CACHE", 2)  # blocks of 32 rows
    np.testing.assert_allclose(whitening.gram(torch.from_numpy(K)), K.T @ K, atol=1e-10)


def test_products_that_do_not_fit_in_memory_are_refused(monkeypatch):
    monkeypatch.setattr(machine, "free_memory", lambda: 10**9)
    K = torch.zeros(2, 1).expand(2, 50_000)
    message = r"products of 50,000 kernel features need 60\.0 GB of memory, and 1\.0 GB are free: reduce the features"
    with pytest.raises(InputError, match=message):
        whitening.gram(K)


def test_gram_sums_float32_blocks_in_float64():
    K = torch.cat([torch.full((8192, 2), 4096.0), torch.ones(8192, 2)])  # the sum of each block is a power of 2
    G = whitening.gram(K)
    assert G.dtype == torch.float64
    np.testing.assert_array_equal(G, np.full((2, 2), 2.0**37 + 2**13))  # float32 would lose the second block


def test_the_factor_solves_and_inverts():
    K = RNG.standard_normal((40, 5))
    white = factor(torch.from_numpy(K), 1e-2)
    A = K.T @ K + white.rho * np.eye(5)
    assert white.rho == pytest.approx(1e-2 * np.trace(K.T @ K) / 5)
    B = RNG.standard_normal((5, 3))
    np.testing.assert_allclose(white.solve(torch.from_numpy(B)), np.linalg.solve(A, B), atol=1e-12)
    L_inv = white.inverse_factor().numpy()
    np.testing.assert_allclose(L_inv @ A @ L_inv.T, np.eye(5), atol=1e-10)


def test_the_gram_matrix_comes_back_from_its_factor():
    G = whitening.gram(torch.from_numpy(RNG.standard_normal((30, 5))))
    white = Whitening.of(G.clone(), 1e-3)
    np.testing.assert_allclose(white.gram(), G, atol=1e-9)
    np.testing.assert_allclose(white.A.diagonal(), G.diagonal() + white.rho)  # the copy was subtracted from


def test_repeated_anchors_can_be_factored():
    K = RNG.standard_normal((50, 4))
    white = Whitening.of(whitening.gram(torch.from_numpy(np.hstack([K, K]))), 1e-12)
    assert torch.isfinite(white.L).all()


def test_a_ridge_that_is_too_small_is_raised_with_a_warning():
    K = RNG.standard_normal((50, 4))
    G = torch.from_numpy(np.tile(K.T @ K, (2, 2)))
    G.diagonal().sub_(1e-13 * G.diagonal().mean())  # whatever rounding did, four eigenvalues are below 0
    with pytest.warns(UserWarning, match=r"ridge=1e-16 is too small.*Using ridge=1e-\d+"):
        white = Whitening.of(G.clone(), 1e-16)
    assert white.rho > 1e-13 * float(G.diagonal().mean())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Whitening.of(G.clone(), 1e-3)


def test_the_default_ridge_is_raised_silently():
    """The user did not choose it."""
    G = whitening.gram(torch.from_numpy(RNG.standard_normal((50, 4))))
    G[:, 3] = G[3] = 0
    G.diagonal().sub_(1e-5 * G.diagonal().mean())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Whitening.of(G.clone(), whitening.RIDGE).rho > 1e-5 * float(G.diagonal().mean())


def test_a_matrix_that_no_ridge_can_repair_is_refused():
    with pytest.raises(InputError, match=r"KᵀK is singular.*Increase ridge"):
        Whitening.of(-torch.eye(3, dtype=torch.float64), 1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("what", ["equal anchors", "as many anchors as rows"])
def test_no_ridge_means_none_and_a_singular_matrix_is_refused(what, dtype):
    """Rounding alone may leave a Cholesky factor."""
    K = RNG.standard_normal((60, 40)).astype(dtype)
    white = factor(torch.from_numpy(K), ridge=0)
    assert white.rho == 0
    np.testing.assert_allclose(white.solve(torch.eye(40)), np.linalg.inv(K.T.astype(float) @ K), rtol=1e-3, atol=1e-3)
    K = np.hstack([K, K[:, :1]]) if what == "equal anchors" else K[:40] - K[:40].mean(0)
    with pytest.raises(InputError, match=r"ridge=0, but KᵀK is singular: .*Use fewer or other anchors, or a ridge"):
        factor(torch.from_numpy(K), ridge=0)


def test_features_that_do_not_vary_are_refused():
    K = 1e-16 * torch.from_numpy(RNG.standard_normal((50, 3)))
    with pytest.raises(InputError, match="the kernel features of X do not vary"):
        factor(K)
    factor(K, scale=1e-6)  # features that were small before centring may vary little


def test_squares_that_overflow_are_refused():
    with pytest.raises(InputError, match="X holds values whose squares overflow: scale X"):
        factor(torch.full((50, 3), 1e200, dtype=torch.float64))


def test_K_outside_of_memory_has_the_same_gram_matrix(monkeypatch):
    from dish.io.rows import RowSource

    X = RNG.standard_normal((300, 4))
    A = torch.from_numpy(X[:8])
    made = FeatureMap("rbf", A, 0.2, A.mean(0))
    (_, K), (_, stored) = (
        features.compute_features(made, RowSource(X), torch.device("cpu"), budget) for budget in (None, 1)
    )
    np.testing.assert_allclose(whitening.gram(stored), whitening.gram(K), atol=1e-10)
