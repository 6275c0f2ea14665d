"""Similarities from labels of every kind."""

import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from dish.similarity import Classes, LabelCounts, LabelSets, from_labels
from helpers.similarities import RNG, Y


@pytest.mark.parametrize(
    "y",
    [
        np.array(["cat", "dog", "cat", "eel"]),
        np.array([3, 9, 3, 1]),
        np.array([3.0, 9.0, 3.0, 1.0]),
        np.array([True, False, True, True]),
        np.array(["cat", "dog", "cat", "eel"], dtype=object),
        torch.tensor([3, 9, 3, 1]),
    ],
    ids=str,
)
def test_labels_of_any_type_are_classes(y):
    S = from_labels(y)
    assert isinstance(S, Classes)
    assert S.dense()[0, 2] == 1
    assert S.dense()[0, 1] == -1


def test_one_hot_labels_give_the_same_similarity_as_classes():
    y = RNG.integers(0, 3, 12)
    onehot = from_labels(np.eye(3)[y])
    assert isinstance(onehot, LabelCounts)
    np.testing.assert_array_equal(onehot.dense(), from_labels(y).dense())


@pytest.mark.parametrize(
    ("y", "labels"),
    [
        ([3, 9, 3, -2], [-2, 3, 9]),
        (["b", "a", "b"], ["a", "b"]),
        ([True, False], [False, True]),
        (np.eye(3, 5), [0, 1, 2, 3, 4]),
        ([["red", "round"], [], ["blue"]], ["blue", "red", "round"]),
    ],
    ids=str,
)
def test_labels_are_the_classes_or_the_label_columns(y, labels):
    S = from_labels(y)
    assert S.labels.tolist() == labels
    assert S.rows(torch.tensor([0])).labels is S.labels
    if not isinstance(S, Classes):
        assert from_labels(y, multilabel="jaccard").labels.tolist() == labels


def test_share_one_equals_a_cubic_of_the_number_of_shared_labels():
    """t³/3 − 2t² + 11t/3 − 1 is −1, 1, 1, 1 for t = 0 … 3 shared labels."""
    Y3 = (RNG.random((20, 3)) < 0.5).astype(float)
    t = Y3 @ Y3.T
    np.testing.assert_allclose(
        from_labels(Y3, multilabel="share_one").dense(), t**3 / 3 - 2 * t**2 + 11 * t / 3 - 1, atol=1e-9
    )


def test_label_sets_take_a_function_as_table():
    S = LabelSets(sp.csr_array(Y), lambda shared, a, b: np.minimum(shared, 2.0))
    np.testing.assert_allclose(S.dense(), np.minimum(Y @ Y.T, 2))
    with pytest.raises(ValueError, match="symmetric"):
        LabelSets(sp.csr_array(Y), lambda shared, a, b: shared * a)


@pytest.mark.parametrize(("n_classes", "w"), [(10, 2.0), (36, 2.0), (100, 10 / 3), (900, 10.0), (1000, 10.0)])
def test_automatic_weight_follows_the_number_of_classes(n_classes, w):
    S = from_labels(np.repeat(np.arange(n_classes), 2), similar_weight="auto")
    assert S.w == pytest.approx(w, rel=1e-12)
    np.testing.assert_allclose(S.diag, w - 1, rtol=1e-12)


def test_automatic_weight_of_unequal_classes_uses_the_effective_number():
    y = np.repeat(np.arange(501), [10_000] + [1] * 500)
    assert from_labels(y, similar_weight="auto").w == 2.0
    sizes = np.arange(1, 201)
    S = from_labels(np.repeat(np.arange(200), sizes), similar_weight="auto")
    assert S.w == pytest.approx(np.sqrt(sizes.sum() ** 2 / (sizes**2).sum()) / 3, rel=1e-12)


@pytest.mark.parametrize("multilabel", ["count", "share_one", "jaccard"])
def test_automatic_weight_of_multilabel_data_is_two(multilabel):
    Y = np.eye(1000, dtype=int)
    found = from_labels(Y, similar_weight="auto", multilabel=multilabel)
    np.testing.assert_array_equal(found.dense(), from_labels(Y, similar_weight=2, multilabel=multilabel).dense())


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.zeros(5), "1 class"),
        (np.array([]), "empty"),
        (np.array([1.0, np.nan]), "NaN"),
        (np.array([0.5, 1.0]), "continuous"),
        (np.array([None, "a"], dtype=object), "None"),
        (np.array([1, "1"], dtype=object), "mixes types"),
        (np.full((4, 2), 3), "0 and 1"),
        (np.ones((4, 2)), "same labels"),
        (np.zeros((2, 2, 2)), "shape"),
    ],
)
def test_rejects_bad_labels(y, message):
    with pytest.raises(ValueError, match=message) as error:
        from_labels(y)
    assert "y" in str(error.value)


def test_rejects_bad_options():
    with pytest.raises(ValueError, match="similar_weight"):
        from_labels([0, 1], similar_weight=1.0)
    with pytest.raises(ValueError, match="multilabel"):
        from_labels([0, 1], multilabel="cosine")
    with pytest.raises(ValueError, match="5 rows but y has 2"):
        from_labels([0, 1], n_rows=5)


def test_rejects_too_many_label_sets(monkeypatch):
    monkeypatch.setattr(LabelSets, "MAX_SETS", 3)
    with pytest.raises(ValueError, match=r"4 distinct label sets.*at most 3.*multilabel='count'"):
        from_labels(np.eye(4), multilabel="jaccard")


def test_csr_labels_may_hold_zeros_in_any_order_but_not_twos():
    untidy = sp.csr_array(([1.0, 1.0, 0.0, 1.0], [3, 0, 1, 2], [0, 3, 4]), shape=(2, 4))
    before = untidy.copy()
    np.testing.assert_array_equal(from_labels(untidy).dense(), from_labels(untidy.toarray()).dense())
    np.testing.assert_array_equal(untidy.indices, before.indices)  # the caller's matrix is unchanged
    with pytest.raises(ValueError, match="0 and 1"):
        from_labels(sp.csr_array(([1.0, 1.0, 1.0], [1, 1, 0], [0, 2, 3]), shape=(2, 2)))  # a label occurs twice


def test_many_label_sets_stay_sparse():
    """100,000 rows with about 10 of 1,000 labels: 0.8 GB as a dense matrix."""
    n, n_labels = 100_000, 1000
    rng = np.random.default_rng(0)
    Y = sp.csr_array(
        (np.ones(10 * n), rng.integers(0, n_labels, 10 * n), np.arange(0, 10 * n + 1, 10)), shape=(n, n_labels)
    )
    Y.sum_duplicates()
    Y.data[:] = 1
    tracemalloc.start()
    try:
        S = from_labels(Y)
        S.squared_norm()
        S.P(S.Rt(torch.ones(S.n_groups, dtype=torch.float64)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert S.n_groups == n
    assert peak < 150e6
    assert S.product_size() == Y.nnz
    part = from_labels(Y[:300])
    dense = from_labels(Y[:300].toarray())
    assert part.squared_norm() == dense.squared_norm() == pytest.approx((dense.dense() ** 2).sum())
