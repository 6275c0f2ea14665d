"""HC-SDH against explicit formulas."""

import itertools

import numpy as np
import pytest

from dish import codes
from dish.baselines._hadamard import codewords
from dish.baselines.hc_sdh import HCSDH


def test_hash_function_is_ridge_regression_on_the_codewords(blobs):
    X, y = blobs
    hasher = HCSDH(n_bits=8, n_anchors=30, ridge=1e-3).fit(X, y)
    B = codes.unpack(hasher.codes_, 8).astype(float)
    words = np.stack([B[y == c][0] for c in range(3)])
    assert all((B[y == c] == words[c]).all() for c in range(3))
    np.testing.assert_array_equal(words @ words.T, 8 * np.eye(3))
    K = hasher.encoder_.features(X)
    rho = 1e-3 * np.square(K).sum(0).mean()
    P = np.linalg.solve(K.T @ K + rho * np.eye(30), K.T @ B)
    np.testing.assert_allclose(hasher.decision_function(X), K @ P + B.mean(0), atol=1e-4)


def test_hadamard_codewords_minimise_the_sdh_objective():
    """Classes of equal size, ν = 0: enumerates all codewords of four bits for three classes."""
    y, lam = np.repeat([0, 1, 2], 5), 1.0
    Y = np.eye(3)[y]

    def objective(C):
        B = C[y]
        W = np.linalg.solve(B.T @ B + lam * np.eye(4), B.T @ Y)
        return np.square(Y - B @ W).sum() + lam * np.square(W).sum()

    every = (np.reshape(bits, (3, 4)) for bits in itertools.product((-1.0, 1.0), repeat=12))
    found = objective(codewords(3, 4, np.random.RandomState(0)))
    assert found == pytest.approx(min(map(objective, every)))


def test_multilabel_rows_get_the_majority_of_their_codewords(blobs):
    X, y = blobs
    Y = np.eye(3, dtype=int)[y]
    Y[:5] = 1
    hasher = HCSDH(n_bits=8, n_anchors=30).fit(X, Y)
    B = codes.unpack(hasher.codes_, 8)
    words = np.stack([B[5:][y[5:] == c][0] for c in range(3)])
    np.testing.assert_array_equal(B[0], np.sign(words.sum(0)))
