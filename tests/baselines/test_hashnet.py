"""HashNet: its loss against a loop over pairs, and retrieval."""

import itertools

import numpy as np
import pytest

from dish.baselines.hashnet import HashNet, weighted_pair_loss
from helpers.deep import batch, patches, score, tiny


@pytest.mark.parametrize("multilabel", [False, True])
def test_the_loss_equals_a_loop_over_pairs(multilabel):
    F, share, target = batch(multilabel)
    z = np.tanh(3 * F.numpy())
    parts = {True: [], False: []}
    for i, j in itertools.permutations(range(7), 2):
        p = 1 / (1 + np.exp(-10 * z[i] @ z[j] / 6))
        parts[bool(share[i, j])].append(-np.log(p if share[i, j] else 1 - p))
    assert float(weighted_pair_loss(F, target, 3.0)) == pytest.approx(np.mean(parts[True]) + np.mean(parts[False]))


def test_codes_retrieve():
    (X, y), (Xq, yq) = patches(200, 0), patches(100, 1)
    assert score(tiny(HashNet, epochs=8).fit(X, y), X, y, Xq, yq) > 0.8
