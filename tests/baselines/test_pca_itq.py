"""PCA-ITQ against scans and direct formulas."""

import numpy as np
import pytest
import torch

from dish import codes
from dish.baselines._pca import principal
from dish.baselines.lsh import LSH
from dish.baselines.pca_itq import PCAITQ
from dish.posterior.projection import rotation
from helpers.rivals import map_of


def turn(angle):
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def test_rotation_is_the_best_angle_in_the_plane():
    """Four clusters off the axes: no angle of a fine scan has a lower quantisation loss."""
    rng = np.random.default_rng(0)
    V = rng.choice([-1.0, 1.0], (300, 2)) + 0.2 * rng.standard_normal((300, 2))
    V = V @ turn(0.6)
    R, loss = rotation(torch.from_numpy(V), 2, 50, np.random.RandomState(0))

    def quantisation_loss(R):
        return ((np.where(V @ R >= 0, 1, -1) - V @ R) ** 2).sum()

    scan = min(quantisation_loss(turn(angle)) for angle in np.linspace(0, np.pi / 2, 2000))
    np.testing.assert_allclose(R @ R.T, np.eye(2), atol=1e-12)
    assert quantisation_loss(R) == pytest.approx(loss[-1])
    assert loss[-1] <= scan * (1 + 1e-9)
    assert loss[-1] == pytest.approx(scan, rel=1e-3)
    assert quantisation_loss(turn(0.2)) > 1.5 * scan  # the angle matters


@pytest.mark.parametrize("r", [3, 5, 11])
def test_objective_never_rises_and_belongs_to_the_codes(cloud, r):
    """With r = 11 bits and rows of rank 5, R has orthonormal rows."""
    hasher = PCAITQ(n_bits=r, n_iter=30).fit(cloud)
    assert (np.diff(hasher.objective_) <= 1e-9 * hasher.objective_[0]).all()
    assert hasher.objective_[-1] < hasher.objective_[0]
    _, W, _ = principal(cloud, r)
    R = W.T @ hasher.W_  # (p, r)
    np.testing.assert_allclose(R @ R.T, np.eye(min(r, 5)), atol=1e-10)
    V = (cloud - cloud.mean(0)) @ W
    best = ((codes.unpack(hasher.transform(cloud), r) - V @ R) ** 2).sum()  # B-step of the last R
    before = PCAITQ(n_bits=r, n_iter=31).fit(cloud).objective_[-1]
    assert before <= best * (1 + 1e-9) <= hasher.objective_[-1] * (1 + 2e-9)


def test_ranks_better_than_lsh_and_than_one_round(digits):
    found = map_of(PCAITQ(n_bits=32).fit(digits[0]), *digits)
    assert found > map_of(LSH(n_bits=32).fit(digits[0]), *digits) + 0.05
    assert found > map_of(PCAITQ(n_bits=32, n_iter=1).fit(digits[0]), *digits) + 0.01


def test_rejects_no_rounds(blobs):
    with pytest.raises(ValueError, match="n_iter"):
        PCAITQ(n_iter=0).fit(blobs[0])
