"""Losses, and the F-step with each of them and with scikit-learn's classifiers."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.naive_bayes import GaussianNB
from sklearn.svm import LinearSVC

from dish import codes
from dish.cbcd import PackedColumns
from dish.encoder import Classifiers, FeatureMap, Linear
from dish.errors import InputError
from dish.io.rows import RowSource
from dish.kernel import features, fstep
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
def test_the_working_target_bounds_the_loss_from_above(name):
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
    for _ in range(700):
        step.fit(PackedColumns(codes.pack(H), H.shape[1]))
        values.append(total(step.W.numpy()))
    assert (np.diff(values) <= 1e-9).all()
    if name == "logistic":
        for k in range(3):
            model = LogisticRegression(C=1 / (c * rho), fit_intercept=False, tol=1e-10, max_iter=1000)
            np.testing.assert_allclose(step.W[:, k], model.fit(K, H[:, k]).coef_[0], rtol=1e-3, atol=1e-3)
    else:
        W = step.W.numpy()
        gradient = -2 * K.T @ (H * np.maximum(0, 1 - H * (K @ W))) + c * rho * W
        assert np.abs(gradient).max() < 1e-4 * np.abs(2 * K.T @ H).max()  # compared with the gradient at W = 0


def test_linear_terms_sum_to_the_whole_loss():
    step, K, H, rho = linear_step("hinge")
    step.fit(PackedColumns(codes.pack(H), H.shape[1]))
    q, constant = step.linear_terms(scale=2.5)
    W = step.W.numpy()
    expected = 2.5 * (LITERAL["hinge"](H, K @ W).sum() + step.loss.curvature / 2 * rho * (W**2).sum())
    assert (q.numpy() * H.T).sum() + constant == pytest.approx(expected)


def test_other_losses_take_several_solves_per_step():
    step, K, H, _ = linear_step("hinge")
    step.N_STEPS, start = 3, torch.zeros_like(step.W)
    step.start(start)
    step.fit(PackedColumns(codes.pack(H), H.shape[1]))
    assert not start.any()  # the step does not write into W that it was given
    assert np.abs(LITERAL["hinge"](H, K @ step.W.numpy())).sum() < LITERAL["hinge"](H, 0 * H).sum()
    assert type(step.function()) is Linear


# --- Classifiers ---


def classifier_data(n=200, m=6, r=3):
    rng = np.random.default_rng(0)
    K = rng.standard_normal((n, m))
    H = np.where(K[:, :r] + 0.3 * rng.standard_normal((n, r)) >= 0, 1, -1)
    return FitData.of(LowRank(K, K), torch.from_numpy(K)), PackedColumns(codes.pack(H), r), H


def test_classifiers_are_fitted_to_the_bits():
    data, columns, H = classifier_data()
    step = fstep.ClassifierStep(data, GaussianNB(), 3)
    step.start(torch.zeros(6, 3, dtype=torch.float64))
    step.fit(columns)
    K = data.K.numpy()
    for k, model in enumerate(step.models):
        np.testing.assert_array_equal(model.predict(K), GaussianNB().fit(K, H[:, k]).predict(K))
        np.testing.assert_allclose(step.F[:, k], 2 * model.predict_proba(K)[:, 1] - 1, atol=1e-6)
    q, constant = step.linear_terms(scale=2.0)
    assert (q.numpy() * H.T).sum() + constant == pytest.approx(2 * LITERAL["hinge"](H, step.F).sum(), rel=1e-5)


def test_a_bit_keeps_its_classifier_if_a_new_one_is_worse():
    data, columns, _ = classifier_data()

    class Worse(GaussianNB):
        """Learns the opposite the second time."""

        calls = 0

        def fit(self, K, h):
            Worse.calls += 1
            return super().fit(K, -h if Worse.calls > 3 else h)

    step = fstep.ClassifierStep(data, Worse(), 3)
    step.fit(columns)
    first, F = list(step.models), step.F.copy()
    step.fit(columns)
    assert all(a is b for a, b in zip(first, step.models, strict=True))
    np.testing.assert_array_equal(step.F, F)


def test_linear_classifiers_become_one_linear_function():
    data, _, H = classifier_data()
    K = data.K.numpy()
    models = [LinearSVC(C=0.1).fit(K, h) for h in H.T]
    function = fstep.from_classifiers(models, 6)
    assert type(function) is Linear
    np.testing.assert_allclose(function(K), np.stack([m.decision_function(K) for m in models], 1), atol=1e-5)
    mixed = fstep.from_classifiers([*models[:2], GaussianNB().fit(K, H[:, 2])], 6)
    assert type(mixed) is Classifiers
    assert mixed.n_bits == 3


def test_a_classifier_needs_its_features_in_the_memory_of_one_process():
    X = RNG.standard_normal((50, 3))
    A = torch.from_numpy(X[:5])
    made = FeatureMap("rbf", A, 0.3, A.mean(0))
    made, K = features.compute_features(made, RowSource(X), torch.device("cpu"), budget=1)
    data = FitData(LowRank(X, X), K, made, np.random.RandomState(0), n=50)
    with pytest.raises(InputError, match="loss: a classifier needs all kernel features in the memory of one process"):
        fstep.ClassifierStep(data, GaussianNB(), 3)
