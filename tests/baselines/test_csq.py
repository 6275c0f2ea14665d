"""CSQ: its loss against the formula, and retrieval."""

import numpy as np
import pytest
import torch

from dish.baselines.csq import CSQ, central_loss
from helpers.deep import patches, score, tiny


def test_the_loss_is_the_cross_entropy_of_the_bits():
    F, c = torch.tensor([[0.3, -1.0]]), torch.tensor([[1.0, 1.0]])
    z = np.tanh([0.3, -1.0])
    expected = -np.log((1 + z) / 2).mean() + 1e-4 * ((np.abs(z) - 1) ** 2).mean()
    assert float(central_loss(F, c)) == pytest.approx(expected, rel=1e-5)


def test_codes_retrieve():
    (X, y), (Xq, yq) = patches(200, 0), patches(100, 1)
    assert score(tiny(CSQ, epochs=8).fit(X, y), X, y, Xq, yq) > 0.8
