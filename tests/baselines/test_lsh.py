"""LSH: signs of random projections."""

import numpy as np
import pytest

from dish.baselines.lsh import LSH


def test_share_of_differing_bits_is_the_angle_over_pi():
    """P(h(x) ≠ h(x')) = angle / π (Charikar 2002), for rows as seen from their mean."""
    X = np.array([[1.0, 0], [0, 1], [-1, 0], [0, -1]])
    bits = np.unpackbits(LSH(n_bits=20_000).fit(X).transform(X), axis=1)
    assert (bits[0] != bits[1]).mean() == pytest.approx(0.5, abs=0.02)
    assert (bits[0] != bits[2]).all()


def test_F_is_a_normal_projection_of_centred_rows(blobs):
    X, _ = blobs
    hasher = LSH(n_bits=500).fit(X)
    np.testing.assert_allclose(hasher.decision_function(X), (X - X.mean(0)) @ hasher.W_, atol=1e-4)
    assert hasher.W_.std() == pytest.approx(1, abs=0.05)
