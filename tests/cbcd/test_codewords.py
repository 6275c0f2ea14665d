"""Codewords of classes."""

import numpy as np
import pytest

from dish import codes
from dish.cbcd.codewords import class_codewords, distinct


@pytest.mark.parametrize(("l", "r"), [(2, 1), (12, 16), (200, 8), (256, 8), (300, 64), (3000, 13), (4096, 12)])
def test_codewords_are_distinct_and_the_objective_never_rises(l, r):  # noqa: E741
    packed, objective = class_codewords(l, r, np.random.RandomState(0))
    assert len(np.unique(packed, axis=0)) == l
    assert len(objective) >= 1
    assert (np.diff(objective) <= 0).all()


def test_more_classes_than_codes_share_some():
    packed, _ = class_codewords(9, 3, np.random.RandomState(0))
    assert len(np.unique(packed, axis=0)) == 8


@pytest.mark.parametrize(("l", "r"), [(10, 16), (20, 64), (200, 32), (200, 64), (1000, 64)])
def test_codewords_lie_further_apart_than_random_ones(l, r):  # noqa: E741
    def squares(C):
        dots = C @ C.T
        return (dots**2).sum() - l * r**2

    random = np.where(np.random.RandomState(1).random_sample((l, r)) < 0.5, -1.0, 1.0)
    learned = codes.unpack(class_codewords(l, r, np.random.RandomState(0))[0], r).astype(float)
    assert squares(learned) < squares(random)
    assert (learned.sum(0) == l % 2).all()


@pytest.mark.parametrize(
    ("l", "r", "least"), [(5000, 64, 10), (20_000, 16, 1), pytest.param(65_536, 16, 1, marks=pytest.mark.long)]
)
def test_codewords_of_very_many_classes_lie_as_far_apart_as_random_ones(l, r, least):  # noqa: E741
    packed, _ = class_codewords(l, r, np.random.RandomState(0))
    assert len(np.unique(packed, axis=0)) == l
    H = codes.unpack(packed, r).astype(np.float32)
    distance = (r - H[:200] @ H.T) / 2
    distance[np.arange(200), np.arange(200)] = r
    assert distance.min() >= least


@pytest.mark.parametrize("r", [16, 24])
def test_repeated_codewords_are_replaced_and_others_kept(r):
    packed = np.packbits(np.random.RandomState(0).rand(50, r) < 0.5, axis=1)
    packed[7] = packed[3]
    found = distinct(packed, r, np.random.RandomState(0))
    np.testing.assert_array_equal(np.delete(found, 7, 0), np.delete(packed, 7, 0))
    assert np.bitwise_count(found[7] ^ packed[7]).sum() == 1
