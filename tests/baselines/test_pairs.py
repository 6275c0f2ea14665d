"""Sampled pairs and columns of S against the labels."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from dish.baselines import _pairs as pairs
from dish.similarity import from_labels


def test_columns_and_pairs_agree_with_the_labels():
    Y = (np.random.default_rng(3).random((30, 5)) < 0.3).astype(float)
    share = Y @ Y.T > 0
    S = from_labels(sp.csr_array(Y))
    columns = torch.tensor([4, 0, 17])
    table = pairs.similar_columns(S, columns)[S.row_group.long()].numpy()
    np.testing.assert_array_equal(table, share[:, [4, 0, 17]])
    i, j, similar = pairs.sample_pairs(S, 3, np.random.RandomState(0))
    np.testing.assert_array_equal(similar, share[i, j])
    assert (i != j).all()
    assert len(set(zip(i, j, strict=True))) == len(i)
    others = share & ~np.eye(30, dtype=bool)
    np.testing.assert_array_equal(np.bincount(i[similar], minlength=30), np.minimum(3, others.sum(1)))
    np.testing.assert_array_equal(np.bincount(i[~similar], minlength=30), np.minimum(3, (~share).sum(1)))


def test_rejects_labels_without_similar_pairs():
    with pytest.raises(ValueError, match="dissimilar"):
        pairs.sample_pairs(from_labels(np.arange(20)), 3, np.random.RandomState(0))
