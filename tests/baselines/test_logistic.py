"""The logistic regression that LogisticClass and LogisticLSH share."""

import numpy as np
import pytest

from dish import DISH
from dish.baselines.logistic_lsh import LogisticLSH


@pytest.mark.parametrize("kernel", ["auto", "rbf"])
def test_features_and_accuracy_equal_those_of_dish(digits, kernel):
    """The same seed gives the same anchors and γ, and both predict the classes of new rows equally well."""
    X, y, Xq, yq = digits
    rival, ours = (kind(8, n_anchors=100, kernel=kernel).fit(X[:600], y[:600]) for kind in (LogisticLSH, DISH))
    for name in ("anchors_", "mean_", "gamma_"):
        np.testing.assert_array_equal(getattr(rival, name), getattr(ours, name))
    right = [(hasher.encoder_.probabilities(Xq).argmax(1) == yq).mean() for hasher in (rival, ours)]
    assert right[0] == pytest.approx(right[1], abs=0.02)
