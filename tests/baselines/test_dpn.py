"""DPN on small images."""

from dish.baselines.dpn import DPN
from helpers.deep import patches, score, tiny


def test_codes_retrieve():
    (X, y), (Xq, yq) = patches(200, 0), patches(100, 1)
    assert score(tiny(DPN, epochs=8).fit(X, y), X, y, Xq, yq) > 0.8
