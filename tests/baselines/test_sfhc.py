"""SFHC: its loss against a loop over triplets, and retrieval."""

import itertools

import numpy as np
import pytest

from dish.baselines.sfhc import SFHC, triplet_loss
from helpers.deep import batch, score


@pytest.mark.parametrize("multilabel", [False, True])
def test_the_loss_equals_a_loop_over_triplets(multilabel):
    F, share, target = batch(multilabel)
    z = 1 / (1 + np.exp(-F.numpy()))
    terms = [
        max(0, 6 / 4 - ((z[i] - z[k]) ** 2).sum() + ((z[i] - z[j]) ** 2).sum())
        for i, j, k in itertools.permutations(range(7), 3)
        if share[i, j] and not share[i, k]
    ]
    assert len(terms) > 10
    assert float(triplet_loss(F, target)) == pytest.approx(np.mean(terms))


def test_codes_retrieve(digits):
    """On digits: on the small images all bits may come to encode the colour (MAP 0.51)."""
    X, y, Xq, yq = digits
    hasher = SFHC(24, epochs=8, device="cpu", random_state=1).fit(X, y)
    assert score(hasher, X, y, Xq, yq) > 0.8
