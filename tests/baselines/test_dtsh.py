"""DTSH: its loss against a loop over triplets, and retrieval."""

import itertools

import numpy as np
import pytest

from dish.baselines.dtsh import DTSH, triplet_likelihood
from helpers.deep import batch, patches, score, tiny


@pytest.mark.parametrize("multilabel", [False, True])
def test_the_loss_equals_a_loop_over_triplets(multilabel):
    F, share, target = batch(multilabel)
    f = F.numpy()
    terms = [
        -np.log(1 / (1 + np.exp(-(f[i] @ f[j] / 2 - f[i] @ f[k] / 2 - 0.25 * 3))))
        for i, j, k in itertools.permutations(range(7), 3)
        if share[i, j] and not share[i, k]
    ]
    quantisation = 0.1 * ((f - np.sign(f)) ** 2).mean()
    assert float(triplet_likelihood(F, target)) == pytest.approx(np.mean(terms) + quantisation)


def test_codes_retrieve():
    (X, y), (Xq, yq) = patches(400, 0), patches(100, 1)
    assert score(tiny(DTSH, epochs=8).fit(X, y), X, y, Xq, yq) > 0.8
