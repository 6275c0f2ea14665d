"""CNNBH on small images."""

from dish.baselines.cnnbh import CNNBH
from helpers.deep import patches, score, tiny


def test_codes_retrieve():
    (X, y), (Xq, yq) = patches(200, 0), patches(100, 1)
    assert score(tiny(CNNBH, epochs=12).fit(X, y), X, y, Xq, yq) > 0.8
