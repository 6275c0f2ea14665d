"""LogisticLSH: random projections of class probabilities."""

import numpy as np
import pytest

from dish.baselines.logistic_lsh import LogisticLSH


def test_F_is_a_random_projection_of_centred_probabilities(digits):
    X, y, Xq, _ = digits
    hasher = LogisticLSH(n_bits=16, n_anchors=100).fit(X[:600], y[:600])
    p, p_train = hasher.encoder_.probabilities(Xq), hasher.encoder_.probabilities(X[:600])
    G = hasher.hash_function_.V
    expected = (p - p_train.mean(0)) @ G
    np.testing.assert_allclose(hasher.decision_function(Xq), expected, atol=1e-4)
    assert np.abs(G.mean()) < 0.3
    assert G.std() == pytest.approx(1, abs=0.2)
