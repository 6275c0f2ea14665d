"""AGH against a direct reading of its paper."""

import numpy as np
import pytest

from dish import codes
from dish.baselines.agh import AGH
from dish.baselines.lsh import LSH
from helpers.rivals import map_of


def test_thresholds_minimise_the_two_layer_objective(graph):
    """Scans b⁺, with b⁻ from 1ᵀȳ = 0, and evaluates ȳᵀLȳ with the explicit L = I − A."""
    _, hasher, Z, A = graph
    Y = Z @ hasher.W_
    for y, upper, lower in zip(Y.T, hasher.upper_, hasher.lower_, strict=False):
        above = y >= 0

        def objective(b, y=y, above=above):
            b_below = (b * above.sum() - np.abs(y).sum()) / (~above).sum()  # 1ᵀȳ = 0
            y_bar = np.where(above, y - b, b_below - y)
            return y_bar @ y_bar - y_bar @ A @ y_bar, b_below

        value, b_below = objective(upper)
        assert b_below == pytest.approx(lower)
        assert value <= min(objective(b)[0] for b in np.linspace(upper - 3, upper + 3, 4001)) + 1e-12
    assert len(hasher.upper_) == 3  # 7 bits: the fourth eigenvector is cut once


def test_bits_are_the_signs_of_both_layers(graph):
    X, hasher, Z, _ = graph
    Y = Z @ hasher.W_
    bits = codes.unpack(hasher.transform(X), 7)
    np.testing.assert_array_equal(bits[:, :4], np.where(Y >= 0, 1, -1))
    for k in range(3):
        second = [np.sign(v - hasher.upper_[k]) if v >= 0 else np.sign(hasher.lower_[k] - v) for v in Y[:, k]]
        np.testing.assert_array_equal(bits[:, 4 + k], second)


def test_rejects_more_bits_than_twice_the_eigenvectors(graph):
    with pytest.raises(ValueError, match=r"n_bits=40 needs 20 eigenvectors.*n_bits can be at most 22"):
        AGH(n_bits=40, n_anchors=12).fit(graph[0])


def test_ranks_better_than_lsh(digits):
    found = map_of(AGH(n_bits=16, n_anchors=100).fit(digits[0]), *digits)
    assert found > map_of(LSH(n_bits=16).fit(digits[0]), *digits) + 0.2
