"""SH against enumeration and a box."""

import numpy as np
import pytest

from dish import codes
from dish.baselines import sh
from dish.baselines.sh import SH


def test_smallest_modes_equal_those_of_an_enumeration():
    side = np.array([7.0, 3.0, 2.9])
    omega, direction = sh.smallest_modes(side, 9)
    everything = sorted((k * np.pi / side[j], j) for j in range(3) for k in range(1, 30))
    np.testing.assert_allclose(omega, [w for w, _ in everything[:9]])
    np.testing.assert_array_equal(direction, [j for _, j in everything[:9]])


def test_bits_cut_a_box_along_its_longest_sides():
    """Uniform rows in a 4 × 3 × ½ box: halves of the two long sides, then quarters of them."""
    rng = np.random.default_rng(0)
    X = rng.random((6000, 3)) * [4, 3, 0.5]
    bits = codes.unpack(SH(n_bits=4).fit(X).transform(X), 4) > 0

    def same(bit, expected):
        share = (bit == expected).mean()
        return max(share, 1 - share)

    x, y = X[:, 0], X[:, 1]
    assert same(bits[:, 0], x < 2) > 0.97
    assert same(bits[:, 1], y < 1.5) > 0.97
    assert same(bits[:, 2], (x > 1) & (x < 3)) > 0.95  # cos(2πx/4)
    assert same(bits[:, 3], (y > 0.75) & (y < 2.25)) > 0.95


def test_eigenfunctions_are_one_at_the_corner_of_the_box(cloud):
    hasher = SH(n_bits=20).fit(cloud)
    V = (cloud - cloud.mean(0)) @ hasher.W_
    F = hasher.decision_function(cloud)
    for j, column in zip(hasher.direction_, F.T, strict=True):
        assert column[V[:, j].argmin()] == pytest.approx(1, abs=1e-6)
        assert abs(column[V[:, j].argmax()]) == pytest.approx(1, abs=1e-6)  # whole half-waves fit the side
