"""GreedyHash: the gradient of its sign, and retrieval."""

import pytest
import torch

from dish.baselines.greedyhash import GreedyHash, sign
from helpers.deep import patches, score, tiny


def test_the_sign_has_gradient_one():
    F = torch.tensor([-2.0, 0.0, 0.3], requires_grad=True)
    h = sign(F)
    assert h.tolist() == pytest.approx([-1, 1, 1])
    h.sum().backward()
    assert F.grad.tolist() == [1, 1, 1]


def test_codes_retrieve():
    (X, y), (Xq, yq) = patches(200, 0), patches(100, 1)
    assert score(tiny(GreedyHash, epochs=8).fit(X, y), X, y, Xq, yq) > 0.8
