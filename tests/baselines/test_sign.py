"""CentredSign: signs of the features themselves."""

import numpy as np

from dish.baselines.sign import CentredSign


def test_features_come_by_falling_variance_and_repeat():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 3)) * [1, 5, 2] + 7
    F = CentredSign(n_bits=5).fit(X).decision_function(X)
    np.testing.assert_allclose(F, (X - X.mean(0))[:, [1, 2, 0, 1, 2]], rtol=1e-5)
