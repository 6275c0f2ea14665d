"""Losses and F-steps."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge

from dish import codes
from dish.cbcd import PackedColumns
from dish.kernel import fstep
from dish.kernel.fit_data import FitData
from dish.similarity import LowRank

RNG = np.random.default_rng(5)


LITERAL = {
    "ridge": lambda h, f: (h - f) ** 2,
    "hinge": lambda h, f: np.maximum(0, 1 - h * f) ** 2,
    "logistic": lambda h, f: np.log1p(np.exp(-h * f)),
}


@pytest.mark.parametrize("name", LITERAL)
def test_linear_and_constant_terms_are_the_loss(name):
    """l(b, f) = ½[l(1,f) − l(−1,f)] b + ½[l(1,f) + l(−1,f)] for b = ±1."""
    f = torch.linspace(-3, 3, 101, dtype=torch.float64)
    loss, literal = fstep.LOSSES[name], LITERAL[name]
    for b in (-1, 1):
        np.testing.assert_allclose(loss.half_difference(f) * b + loss.half_sum(f), literal(b, f.numpy()), atol=1e-12)


@pytest.mark.parametrize("name", LITERAL)
def test_working_target_bounds_the_loss_from_above(name):
    loss, literal = fstep.LOSSES[name], LITERAL[name]
    at = torch.linspace(-3, 3, 25, dtype=torch.float64)
    for h in (-1.0, 1.0):
        t = loss.target(torch.full_like(at, h), at).numpy()
        c = loss.curvature
        bound = literal(h, at.numpy())[:, None] + c / 2 * (
            (at.numpy()[None] - t[:, None]) ** 2 - (at.numpy() - t)[:, None] ** 2
        )
        assert (bound >= literal(h, at.numpy())[None] - 1e-9).all()


def linear_step(name, n=400, m=12, r=3, ridge=1e-3):
    X = RNG.standard_normal((n, m))
    K = torch.from_numpy(X - X.mean(0))
    H = np.where(K.numpy() @ RNG.standard_normal((m, r)) + RNG.standard_normal((n, r)) >= 0, 1, -1)
    data = FitData.of(LowRank(X, X), K, ridge)
    return fstep.LinearStep(data, fstep.LOSSES[name], r), K.numpy(), H, data.white.rho


def test_ridge_step_is_ridge_regression():
    step, K, H, rho = linear_step("ridge")
    step.fit(PackedColumns(codes.pack(H), H.shape[1]))
    expected = Ridge(alpha=rho, fit_intercept=False).fit(K, H).coef_.T
    np.testing.assert_allclose(step.W, expected, atol=1e-9)


@pytest.mark.parametrize("name", ["hinge", "logistic"])
def test_iterated_steps_never_raise_the_loss_and_reach_its_minimum(name):
    step, K, H, rho = linear_step(name)
    c = step.loss.curvature

    def total(W):
        return LITERAL[name](H, K @ W).sum() + c / 2 * rho * (W**2).sum()

    step.N_STEPS = 1
    values = [total(step.W.numpy())]
    for _ in range(1500):
        step.fit(PackedColumns(codes.pack(H), H.shape[1]))
        values.append(total(step.W.numpy()))
    assert (np.diff(values) <= 1e-9).all()
    if name == "logistic":
        for k in range(3):
            model = LogisticRegression(C=1 / (c * rho), fit_intercept=False, tol=1e-10, max_iter=1000)
            np.testing.assert_allclose(step.W[:, k], model.fit(K, H[:, k]).coef_[0], atol=1e-3)
    else:
        W = step.W.numpy()
        gradient = -2 * K.T @ (H * np.maximum(0, 1 - H * (K @ W))) + c * rho * W
        assert np.abs(gradient).max() < 1e-4 * np.abs(2 * K.T @ H).max()  # beside the gradient at W = 0


def test_linear_terms_sum_to_the_whole_loss():
    step, K, H, rho = linear_step("hinge")
    step.fit(PackedColumns(codes.pack(H), H.shape[1]))
    q, constant = step.linear_terms(scale=2.5)
    W = step.W.numpy()
    expected = 2.5 * (LITERAL["hinge"](H, K @ W).sum() + step.loss.curvature / 2 * rho * (W**2).sum())
    assert (q.numpy() * H.T).sum() + constant == pytest.approx(expected)
