"""MLH: loss and inference against brute force."""

import numpy as np
import pytest
import torch

from dish import codes
from dish.baselines import mlh
from dish.baselines._pairs import sample_pairs
from dish.baselines.mlh import MLH
from dish.similarity import from_labels
from helpers.rivals import all_signs


def test_loss_counts_bits_beyond_rho():
    far, near = mlh.losses(r=6, rho=2, lam=0.5).numpy()
    np.testing.assert_allclose(near, np.array([0, 0, 1, 2, 3, 4, 5]) / 5)
    np.testing.assert_allclose(far, 0.5 * np.array([3, 2, 1, 0, 0, 0, 0]) / 3)


@pytest.mark.parametrize("similar", [0, 1])
def test_loss_adjusted_inference_is_the_best_of_all_pairs_of_codes(similar):
    r, rng = 4, np.random.default_rng(similar)
    f, f2 = (torch.from_numpy(rng.standard_normal((20, r)) / 3) for _ in range(2))
    loss = mlh.losses(r, 2, 0.7)[similar].expand(20, -1)
    g, g2, value = mlh.loss_adjusted(f, f2, loss)
    G = all_signs(r)
    for row in range(20):
        score = (G @ f[row].numpy())[:, None] + (G @ f2[row].numpy())[None, :]
        score += loss[row].numpy()[(G[:, None] != G[None, :]).sum(2)]
        assert float(value[row]) == pytest.approx(score.max())
        a, b = (int(np.flatnonzero((z[row].numpy() == G).all(1))[0]) for z in (g, g2))
        assert score[a, b] == pytest.approx(score.max())


def test_training_lowers_the_bound_on_the_loss(groups):
    X, y, _, _ = groups
    hasher = MLH(n_bits=16, n_iter=4, pairs_per_row=20).fit(X, y)
    assert hasher.bound_[-1] < 0.5 * hasher.bound_[0]
    i, j, similar = sample_pairs(from_labels(y), 20, np.random.RandomState(1))
    distance = np.diagonal(codes.hamming(*(hasher.transform(X[rows]) for rows in (i, j))))
    loss = mlh.losses(16, hasher.rho_, 1.0).numpy()[similar.astype(int), distance]
    assert loss.mean() <= hasher.bound_[-1] + 0.02


@pytest.mark.parametrize("bad", [{"rho": 0}, {"lam": -1}, {"batch_size": 0}])
def test_rejects_bad_parameters(bad, blobs):
    with pytest.raises(ValueError, match=next(iter(bad))):
        MLH(n_anchors=60, **bad).fit(*blobs)
