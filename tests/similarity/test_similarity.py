import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from dish import similarity
from dish.labels import distinct_sets, label_matrix
from dish.similarity import Classes, LabelCounts, LabelSets, LowRank, base, from_labels
from helpers.similarities import KINDS, RNG, Y


@pytest.mark.parametrize("name", KINDS)
def test_products_equal_the_dense_matrix(name):
    S, dense = KINDS[name]
    np.testing.assert_allclose(S.dense(), dense, atol=1e-12)
    b = RNG.standard_normal(12)
    group = S.row_group.long()
    sums = torch.zeros(S.n_groups, dtype=torch.float64).index_add_(0, group, torch.from_numpy(b))
    np.testing.assert_allclose(S.P(S.Rt(sums))[group], dense @ b, atol=1e-12)
    np.testing.assert_allclose(S.diag[group], np.diag(dense), atol=1e-12)


@pytest.mark.parametrize("name", [k for k in KINDS if k != "asymmetric"])
def test_squared_norm(name):
    S, dense = KINDS[name]
    assert S.squared_norm() == pytest.approx((dense**2).sum())


def test_squared_norm_of_an_asymmetric_product_is_that_of_the_product_itself():
    P, R = RNG.standard_normal((9, 2)), RNG.standard_normal((9, 2))
    assert LowRank(P, R).squared_norm() == pytest.approx(((P @ R.T) ** 2).sum())


@pytest.mark.parametrize("name", KINDS)
def test_project_is_the_sandwich(name):
    S, dense = KINDS[name]
    K = RNG.standard_normal((12, 5))
    blocks = [(slice(0, 7), torch.from_numpy(K[:7])), (slice(7, 12), torch.from_numpy(K[7:]))]
    PtK, RtK = S.project(iter(blocks))
    np.testing.assert_allclose(PtK.T @ RtK, K.T @ dense @ K, atol=1e-10)


def test_the_cubic_of_shared_labels_is_share_one_up_to_three():
    """The design notes' identity: t³/3 − 2t² + 11t/3 − 1 is −1, 1, 1, 1 for t = 0 … 3 shared labels."""
    Y3 = (RNG.random((20, 3)) < 0.5).astype(float)
    t = Y3 @ Y3.T
    np.testing.assert_allclose(
        from_labels(Y3, multilabel="share_one").dense(), t**3 / 3 - 2 * t**2 + 11 * t / 3 - 1, atol=1e-9
    )


def test_a_set_table_of_ones_own():
    S = LabelSets(sp.csr_array(Y), lambda shared, a, b: np.minimum(shared, 2.0))
    np.testing.assert_allclose(S.dense(), np.minimum(Y @ Y.T, 2))
    with pytest.raises(ValueError, match="symmetric"):
        LabelSets(sp.csr_array(Y), lambda shared, a, b: shared * a)


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
def test_labels_of_any_type(y):
    S = from_labels(y)
    assert isinstance(S, Classes)
    assert S.dense()[0, 2] == 1
    assert S.dense()[0, 1] == -1


def test_one_hot_labels_mean_the_same_as_classes():
    y = RNG.integers(0, 3, 12)
    onehot = from_labels(np.eye(3)[y])
    assert isinstance(onehot, LabelCounts)
    np.testing.assert_array_equal(onehot.dense(), from_labels(y).dense())


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.zeros(5), "1 class"),
        (np.array([]), "empty"),
        (np.array([1.0, np.nan]), "NaN"),
        (np.array([0.5, 1.0]), "continuous"),
        (np.array([None, "a"], dtype=object), "None"),
        (np.array([1, "1"], dtype=object), "mixes kinds"),
        (np.full((4, 2), 3), "0 and 1"),
        (np.ones((4, 2)), "same labels"),
        (np.zeros((2, 2, 2)), "shape"),
    ],
)
def test_bad_labels_are_named(y, message):
    with pytest.raises(ValueError, match=message) as error:
        from_labels(y)
    assert "y" in str(error.value)


def test_bad_options_are_named():
    with pytest.raises(ValueError, match="similar_weight"):
        from_labels([0, 1], similar_weight=1.0)
    with pytest.raises(ValueError, match="multilabel"):
        from_labels([0, 1], multilabel="cosine")
    with pytest.raises(ValueError, match="5 rows but y has 2"):
        from_labels([0, 1], n_rows=5)


@pytest.mark.parametrize(
    ("P", "R", "message"),
    [
        (np.ones((3, 2)), np.ones((4, 2)), "same shape"),
        (np.ones(3), np.ones(3), "matrix"),
        (np.array([[np.inf]]), np.ones((1, 1)), "infinity"),
    ],
)
def test_bad_factors_are_named(P, R, message):
    with pytest.raises(ValueError, match=message):
        LowRank(P, R)


