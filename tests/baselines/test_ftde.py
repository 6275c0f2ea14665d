"""FTDE: triplets, codes that satisfy them, and learning in both stages."""

import numpy as np
import pytest

from dish.baselines.ftde import FTDE, infer_codes, sample_triplets
from dish.similarity import from_labels
from helpers.deep import patches, score, tiny


def test_the_loss_never_rises_and_equals_a_count():
    y = np.arange(40) % 4
    triplets = sample_triplets(from_labels(y), 5, np.random.RandomState(0))
    i, j, k = triplets.T
    assert (y[i] == y[j]).all()
    assert (i != j).all()
    assert (y[i] != y[k]).all()
    H, losses = infer_codes(triplets, 40, 8, np.random.RandomState(1), 2)
    assert set(np.unique(H)) == {-1, 1}
    assert (np.diff(losses) <= 1e-12).all()
    assert losses[-1] < losses[0]
    count = np.mean([max(0, 4 - (H[a] != H[c]).sum() + (H[a] != H[b]).sum()) for a, b, c in triplets])
    assert losses[-1] == pytest.approx(count)


def test_labels_without_triplets_are_refused():
    with pytest.raises(ValueError, match="no triplets"):
        sample_triplets(from_labels(np.arange(5)), 3, np.random.RandomState(0))


def test_codes_retrieve():
    (X, y), (Xq, yq) = patches(200, 0), patches(100, 1)
    assert score(tiny(FTDE, epochs=12).fit(X, y), X, y, Xq, yq) > 0.8


def test_codes_are_kept_in_a_checkpoint(tmp_path):
    X, y = patches(60, 0)
    first, second = (tiny(FTDE, epochs=1, checkpoint=tmp_path / "c").fit(X, y) for _ in range(2))
    assert "round 0" not in second.timings_
    np.testing.assert_array_equal(first.codes_, second.codes_)
    np.testing.assert_array_equal(first.transform(X), second.transform(X))
