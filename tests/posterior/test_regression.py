"""Logistic regression on whitened features, compared with scikit-learn's."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from dish.kernel.fit_data import FitData
from dish.parallel import ALONE
from dish.posterior import regression
from dish.posterior.regression import WhitenedRows
from dish.similarity import from_labels


def clusters(n, l, d=6, spread=1.0):  # noqa: E741
    """n rows around l centres that overlap a little."""
    rng = np.random.default_rng(0)
    centres = 2.5 * np.random.default_rng(99).standard_normal((l, d))
    y = rng.integers(l, size=n)
    return centres[y] + spread * rng.standard_normal((n, d)), y


def fit_data(X, y):
    return FitData.of(from_labels(y), torch.from_numpy(X - X.mean(0)))


def whitened(X, y, budget=None):
    data = fit_data(X, y)
    return WhitenedRows.of(data, regression.whitening(data), np.random.RandomState(0), budget)


def label_sets(X, y):
    Y = np.eye(y.max() + 1)[y]
    Y[:, -1] = X[:, 0] > 0
    return Y


# --- The regression ---


def test_the_regression_of_classes_is_that_of_scikit_learn():
    X, y = clusters(900, 4)
    rows = whitened(X, y)
    W, b = regression.regress(rows, np.arange(900), np.random.RandomState(0))
    exact = LogisticRegression(C=1 / (regression.weight_decay(900, 4) * 900), tol=1e-8, max_iter=5000)
    p = exact.fit(rows.U.numpy(), y).predict_proba(rows.U.numpy())
    np.testing.assert_allclose(torch.softmax(rows.U @ W + b, 1), p, atol=0.02)


def test_every_label_of_label_sets_has_a_regression_of_its_own():
    X, y = clusters(900, 4)
    Y = label_sets(X, y)
    rows = whitened(X, Y)
    W, b = regression.regress(rows, np.arange(900), np.random.RandomState(0))
    C = 1 / (regression.weight_decay(900, 4, one_label=False) * 900)
    exact = LogisticRegression(C=C, tol=1e-8, max_iter=5000).fit(rows.U.numpy(), Y[:, 3])
    found = torch.sigmoid(rows.U @ W + b)[:, 3]
    np.testing.assert_allclose(found, exact.predict_proba(rows.U.numpy())[:, 1], atol=0.02)


def test_a_start_is_not_overwritten():
    rows = whitened(*clusters(300, 3))
    W, b = regression.regress(rows, np.arange(300), np.random.RandomState(0), share=0.1)
    before = W.clone(), b.clone()
    again, _ = regression.regress(rows, np.arange(300), np.random.RandomState(0), (W, b), share=0.1)
    assert torch.equal(W, before[0])
    assert torch.equal(b, before[1])
    assert not torch.equal(again, W)


def test_only_the_given_rows_are_learned_from():
    X, y = clusters(400, 3)
    rows = whitened(X, y)
    some = np.arange(0, 400, 2)
    W, _ = regression.regress(rows, some, np.random.RandomState(0))
    rows.U[1::2] = torch.nan
    again, _ = regression.regress(rows, some, np.random.RandomState(0))
    assert torch.equal(W, again)


def test_a_stronger_prior_gives_smaller_weights():
    rows = whitened(*clusters(300, 3))
    weak, strong = (
        regression.regress(rows, np.arange(300), np.random.RandomState(0), prior=prior)[0].norm() for prior in (1, 20)
    )
    assert strong < 0.7 * weak


def test_the_prior_is_stronger_for_few_rows_of_few_classes():
    assert regression.weight_decay(100_000, 200) == pytest.approx(110 / 100_000, rel=0.02)
    assert regression.weight_decay(20_000, 10) == pytest.approx(0.011)  # twice 110/n
    assert regression.weight_decay(5_000, 10) == pytest.approx(0.06)  # at most 0.6/l
    assert regression.weight_decay(2_000, 50) == pytest.approx(0.012)
    assert regression.weight_decay(500, 2) == 0.06  # and never more
    assert regression.weight_decay(50_000, 100, one_label=False) == pytest.approx(110 / 50_000)


def test_one_momentum_step():
    rows = whitened(*clusters(50, 3))
    W, b = torch.randn(6, 3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    steps = regression.MomentumSteps(rows, W.clone(), b.clone(), 10, decay=0.1)
    picked = torch.arange(10)
    expected_W, expected_b, move_W, move_b = W.clone(), b.clone(), 0.0, 0.0
    for rate in (0.5, 0.2):
        grad_W, grad_b = rows.gradient(picked, expected_W, expected_b)
        move_W = 0.9 * move_W - rate * (grad_W / 10 + 0.1 * expected_W)
        move_b = 0.9 * move_b - rate * grad_b / 10
        expected_W, expected_b = expected_W + move_W, expected_b + move_b
        steps.take(picked, rate)
    torch.testing.assert_close(steps.W, expected_W)
    torch.testing.assert_close(steps.b, expected_b)


# --- Whitened rows ---


def test_whitened_features_have_unit_second_moments():
    X, y = clusters(2000, 4)
    rows = whitened(X * np.linspace(1, 2, 6), y)
    np.testing.assert_allclose((rows.U.T @ rows.U) / 2000, np.eye(6), atol=0.1)


def test_directions_below_the_noise_are_shrunk():
    X, y = clusters(100, 4)
    X[:, 5] *= 1e-4
    moments = (whitened(X, y).U.square().sum(0) / 100).numpy()
    assert moments.min() < 0.01
    assert moments.max() > 0.5


@pytest.mark.parametrize("budget", [None, 300 * 6 * 8, 300 * 6 * 8 - 1])
def test_rows_that_do_not_fit_the_budget_are_sampled_and_K_is_unchanged(budget, monkeypatch):
    monkeypatch.setattr(regression, "SAMPLE", 100)
    X, y = clusters(300, 3)
    data = fit_data(X, y)
    before, T = data.K.clone(), regression.whitening(data)
    rows = WhitenedRows.of(data, T, np.random.RandomState(0), budget)
    assert torch.equal(data.K, before)
    if budget == 300 * 6 * 8 - 1:
        assert (rows.n, len(rows.U)) == (100, 100)
        nearest = torch.cdist(rows.U, data.K @ T).min(1)
        assert nearest.values.max() < 1e-6
        np.testing.assert_array_equal(rows.S.row_group, y[nearest.indices])
    else:
        assert rows.n == 300
        np.testing.assert_allclose(rows.U, data.K @ T, atol=1e-10)


def test_outliers_have_less_weight():
    X, y = clusters(300, 3)
    assert not whitened(X, y).has_outliers
    X[5] *= 100
    rows = whitened(X, y)
    assert rows.has_outliers
    assert rows.weight[5] < 0.3
    assert (rows.weight < 1).sum() == 1


@pytest.mark.parametrize("kind", ["classes", "sets"])
def test_the_gradient_is_that_of_autograd(kind, monkeypatch):
    X, y = clusters(80, 4)
    X[3] *= 50  # an outlier, with a weight below 1
    rows = whitened(X, y if kind == "classes" else label_sets(X, y))
    picked = torch.tensor([3, 0, 7, 7, 41, 12, 60])
    W = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    b = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    z, targets = rows.U[picked] @ W + b, rows.targets(picked)
    if kind == "classes":
        losses = -(targets * torch.log_softmax(z, 1)).sum(1)
    else:
        losses = torch.nn.functional.binary_cross_entropy_with_logits(z, targets, reduction="none").sum(1)
    (rows.weight[picked] * losses).sum().backward()
    for parts in (1, 4):
        monkeypatch.setattr(regression, "PARTS", parts)
        grad_W, grad_b = rows.gradient(picked, W.detach(), b.detach())
        torch.testing.assert_close(grad_W, W.grad)
        torch.testing.assert_close(grad_b, b.grad)


def test_labels_and_frequencies_of_label_sets():
    Y = np.array([[1, 0, 1], [0, 0, 0], [1, 0, 1], [0, 1, 0]])
    S = from_labels(Y)
    rows = WhitenedRows(torch.zeros(4, 2), torch.ones(4), S, ALONE, 4)
    assert not rows.one_label
    np.testing.assert_array_equal(rows.targets(torch.arange(4)), Y)
    np.testing.assert_array_equal(rows.labels(S.row_group), Y)
    np.testing.assert_allclose(rows.frequencies(), Y.mean(0))
    first, of = rows.group_labels_csr
    sets = [sorted(of[first[g] : first[g + 1]].tolist()) for g in S.row_group.tolist()]
    assert sets == [[0, 2], [], [0, 2], [1]]


def test_labels_and_frequencies_of_classes():
    rows = WhitenedRows(torch.zeros(5, 2), torch.ones(5), from_labels([2, 0, 2, 2, 1]), ALONE, 5)
    assert rows.one_label
    np.testing.assert_array_equal(rows.targets(torch.arange(5)), np.eye(3)[[2, 0, 2, 2, 1]])
    np.testing.assert_allclose(rows.frequencies(), [0.2, 0.2, 0.6])
    assert rows.labels(torch.tensor([2, 0])).tolist() == [2, 0]
    assert rows.group_labels_csr == (None, None)


def test_batches_are_permutations():
    rows = WhitenedRows(torch.zeros(10, 2), torch.ones(10), from_labels(np.arange(10) % 2), ALONE, 10)
    some = np.array([1, 3, 5, 7, 9])
    drawn = rows.shuffled(some, 12, np.random.RandomState(0))
    assert len(drawn) == 12
    assert sorted(drawn[:5]) == sorted(drawn[5:10]) == some.tolist()
    batches = list(rows.batches(some, 3, 4, np.random.RandomState(0)))
    assert [len(batch) for batch in batches] == [3, 3, 3, 3]
    np.testing.assert_array_equal(torch.cat(batches), drawn)


def test_scored_rows_are_probabilities_and_groups():
    X, y = clusters(60, 3)
    rows = whitened(X, y)
    W, b = torch.randn(6, 3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    p, group = rows.scored(np.array([5, 2, 50]), W, b)
    np.testing.assert_allclose(p, torch.softmax(rows.U[[5, 2, 50]] @ W + b, 1))
    np.testing.assert_array_equal(group, y[[5, 2, 50]])
