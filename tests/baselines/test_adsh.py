"""ADSH: its loss and its codes against loops and enumeration."""

import itertools

import numpy as np
import pytest
import torch

from dish import metrics
from dish.baselines.adsh import ADSH, GAMMA, Asymmetric, balanced
from dish.similarity import from_labels
from helpers.deep import fit_data, patches, score, tiny


def solver(n=12, r=4):
    y = np.arange(n) % 3
    made = Asymmetric(fit_data(np.zeros((n, 2)), y), r, 1)
    made.U = torch.from_numpy(np.random.default_rng(1).uniform(-1, 1, (n, r))).float()
    same = y[:, None] == y
    return made, np.where(same, 1, -same.sum() / (~same).sum())


def objective(U, V, S):
    return ((U @ V.T - U.shape[1] * S) ** 2).sum() + GAMMA * ((V - U) ** 2).sum()


def test_the_loss_equals_a_loop():
    made, S = solver()
    U, V = made.U.double().numpy(), made.V.double().numpy()
    found = made.loss(made.U, torch.arange(12)) * 12 * 12 * 4  # a mean over rows and over training rows, by bit
    assert float(found) == pytest.approx(objective(U, V, S), rel=1e-5)


def test_long_codes_learn_as_fast_as_short_ones(monkeypatch):
    monkeypatch.setattr("dish.baselines.adsh.GAMMA", 0.0)
    sizes = []
    for r in (8, 128):
        made, _ = solver(60, r)
        u = torch.zeros(60, r, requires_grad=True)
        made.loss(u, torch.arange(60)).backward()
        sizes.append(float(u.grad.abs().mean()))
    assert 0.5 < sizes[1] / sizes[0] < 2


def test_every_column_is_optimal_given_the_others():
    made, S = solver()
    U, values = made.U.double().numpy(), []
    for _ in range(3):
        values.append(objective(U, made.V.double().numpy(), S))
        made.solve()
    assert values[0] > values[1] >= values[2]
    made, S = solver(6, 1)
    made.solve()
    U, V = made.U.double().numpy(), made.V.double().numpy()
    best = min(objective(U, np.array(v)[:, None], S) for v in itertools.product([-1.0, 1.0], repeat=6))
    assert objective(U, V, S) == pytest.approx(best)


def test_similar_and_dissimilar_pairs_weigh_the_same():
    y = np.repeat([0, 1, 2], [1, 2, 5])
    S = from_labels(y)
    table = balanced(S.between_groups(), S.row_group)[S.row_group][:, S.row_group].numpy()
    assert abs(table.sum()) < 1e-9
    assert (table[y[:, None] == y] == 1).all()
    assert (table[y[:, None] != y] < 0).all()
    assert balanced(torch.ones(1, 1), torch.zeros(4, dtype=torch.int64)) == 1  # no dissimilar pairs


@pytest.mark.parametrize("accumulate", [1, 2])
def test_codes_are_solved_for_after_every_epoch(monkeypatch, accumulate):
    solved, solve = [], Asymmetric.solve
    monkeypatch.setattr(Asymmetric, "solve", lambda state: solved.append(1) or solve(state))
    tiny(ADSH, epochs=3, accumulate=accumulate).fit(*patches(100, 0))
    assert len(solved) == 3


def test_learned_and_encoded_codes_retrieve():
    (X, y), (Xq, yq) = patches(300, 0), patches(100, 1)
    hasher = tiny(ADSH, epochs=12).fit(X, y)
    assert score(hasher, X, y, Xq, yq) > 0.8
    assert metrics.mean_average_precision(hasher.transform(Xq), yq, hasher.codes_, y) > 0.8
