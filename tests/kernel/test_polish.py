"""Gradient steps on S itself."""

import numpy as np
import pytest
import torch

from dish import DISH
from dish.io.rows import RowSource
from dish.kernel import features, polish
from dish.kernel.fit_data import Problem
from dish.similarity import from_labels
from helpers.similarities import KINDS

RNG = np.random.default_rng(5)
CPU = torch.device("cpu")


@pytest.mark.parametrize("name", KINDS)
def test_the_smooth_loss_is_the_distance_to_S_and_its_slope_is_right(name):
    S, dense = KINDS[name]
    r = 5
    F = torch.from_numpy(RNG.standard_normal((12, r))).requires_grad_()
    phi = torch.tanh(F)
    direct = (r * torch.from_numpy(dense) - phi @ phi.T).square().sum()
    direct.backward()
    loss, slope = polish.smooth_loss(F.detach(), S)
    assert loss + r * r * (dense**2).sum() == pytest.approx(direct.item())
    np.testing.assert_allclose(slope, F.grad, atol=1e-9)


def polished(n=200, n_steps=15):
    X = torch.from_numpy(RNG.standard_normal((n, 6)))
    y = (X[:, 0] * X[:, 1] > 0).numpy().astype(int)
    S = from_labels(y)
    K = features.FeatureMap("rbf", X[:20], 0.3).fit_rows(RowSource(X), CPU)
    W = torch.from_numpy(RNG.standard_normal((20, 4)))
    return K, S, W, polish.polish(Problem.of(S, K), W, n_steps)


def unit(F):
    return F / F.square().mean().sqrt()


def test_polish_lowers_the_smooth_loss():
    K, S, W, after = polished()
    assert polish.smooth_loss(K @ after, S)[0] < polish.smooth_loss(unit(K @ W), S)[0]
    few = polish.polish(Problem.of(S, K), W, 3)
    assert polish.smooth_loss(K @ after, S)[0] < polish.smooth_loss(K @ few, S)[0]


def test_polish_of_a_sample_of_the_rows_helps_all_rows(monkeypatch):
    monkeypatch.setattr(polish, "POLISH_ROWS", 120)
    K, S, W, after = polished(n=400, n_steps=3)  # few: more of them would learn 120 rows by heart
    assert polish.smooth_loss(K @ after, S)[0] < polish.smooth_loss(unit(K @ W), S)[0]


@pytest.mark.parametrize("name", ["classes", "counts", "share_one", "jaccard"])
def test_emphasis_is_a_larger_weight_of_similar_pairs(name):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 40) if name == "classes" else rng.integers(0, 2, (40, 4))
    kind = {} if name == "classes" else {"multilabel": name.replace("counts", "count")}
    Z = torch.from_numpy(rng.standard_normal((40, 5)))
    heavier = from_labels(y, similar_weight=3.0 * polish.EMPHASIS, **kind).dense()
    times = polish.Emphasised(from_labels(y, similar_weight=3.0, **kind)).times(Z)
    np.testing.assert_allclose(times, heavier @ Z.numpy(), atol=1e-9)


def test_a_similarity_of_ones_own_is_polished_as_its_labels_are():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 300)
    X = rng.standard_normal((300, 5)) + 2 * rng.standard_normal((3, 5))[y]
    W = [DISH(n_bits=8, n_anchors=30, polish=5).fit(X, labels).W_ for labels in (y, from_labels(y))]
    np.testing.assert_allclose(*W, atol=1e-9 * abs(W[0]).max())
