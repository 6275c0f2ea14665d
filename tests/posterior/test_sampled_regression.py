"""Many classes: the sampled softmax compared with the full one, held-out rows of some classes, and whole fits."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import dish
from dish import DISH, DISHK, metrics
from dish.kernel.fit_data import FitData
from dish.posterior import regression, sampled_regression
from dish.posterior.regression import WhitenedRows, rows_of_some_classes
from dish.posterior.sampled_regression import gaussian_classifier, sampled_excess, sampled_steps, some_classes
from dish.similarity import from_labels


def clusters(n, l, d=6, spread=1.0, seed=0):  # noqa: E741
    """n rows of l classes, each with about as many, around centres that overlap a little."""
    rng = np.random.default_rng(seed)
    centres = 2.5 * np.random.default_rng(99).standard_normal((l, d))
    y = rng.permutation(np.arange(n) % l)
    return (centres[y] + spread * rng.standard_normal((n, d))).astype(np.float32), y


def whitened(X, y):
    data = FitData.of(from_labels(y), torch.from_numpy(X - X.mean(0)))
    return WhitenedRows.of(data, regression.whitening(data), np.random.RandomState(0))


@pytest.fixture
def few_classes_per_step(monkeypatch):
    """The sampled softmax for any number of classes, with few of them per step."""
    monkeypatch.setattr(regression, "ALL_CLASSES", 1)
    monkeypatch.setattr(sampled_regression, "BATCH", 16)
    monkeypatch.setattr(sampled_regression, "NEGATIVES", 4)


# --- Steps ---


def test_with_all_classes_the_excess_is_that_of_the_full_softmax(monkeypatch):
    monkeypatch.setattr(sampled_regression, "NEGATIVES", 9)
    label = torch.tensor([4, 1, 4, 7])
    classes, n_present = some_classes(label, 9, np.random.RandomState(0))
    assert sorted(classes.tolist()) == list(range(9))
    assert classes[:n_present].tolist() == [1, 4, 7]
    z = torch.randn(4, 9, dtype=torch.float64)
    full = torch.softmax(z, 1) - torch.nn.functional.one_hot(label, 9)
    torch.testing.assert_close(sampled_excess(z[:, classes], classes, n_present, label, 9), full[:, classes])


def test_the_mean_over_samples_is_the_full_excess(monkeypatch):
    monkeypatch.setattr(sampled_regression, "NEGATIVES", 20)
    l, rng = 60, np.random.RandomState(0)  # noqa: E741
    label = torch.tensor([3, 3, 50, 11])
    z = torch.from_numpy(0.5 * rng.standard_normal((4, l)))
    mean = torch.zeros(4, l, dtype=torch.float64)
    for _ in range(4000):
        classes, n_present = some_classes(label, l, rng)
        mean[:, classes] += sampled_excess(z[:, classes], classes, n_present, label, l) / 4000
    full = torch.softmax(z, 1) - torch.nn.functional.one_hot(label, l)
    assert (mean - full).abs().max() < 0.005  # the ratio of two estimates has a small bias
    assert (mean - full).norm() < 0.01 * full.norm()


def test_steps_from_zero_find_the_regression_of_scikit_learn(few_classes_per_step, monkeypatch):
    monkeypatch.setattr(sampled_regression, "RATE", 2.0)  # a class has many rows here
    X, y = clusters(2000, 12)
    rows, decay = whitened(X, y), regression.weight_decay(2000, 12)
    order = rows.shuffled(np.arange(2000), 200_000, np.random.RandomState(0))
    start = torch.zeros(rows.U.shape[1], 12), torch.zeros(12)
    W, b = sampled_steps(rows, *start, order, np.random.RandomState(0), decay)
    exact = LogisticRegression(C=1 / (decay * 2000), tol=1e-8, max_iter=5000)
    p = exact.fit(rows.U.numpy(), y).predict_proba(rows.U.numpy())
    np.testing.assert_allclose(torch.softmax(rows.U @ W + b, 1), p, atol=0.06)


def test_the_closed_form_is_that_of_the_distribution_that_made_the_rows():
    rng = np.random.default_rng(0)
    l, per, d = 3000, 4, 5  # noqa: E741
    A = rng.standard_normal((d, d))  # the covariance within classes is AAᵀ
    scales = np.array([4.0, 2.0, 1.0, 0.5, 0.0])  # of the means, in coordinates in which that is I
    mean, y = scales * rng.standard_normal((l, d)), np.repeat(np.arange(l), per)
    X = ((mean[y] + rng.standard_normal((l * per, d))) @ A.T).astype(np.float32)
    rows = whitened(X, y)
    W, b = gaussian_classifier(rows, np.arange(rows.n))
    found = torch.log_softmax(rows.U[: 4 * 50] @ W + b, 1)
    observed = np.linalg.solve(A, X.T).T
    lam = scales**2
    shrunk = per * lam / (per * lam + 1) * observed.reshape(l, per, d).mean(1)
    variance = 1 + lam / (per * lam + 1)
    z = -(((observed[: 4 * 50, None] - shrunk) ** 2) / variance).sum(2) / 2
    exact = torch.log_softmax(torch.from_numpy(z), 1)
    assert (found.exp() - exact.exp()).abs().sum(1).mean() < 0.1


@pytest.mark.long
def test_codes_are_as_good_as_with_the_full_softmax(monkeypatch):
    X, y = clusters(6000, 100)
    Xq, yq = clusters(500, 100, seed=1)

    def score():
        hasher = DISH(32, n_anchors=100, geometry=0).fit(X, y)
        return metrics.mean_average_precision(hasher.transform(Xq), yq, hasher.codes_, y)

    full = score()
    monkeypatch.setattr(regression, "ALL_CLASSES", 50)
    monkeypatch.setattr(sampled_regression, "BATCH", 32)
    monkeypatch.setattr(sampled_regression, "NEGATIVES", 16)
    monkeypatch.setattr(sampled_regression, "RATE", 1.0)  # a class has many rows here
    monkeypatch.setattr(regression, "VISITS", 6000)  # as many as the full softmax has
    monkeypatch.setattr(regression, "CERTAIN", 1.0)
    assert score() > full - 0.02


def test_a_start_is_not_changed(few_classes_per_step):
    rows = whitened(*clusters(300, 5))
    start = torch.randn(rows.U.shape[1], 5), torch.randn(5)
    kept = [part.clone() for part in start]
    W, _ = sampled_steps(rows, *start, np.arange(300), np.random.RandomState(0), 0.01)
    assert all(torch.equal(*pair) for pair in zip(start, kept, strict=True))
    assert not torch.equal(W, start[0])


# --- Held-out rows ---


def test_held_out_rows_have_mates_and_halves_have_classes_of_their_own():
    group = np.random.default_rng(0).integers(0, 500, 3000) ** 2 // 500  # classes of 1 to 70 rows
    held, mates = rows_of_some_classes(group, 400)
    assert 300 < len(held) <= 400
    assert len(np.unique(np.concatenate([held, mates]))) == 2 * len(held)
    np.testing.assert_array_equal(group[held], group[mates])
    assert not set(group[held[::2]]) & set(group[held[1::2]])
    assert np.bincount(group[held]).max() <= regression.PER_CLASS
    assert (2 * np.bincount(group[held], minlength=group.max() + 1) <= np.bincount(group)).all()
    classes = len(np.unique(group[held]))
    assert len(np.unique(group[held[: classes // 2]])) == classes // 2  # first one row of every class


def test_classes_of_one_row_are_not_held_out():
    held, mates = rows_of_some_classes(np.arange(100), 50)
    assert len(held) == len(mates) == 0


# --- Whole fits ---


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_five_thousand_classes(tmp_path):
    X, y = clusters(17_000, 5000, d=24)
    Xq, yq = clusters(500, 5000, d=24, seed=1)
    hasher = DISH(48, n_anchors=50).fit(X, y)
    np.testing.assert_array_equal(hasher.codes_, hasher.transform(X, labels=y))
    found = metrics.mean_average_precision(hasher.transform(Xq), yq, hasher.codes_, y)
    paper = DISHK(48, n_anchors=50).fit(X, y)
    assert found > 0.5
    assert found > metrics.mean_average_precision(paper.transform(Xq), yq, paper.codes_, y) + 0.2
    p = hasher.predict_proba(Xq[:50])
    assert p.shape == (50, 5000)
    np.testing.assert_allclose(p.sum(1), 1, rtol=1e-4)
    hasher.save(tmp_path / "many.dish")
    np.testing.assert_array_equal(dish.load(tmp_path / "many.dish").transform(Xq), hasher.transform(Xq))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_classes_of_one_row_each_are_learned():
    X, y = clusters(4200, 4200, d=16, spread=0.1)
    hasher = DISH(32, n_anchors=50).fit(X, y)
    np.testing.assert_array_equal(hasher.codes_, hasher.transform(X, labels=y))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_codes_of_three_thousand_classes_are_those_of_their_labels():
    X, y = clusters(6000, 3000, d=8)
    hasher = DISH(32, n_anchors=30).fit(X, y)
    np.testing.assert_array_equal(hasher.codes_, hasher.transform(X, labels=y))
