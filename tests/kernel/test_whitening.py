"""KᵀK and its factor."""

import warnings

import numpy as np
import pytest
import torch

from dish.kernel import whitening

RNG = np.random.default_rng(5)


def test_whitening_copes_with_repeated_anchors():
    K = RNG.standard_normal((50, 4))
    K = torch.from_numpy(np.hstack([K, K]))
    white = whitening.Whitening.of(whitening.gram(K), 0.0 + 1e-12)
    assert torch.isfinite(white.L).all()


def test_a_gram_matrix_comes_back_from_its_factor():
    K = torch.from_numpy(RNG.standard_normal((30, 5)))
    G = whitening.gram(K)
    np.testing.assert_allclose(whitening.Whitening.of(G.clone(), 1e-3).gram(), G, atol=1e-9)


@pytest.mark.parametrize("m", [1, 3, 50])
def test_gram(m):
    K = RNG.standard_normal((500, m))
    np.testing.assert_allclose(whitening.gram(torch.from_numpy(K)), K.T @ K, atol=1e-10)


def test_a_ridge_that_had_to_be_raised_is_told():
    K = RNG.standard_normal((50, 4)).astype(np.float32)
    G = whitening.gram(torch.from_numpy(np.hstack([K, K])))
    G.diagonal().sub_(1e-13 * G.diagonal().mean())  # whatever rounding did, four eigenvalues are below 0
    with pytest.warns(UserWarning, match=r"ridge=1e-16 is too small .*: ridge=1e-\d+ is used"):
        white = whitening.Whitening.of(G.clone(), 1e-16)
    assert white.rho > 1e-13 * float(G.diagonal().mean())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whitening.Whitening.of(G.clone(), 1e-3)
        short = G - 1e-5 * G.diagonal().mean() * torch.eye(8)  # the default is nobody's choice: raised in silence
        assert whitening.Whitening.of(short, whitening.RIDGE).rho > 1e-5 * float(G.diagonal().mean())
