"""FSSH against its objective with S as a dense matrix."""

import numpy as np
import pytest
import torch

from dish.baselines import fssh
from dish.baselines.fssh import FSSH
from dish.similarity import from_labels


def objective(K, Y, W, G, B, mu, theta):
    S = 2 * Y @ Y.T - 1
    fit = np.square(B.shape[1] * S - (K @ W) @ (Y @ G).T).sum()
    return fit + mu * np.square(B - Y @ G).sum() + theta * np.square(B - K @ W).sum()


def test_every_step_minimises_the_objective():
    """No small change of G or W lowers it, and B = sgn(μYG + θKW) does."""
    rng = np.random.default_rng(0)
    Y = np.eye(3)[rng.integers(3, size=40)]
    Y[:4, 1] = 1
    K = rng.standard_normal((40, 5))
    K -= K.mean(0)
    W, G, B = rng.standard_normal((5, 4)), rng.standard_normal((3, 4)), rng.choice([-1.0, 1.0], (40, 4))
    mu, theta = 7.0, 3.0
    S = from_labels(Y.astype(int))
    K_t, B_t = torch.from_numpy(K), torch.from_numpy(B)
    KtK = K_t.T @ K_t
    sums = fssh.Sums.of(K_t, S, KtK, 4)

    G = sums.g_step(torch.from_numpy(W), fssh.YtB(S, B_t), mu).numpy()
    least = objective(K, Y, W, G, B, mu, theta)
    for _ in range(20):
        assert least < objective(K, Y, W, G + 0.05 * rng.standard_normal(G.shape), B, mu, theta)
    W = torch.linalg.solve(KtK, sums.w_step(torch.from_numpy(G), fssh.KtB(K_t, B_t), theta)).numpy()
    least = objective(K, Y, W, G, B, mu, theta)
    for _ in range(20):
        assert least < objective(K, Y, W + 0.05 * rng.standard_normal(W.shape), G, B, mu, theta)
    YG = sums.Y_g @ torch.from_numpy(G)
    flips = fssh.b_step(B_t, K_t, torch.from_numpy(W), YG, S, mu, theta)  # B and B_t share memory
    np.testing.assert_array_equal(B, np.where(mu * Y @ G + theta * K @ W >= 0, 1, -1))
    assert flips > 0
    assert objective(K, Y, W, G, B, mu, theta) < least


@pytest.mark.parametrize("bad", [{"mu": 0}, {"theta": -1}, {"n_iter": 0}])
def test_rejects_bad_parameters(bad, blobs):
    with pytest.raises(ValueError, match=next(iter(bad))):
        FSSH(n_anchors=60, **bad).fit(*blobs)
