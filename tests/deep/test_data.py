"""Labels of every form, and the similarities made of them."""

import numpy as np
import pandas as pd
import pytest
import torch

from dish.deep.data import graded_labels, labels_of, one_hot, read_labels
from dish.similarity import LowRank, from_labels
from helpers.deep import fit_data

GRADED = np.where(np.eye(3)[np.arange(30) % 3] == 1, 0.8, 0.1)


def read(y, n=30, graded=False, similarity=False):
    return read_labels(y, n, "ADSH", graded, similarity)


def test_classes_become_indices():
    S, labels = read(np.array(["b", "a", "c"] * 10))
    assert labels.tolist() == [1, 0, 2] * 10
    assert S.n_groups == 3


def test_label_sets_are_read_back_from_the_similarity():
    Y = np.random.default_rng(0).integers(2, size=(30, 4))
    for kind in ("count", "share_one", "jaccard"):
        np.testing.assert_array_equal(labels_of(from_labels(Y, multilabel=kind)), Y)
    np.testing.assert_array_equal(read(Y)[1], Y)


def test_a_similarity_without_labels():
    S = LowRank(np.ones((30, 1)), np.ones((30, 1)))
    assert labels_of(S) is None
    assert read(S, similarity=True) == (S, None)
    with pytest.raises(ValueError, match="ADSH learns from labels, not from a similarity; use DISHD"):
        read(S)
    with pytest.raises(ValueError, match="the similarity has 30 rows, but X has 31"):
        read(S, 31, similarity=True)


def test_graded_labels_keep_their_values():
    Y = GRADED.copy()
    Y[::4, 0] = np.nan
    S, labels = read(Y, graded=True)
    np.testing.assert_array_equal(labels, Y.astype(np.float32))
    np.testing.assert_array_equal(labels_of(S), np.nan_to_num(Y) >= 0.5)
    with pytest.raises(ValueError, match="ADSH learns from labels of 0 and 1; use DeepDISH"):
        read(Y)


@pytest.mark.parametrize("kind", [list, pd.DataFrame, torch.tensor])
def test_graded_labels_may_be_lists_tables_or_tensors(kind):
    np.testing.assert_array_equal(graded_labels(kind(GRADED.tolist())), GRADED.astype(np.float32))


def test_labels_of_0_and_1_are_not_graded():
    assert graded_labels(np.eye(3)) is None
    assert graded_labels(np.arange(3)) is None


def test_labels_beyond_0_to_1_are_refused():
    with pytest.raises(ValueError, match=r"y: labels \(n, l\) must be from 0 to 1.*from 0.2 to 1.6"):
        graded_labels(2 * GRADED)


def test_a_label_that_is_missing_everywhere_is_refused():
    Y = GRADED.copy()
    Y[:, 1] = np.nan
    with pytest.raises(ValueError, match=r"label 1 is NaN in all rows \(as are 1 of 3 labels\)"):
        graded_labels(Y)


def test_classification_losses():
    X, logits = torch.zeros(4, 2), torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    rows = torch.tensor([1, 2])
    data = fit_data(X, np.array([0, 1, 0, 1]))
    expected = -torch.log_softmax(logits, 1)[[0, 1], [1, 0]].mean()
    assert float(data.classification_loss(logits, rows)) == pytest.approx(float(expected))
    data = fit_data(X, np.array([[1, 0], [0, 1], [1, 1], [0, 0]]))
    p = torch.sigmoid(logits)
    expected = -(torch.log(1 - p[0, 0]) + torch.log(p[0, 1]) + torch.log(p[1, 0]) + torch.log(p[1, 1])) / 4
    assert float(data.classification_loss(logits, rows)) == pytest.approx(float(expected))


def test_one_hot_of_classes_and_of_labels():
    assert one_hot(torch.tensor([1, 0]), 2).tolist() == [[0, 1], [1, 0]]
    Y = torch.tensor([[1.0, 0.5]])
    assert one_hot(Y, 2) is Y
