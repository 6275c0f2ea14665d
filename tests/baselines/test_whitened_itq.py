"""WhitenedITQ against explicit within-class covariances."""

import numpy as np
import pytest

from dish import metrics
from dish.baselines.pca_itq import PCAITQ
from dish.baselines.whitened_itq import WhitenedITQ
from helpers.rivals import label_data


def test_rows_are_whitened_within_their_classes():
    """With W of full rank, Wᵀ(S_w + ρI)W = I, S_w from a loop over classes."""
    X, y, _ = label_data("classes")
    d = X.shape[1]
    hasher = WhitenedITQ(n_bits=d, shrinkage=0.5).fit(X, y)
    S_w = sum(np.cov(X[y == c].T, bias=True) * (y == c).mean() for c in np.unique(y))
    S_w += 0.5 * np.trace(S_w) / d * np.eye(d)
    W = hasher.hash_function_.W
    np.testing.assert_allclose(W.T @ S_w @ W, np.eye(d), atol=1e-6)
    assert (np.diff(hasher.objective_) <= 1e-9 * hasher.objective_[0]).all()


def test_improves_the_ranking_of_unseen_classes():
    """Noise in 12 shared directions hides the classes; only half of the classes are in the training set."""
    rng = np.random.default_rng(0)
    centres = np.zeros((20, 24))
    centres[:, :12] = rng.standard_normal((20, 12))
    y = np.repeat(np.arange(20), 60)
    X = centres[y] + rng.standard_normal((1200, 24)) * np.r_[np.full(12, 0.3), np.full(12, 2.0)]
    seen, query = y < 10, (y >= 10) & (np.arange(1200) % 6 == 0)
    base = (y >= 10) & ~query

    def found(hasher):
        hasher.fit(X[seen], y[seen])
        return metrics.mean_average_precision(
            hasher.transform(X[query]), y[query], hasher.transform(X[base]), y[base]
        )

    assert found(WhitenedITQ(16, shrinkage=0.05)) > found(PCAITQ(16)) + 0.2


@pytest.mark.parametrize("bad", [{"shrinkage": 0}, {"n_iter": 0}])
def test_rejects_bad_parameters(bad, blobs):
    with pytest.raises(ValueError, match=next(iter(bad))):
        WhitenedITQ(**bad).fit(*blobs)
