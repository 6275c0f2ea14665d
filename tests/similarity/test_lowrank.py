"""LowRank: similarities from your own factors."""

import numpy as np
import pytest

from dish.similarity import LowRank
from helpers.similarities import RNG


def test_squared_norm_of_an_asymmetric_product_is_that_of_P_Rt():
    P, R = RNG.standard_normal((9, 2)), RNG.standard_normal((9, 2))
    assert LowRank(P, R).squared_norm() == pytest.approx(((P @ R.T) ** 2).sum())


def test_has_no_labels():
    assert LowRank(np.eye(3), np.eye(3)).labels is None


@pytest.mark.parametrize(
    ("P", "R", "message"),
    [
        (np.ones((3, 2)), np.ones((4, 2)), "same shape"),
        (np.ones(3), np.ones(3), "matrix"),
        (np.array([[np.inf]]), np.ones((1, 1)), "infinity"),
    ],
)
def test_rejects_bad_factors(P, R, message):
    with pytest.raises(ValueError, match=message):
        LowRank(P, R)
