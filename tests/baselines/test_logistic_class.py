"""LogisticClass: the codeword of the most likely class."""

import numpy as np

from dish import metrics
from dish.baselines.logistic_class import LogisticClass


def test_code_is_the_codeword_of_the_most_likely_class(digits):
    X, y, Xq, yq = digits
    hasher = LogisticClass(n_bits=16, n_anchors=100).fit(X[:600], y[:600])
    p, C = hasher.encoder_.probabilities(Xq), hasher.hash_function_.V
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-5)
    np.testing.assert_array_equal(C @ C.T, 16 * np.eye(10))
    best = p.argmax(1)
    np.testing.assert_allclose(hasher.decision_function(Xq), p.max(1)[:, None] * C[best], atol=1e-6)
    assert (best == yq).mean() > 0.9
    distance = metrics.histograms(hasher.transform(Xq), yq, hasher.transform(X), y, 16).all_
    assert (distance[:, [0, 8]].sum(1) == len(X)).all()  # same class: 0 bits differ; other classes: 8 of 16
