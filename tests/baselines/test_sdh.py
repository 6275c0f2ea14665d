"""SDH against brute force and explicit matrices."""

import numpy as np
import pytest
import torch

from dish import codes
from dish.baselines import sdh
from dish.baselines.sdh import SDH
from helpers.rivals import all_signs


def row_loss(b, q, M):
    return b @ M @ b - 2 * q @ b


@pytest.fixture(params=["loops", "tensors"])
def descend(request):
    """Both implementations of discrete cyclic coordinate descent; each changes B in place."""
    if request.param == "loops":
        return lambda B, Q, M: sdh._descend(B, Q, M, sdh.MAX_SWEEPS)
    return lambda B, Q, M: sdh.descend(torch.from_numpy(B), torch.from_numpy(Q), torch.from_numpy(M))


def test_each_bit_is_the_best_of_all_columns(descend, monkeypatch):
    """Enumerates {−1, 1}ⁿ for bit k: no column has a lower ‖Y − BW‖² + ν‖B − F‖²."""
    monkeypatch.setattr(sdh, "MAX_SWEEPS", 1)
    rng = np.random.default_rng(4)
    n, r, nu = 6, 3, 0.3
    Y, W, F = np.eye(2)[rng.integers(2, size=n)], rng.standard_normal((r, 2)), rng.standard_normal((n, r))
    B = rng.choice([-1, 1], (n, r)).astype(np.int8)

    def loss(B):
        return np.square(Y - B @ W).sum() + nu * np.square(B - F).sum()

    expected = B.copy()
    for k in range(r):
        columns = []
        for column in all_signs(n):
            expected[:, k] = column
            columns.append((loss(expected), tuple(column)))
        expected[:, k] = min(columns)[1]
    flips = descend(B, Y @ W.T + nu * F, W @ W.T)
    np.testing.assert_array_equal(B, expected)
    assert flips > 0


def test_descent_stops_where_no_flip_helps(descend):
    rng = np.random.default_rng(6)
    A = rng.standard_normal((5, 3))
    M, Q = A @ A.T, rng.standard_normal((30, 5))
    B = rng.choice([-1, 1], (30, 5)).astype(np.int8)
    before = B.copy()
    assert descend(B, Q, M) == (before != B).sum()
    for b0, b, q in zip(before, B, Q, strict=True):
        value = row_loss(b, q, M)
        assert value <= row_loss(b0, q, M)
        assert all(value <= row_loss(b * (1 - 2 * np.eye(5)[k]), q, M) for k in range(5))


@pytest.mark.parametrize("multilabel", [False, True])
def test_objective_never_rises_and_equals_that_of_explicit_matrices(digits, label_sets, multilabel):
    X, Y = label_sets if multilabel else (digits[0][:500], digits[1][:500])
    lam, nu = 2.0, 0.01
    hasher = SDH(n_bits=10, n_anchors=50, lam=lam, nu=nu, n_iter=8).fit(X.astype(np.float64), Y)
    assert len(hasher.objective_) >= 2
    assert (np.diff(hasher.objective_) <= 1e-9 * hasher.objective_[0]).all()

    # the last iteration's W belongs to the codes of the iteration before it
    Y = Y if multilabel else np.eye(10)[Y]
    B = codes.unpack(hasher.codes_, 10).astype(float)
    K = hasher.encoder_.features(X.astype(np.float64))
    rho = 1e-6 * np.square(K).sum() / K.shape[1]
    former = SDH(n_bits=10, n_anchors=50, lam=lam, nu=nu, n_iter=len(hasher.objective_) - 1)
    B_former = codes.unpack(former.fit(X.astype(np.float64), Y).codes_, 10).astype(float)
    W = np.linalg.solve(B_former.T @ B_former + lam * np.eye(10), B_former.T @ Y)
    P, c = hasher.hash_function_.W, hasher.hash_function_.intercept
    to_rows = np.square(B - K @ P - c).sum() + rho * np.square(P).sum()
    expected = np.square(Y - B @ W).sum() + lam * np.square(W).sum() + nu * to_rows
    assert hasher.objective_[-1] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("bad", [{"lam": 0}, {"nu": -1}, {"n_iter": 0}])
def test_rejects_bad_parameters(bad, blobs):
    with pytest.raises(ValueError, match=next(iter(bad))):
        SDH(n_anchors=60, **bad).fit(*blobs)
