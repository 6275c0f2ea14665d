"""OrthoHash on small images."""

import numpy as np
import torch

from dish.baselines.orthohash import OrthoHash
from helpers.deep import patches, score, tiny


def test_codes_retrieve():
    (X, y), (Xq, yq) = patches(200, 0), patches(100, 1)
    assert score(tiny(OrthoHash, epochs=8).fit(X, y), X, y, Xq, yq) > 0.8


def test_outputs_have_batch_norm():
    X, y = patches(100, 0)
    hasher = tiny(OrthoHash, epochs=1).fit(X, y)
    model = hasher.model_.train()
    _, f = model(model.prepare(torch.from_numpy(X)))
    np.testing.assert_allclose(f.detach().mean(0), 0, atol=1e-4)