def test_nystroem_with_every_row_as_landmark_is_the_kernel():
    X = RNG.standard_normal((15, 3))
    S = similarity.nystroem(X, n_landmarks=15, gamma=0.3).dense()
    squared = ((X[:, None] - X[None]) ** 2).sum(2)
    np.testing.assert_allclose(S, 2 * np.exp(-0.3 * squared) - 1, atol=1e-6)


def test_anchor_graph_links_rows_of_one_cluster(blobs):
    X, y = blobs
    S = similarity.anchor_graph(X, n_anchors=12).dense()
    same = y[:, None] == y[None]
    np.testing.assert_allclose(S, S.T, atol=1e-10)
    np.testing.assert_allclose(S.sum(1), 0, atol=1e-9)  # rows of A sum to one, S = nA − 1
    assert (S[~same] == -1).mean() > 0.99  # rows of two clusters share no anchor
    assert S[same].mean() > 1.5  # n A averages 3 within one of three clusters
    weighted = similarity.anchor_graph(X, n_anchors=12, similar_weight=2.0).dense()
    assert np.diag(weighted).mean() == pytest.approx(1.0)  # w·1 − 1


@pytest.mark.parametrize("name", KINDS)
def test_products_with_a_matrix_and_parts_of_the_rows(name):
    S, dense = KINDS[name]
    Z = torch.from_numpy(RNG.standard_normal((12, 3)))
    np.testing.assert_allclose(S.times(Z), dense @ Z.numpy(), atol=1e-12)
    picked = torch.tensor([1, 4, 5, 9])
    np.testing.assert_allclose(S.rows(picked).dense(), dense[np.ix_(picked, picked)], atol=1e-12)


@pytest.mark.parametrize("n_labels", [1, 7, 8, 40, 64, 65, 256, 300])
def test_distinct_sets_are_the_sorted_distinct_rows(n_labels):
    rng = np.random.default_rng(n_labels)
    Y = (rng.random((400, n_labels)) < 2 / n_labels).astype(float)
    Y[5], Y[6] = 0, 1
    sets, place = distinct_sets(label_matrix(Y))
    expected, inverse = np.unique(Y, axis=0, return_inverse=True)
    np.testing.assert_array_equal(sets.toarray(), expected)
    np.testing.assert_array_equal(place, inverse.ravel())


def test_rows_of_a_csr_matrix_may_hold_zeros_and_any_order_but_no_twos():
    untidy = sp.csr_array(([1.0, 1.0, 0.0, 1.0], [3, 0, 1, 2], [0, 3, 4]), shape=(2, 4))
    before = untidy.copy()
    np.testing.assert_array_equal(from_labels(untidy).dense(), from_labels(untidy.toarray()).dense())
    np.testing.assert_array_equal(untidy.indices, before.indices)  # the caller's stays as it was
    with pytest.raises(ValueError, match="0 and 1"):
        from_labels(sp.csr_array(([1.0, 1.0, 1.0], [1, 1, 0], [0, 2, 3]), shape=(2, 2)))  # one label twice


def test_many_sparse_label_sets_stay_sparse():
    """200,000 rows with about 10 of 1,000 labels: 1.6 GB as a matrix, 8 GB as pairs of sets."""
    n, n_labels = 200_000, 1000
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
    assert peak < 300e6
    assert S.product_size() == Y.nnz
    part = from_labels(Y[:300])
    dense = from_labels(Y[:300].toarray())
    assert part.squared_norm() == dense.squared_norm() == pytest.approx((dense.dense() ** 2).sum())


@pytest.mark.parametrize("name", KINDS)
def test_moving_a_similarity_leaves_the_callers_where_it_is(name):
    S, dense = KINDS[name]
    before = dict(vars(S))
    moved = S.to(torch.device("meta"))
    assert all(vars(S)[attribute] is value for attribute, value in before.items())
    assert moved.row_group.device.type == "meta"
    np.testing.assert_allclose(S.dense(), dense, atol=1e-12)


def test_sums_of_runs_are_those_of_a_sparse_product():
    rng = np.random.default_rng(0)
    A = sp.csr_array((rng.random((40, 9)) < 0.2).astype(float))
    z = torch.from_numpy(rng.integers(-5, 6, 9).astype(float))
    found = base.sums_of_runs(z[torch.from_numpy(A.indices).long()], torch.from_numpy(A.indptr))
    np.testing.assert_array_equal(found, A @ z.numpy())


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


def test_a_similarity_without_labels_has_none():
    assert LowRank(np.eye(3), np.eye(3)).labels is None
