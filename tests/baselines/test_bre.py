"""BRE: its steps against brute force."""

import numpy as np
import pytest

from dish import codes
from dish.baselines import bre
from dish.baselines.bre import BRE


def cost(bits, i, j, weight):
    return weight[bits[i] != bits[j]].sum()


@pytest.mark.parametrize("seed", range(5))
def test_step_is_the_best_of_all_thresholds(seed):
    rng = np.random.default_rng(seed)
    n = 25
    i, j = np.triu_indices(n, 1)
    weight, k, f = rng.standard_normal(len(i)), rng.standard_normal(n), rng.standard_normal(n)
    k[3] = 0  # a row that this weight cannot move
    start, neighbour, pair = bre._adjacency(i, j, n)
    step = bre.best_step(k, f, start, neighbour, weight[pair])
    crossing = np.sort(-f[k != 0] / k[k != 0])
    places = np.concatenate([[crossing[0] - 1], (crossing[:-1] + crossing[1:]) / 2, [crossing[-1] + 1]])
    every = [cost(f + z * k >= 0, i, j, weight) for z in places]
    assert cost(f + step * k >= 0, i, j, weight) == pytest.approx(min(every))


def test_objective_never_rises_and_is_the_error_over_pairs(groups):
    X, y, _, _ = groups
    hasher = BRE(n_bits=12, n_anchors=60, pairs_per_row=400).fit(X, y)  # every pair
    assert (np.diff(hasher.objective_) <= 0).all()
    assert hasher.objective_[-1] < hasher.objective_[0]
    H = hasher.transform(X)
    error = ((y[:, None] != y[None, :]) - codes.hamming(H, H) / 12) ** 2
    assert hasher.objective_[-1] == pytest.approx(error[~np.eye(400, dtype=bool)].mean(), rel=1e-3)


@pytest.mark.parametrize("bad", [{"n_iter": 0}, {"anchors_per_bit": 0}, {"pairs_per_row": 0}])
def test_rejects_bad_parameters(bad, blobs):
    with pytest.raises(ValueError, match=next(iter(bad))):
        BRE(n_anchors=60, **bad).fit(*blobs)
