"""Which features few rows get: x among them or not, and how wide the kernel is; held-out rows decide."""

import numpy as np
import pytest
import torch

import dish
from dish import DISH
from dish.kernel.fit_data import Problem
from dish.posterior import selection
from dish.similarity import from_labels


def noisy_rows(n=1200, d=300, seed=0):
    """Classes by the distance from the origin in two dimensions; the other dimensions are noise."""
    rng = np.random.default_rng(seed)
    X = 0.02 * rng.standard_normal((n, d))
    X[:, :2] = rng.standard_normal((n, 2))
    radius = np.linalg.norm(X[:, :2], axis=1)
    return X.astype(np.float32), np.digitize(radius, [0.7, 1.2, 1.7])


def linear_rows(n=1200, d=20, seed=0):
    """Classes by directions that are small beside noise-free ones the RBF kernel looks at."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)).astype(np.float32)
    w = rng.standard_normal((d, 3))
    return X, (X @ w).argmax(1)


def errors(K, y, m):
    """The held-out errors of both feature sets, by a ridge regression per class."""
    n = len(K)
    held = np.zeros(n, bool)
    held[np.random.RandomState(0).permutation(n)[: int(0.15 * n)]] = True
    T = np.eye(y.max() + 1)[y]
    T = T - T.mean(0)
    found = []
    for A in (K[:, :m], K):
        seen, T_seen = A[~held], T[~held]
        G = seen.T @ seen
        ridges = [ridge / n * np.trace(G) / len(G) for ridge in selection.RIDGES]
        solved = [np.linalg.solve(G + rho * np.eye(len(G)), seen.T @ T_seen) for rho in ridges]
        found.append(min(((A[held] @ W - T[held]) ** 2).sum() for W in solved))
    return found


@pytest.mark.parametrize("seed", range(6))
def test_the_errors_are_those_of_ridge_regressions(seed):
    rng = np.random.default_rng(seed)
    K, y = rng.standard_normal((400, 60)), rng.integers(0, 3, 400)
    K[:, :5] += 0.6 * np.eye(3)[y] @ rng.standard_normal((3, 5))
    K[:, 40:] += 0.05 * seed * np.eye(3)[y] @ rng.standard_normal((3, 20))
    K -= K.mean(0)
    alone, both = errors(K, y, 40)
    found = selection.held_out_errors(Problem.of(from_labels(y), torch.from_numpy(K)), 40)
    assert found == [(60, pytest.approx(both)), (40, pytest.approx(alone))]


def test_many_labels_are_replaced_by_random_sums_of_the_same_size():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 500, 5000)
    problem = Problem.of(from_labels(y), torch.from_numpy(rng.standard_normal((5000, 4))))
    T = selection.targets(problem)
    assert T.shape == (5000, selection.TARGETS)
    assert torch.equal(T[y == y[0]][0], T[0])
    assert (T[0] != T[np.flatnonzero(y != y[0])[0]]).any()


def test_the_kernel_is_narrower_where_that_predicts_more(monkeypatch):
    """Classes in small patches: the usual kernel blurs them."""
    rng = np.random.default_rng(0)
    X = rng.random((3000, 1)).astype(np.float32)
    y = (np.floor(8 * X[:, 0]) % 2).astype(int)
    usual = DISH(16, n_anchors=50, kernel="rbf").fit(X, y).gamma_
    assert DISH(16, n_anchors=50).fit(X, y).gamma_ == pytest.approx(2 * usual)
    assert DISH(16, n_anchors=50, gamma=usual).fit(X, y).gamma_ == usual  # it was asked for
    monkeypatch.setattr(selection, "FEW_ROWS", 2999)
    assert DISH(16, n_anchors=50).fit(X, y).gamma_ == usual


def test_x_is_left_out_where_few_rows_cannot_learn_from_it(tmp_path):
    X, y = noisy_rows()
    hasher = DISH(16, n_anchors=300).fit(X, y)
    assert len(hasher.mean_) == len(hasher.anchors_) == 300
    same = DISH(16, n_anchors=300, kernel="rbf", gamma=hasher.gamma_).fit(X, y)
    assert np.array_equal(hasher.transform(X), same.transform(X))
    hasher.save(tmp_path / "model.dish")
    assert np.array_equal(dish.load(tmp_path / "model.dish").transform(X), hasher.transform(X))


def test_x_stays_where_it_helps_and_where_it_was_asked_for():
    X, y = linear_rows()
    assert len(DISH(16, n_anchors=30).fit(X, y).mean_) == 50
    X, y = noisy_rows()
    assert len(DISH(16, n_anchors=300, kernel="rbf+linear").fit(X, y).mean_) == 600


def test_a_row_counts_for_every_label_it_has():
    Y = np.zeros((60, 3), np.uint8)
    Y[:30, :2] = Y[30:, 1:] = 1  # two labels per row: forty rows per label
    S, one = from_labels(Y), from_labels(np.arange(60) % 3)
    assert selection.can_decide(150, S)
    assert not selection.can_decide(149, S)
    assert selection.can_decide(300, one)
    assert not selection.can_decide(299, one)
