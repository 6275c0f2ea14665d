"""KSH against explicit n×n matrices and finite differences."""

import numpy as np
import pytest
import torch

from dish.baselines import ksh
from dish.baselines.ksh import KSH
from dish.kernel.fit_data import FitData
from dish.kernel.whitening import Whitening, gram
from dish.similarity import from_labels


@pytest.fixture
def problem():
    """Centred float64 features of 40 rows, and their three classes."""
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=40)
    K = torch.from_numpy(rng.standard_normal((40, 6)) + np.eye(3, 6)[y])
    K -= K.mean(0)
    return K, y


def residue(y, r, H, K):
    Q = ksh.Residue(from_labels(y), r, K)
    for h in H.T:
        Q.subtract(torch.from_numpy(h))
    return Q


def test_residue_is_r_S_minus_H_Ht(problem):
    K, y = problem
    rng = np.random.default_rng(1)
    H = rng.choice([-1.0, 1.0], (40, 3))
    explicit = 8 * np.where(y[:, None] == y, 1.0, -1.0) - H @ H.T
    z = rng.standard_normal(40)
    Q = residue(y, 8, H, K)
    np.testing.assert_allclose(Q @ torch.from_numpy(z), explicit @ z, atol=1e-10)
    assert Q.quadratic(torch.from_numpy(z)) == pytest.approx(z @ explicit @ z)


def test_smoothed_gradient_equals_finite_differences(problem):
    K, y = problem
    rng = np.random.default_rng(2)
    Q = residue(y, 8, rng.choice([-1.0, 1.0], (40, 2)), K)
    F = torch.from_numpy(rng.standard_normal(40))
    g, gradient = ksh.smoothed(Q, F)
    h = ksh.signs(F)
    assert ksh.smoothed(Q, 1e3 * h)[0] == pytest.approx(-Q.quadratic(h))  # a steep sigmoid is the sign
    for i in range(0, 40, 7):
        e = torch.zeros(40, dtype=torch.float64)
        e[i] = 1e-5
        difference = (ksh.smoothed(Q, F + e)[0] - ksh.smoothed(Q, F - e)[0]) / 2e-5
        assert gradient[i].item() == pytest.approx(difference, rel=1e-5, abs=1e-4)
    assert g == pytest.approx(-Q.quadratic(torch.tanh(F / 2)))


@pytest.mark.parametrize("whiten", [True, False])
def test_accelerated_gradient_lowers_the_smoothed_objective(problem, whiten):
    K, y = problem
    Q, L_inv = ksh.Residue(from_labels(y), 8, K), Whitening.of(gram(K), 1e-6).inverse_factor() if whiten else None
    w = torch.ones(6, dtype=torch.float64)
    values = [ksh.smoothed(Q, ksh.descend(K, L_inv, Q, w, K @ w, n)[1])[0] for n in (0, 1, 5, 50)]
    assert values[0] > values[1] > values[2] > values[3]
    w_up, F_up = ksh.descend(K, L_inv, Q, w, K @ w, 50)
    np.testing.assert_allclose(K @ w_up, F_up, atol=1e-8)


def test_every_bit_brings_H_Ht_closer_to_r_S(problem):
    K, y = problem
    r = 8
    H = np.where(K @ ksh.learn(FitData.of(from_labels(y), K), r, 20) >= 0, 1.0, -1.0)
    S = np.where(y[:, None] == y, 1.0, -1.0)
    distance = [np.square(r * S - H[:, :k] @ H[:, :k].T).sum() for k in range(r + 1)]
    assert (np.diff(distance) < 0).all()


@pytest.mark.parametrize("bad", [{"n_steps": -1}, {"whiten": "no"}])
def test_rejects_bad_parameters(bad, blobs):
    with pytest.raises(ValueError, match=next(iter(bad))):
        KSH(n_anchors=60, **bad).fit(*blobs)
