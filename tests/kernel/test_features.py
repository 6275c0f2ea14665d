"""Anchors, and K in memory or on disk."""

import tempfile

import numpy as np
import pytest
import torch
from sklearn.metrics.pairwise import rbf_kernel

from dish import DISHK
from dish.errors import InputError
from dish.io.rows import RowSource
from dish.kernel import features
from dish.kernel.fit_data import prepare
from dish.kernel.typical_rows import RowSample, TypicalRows, find_typical_rows
from dish.similarity import from_labels

RNG = np.random.default_rng(5)
CPU = torch.device("cpu")


def groups(n=3000, d=6, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 4, n)
    return rng.standard_normal((n, d)) + 2 * rng.standard_normal((4, d))[y], y


def cubic(X, A):
    return (X @ A.T + 1) ** 3


def feature_map(X, kernel="rbf", m=9, gamma=0.3):
    rows = RowSource(X)
    sample = RowSample.of(rows, None, CPU)
    return features.make_feature_map(rows, sample, kernel, X[:m], m, gamma, None, np.random.RandomState(0), CPU)


def all_rows(X):
    return TypicalRows(torch.from_numpy(X).double().mean(0))


# --- The map ---


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rbf_features_are_those_of_scikit_learn(dtype):
    X = (RNG.standard_normal((30, 4)) + 1000).astype(dtype)  # far from the origin, where norms would cancel
    made = feature_map(X, m=7, gamma=0.7)
    exact = rbf_kernel(X.astype(np.float64), X[:7].astype(np.float64), gamma=0.7)
    np.testing.assert_allclose(made.raw(torch.from_numpy(X)), exact, atol=1e-5 if dtype == np.float32 else 1e-9)


@pytest.mark.parametrize("kernel", ["rbf", "linear", "rbf+linear", cubic])
def test_features_are_centred_and_do_not_depend_on_blocks(kernel, monkeypatch):
    X = RNG.standard_normal((100, 5))
    made, K = features.compute_features(feature_map(X, kernel), RowSource(X), CPU)
    np.testing.assert_allclose(K.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(made(torch.from_numpy(X)), K, atol=1e-12)
    monkeypatch.setattr(features, "rows_at_a_time", lambda *args: 7)
    by_blocks, K_by_blocks = features.compute_features(feature_map(X, kernel), RowSource(X), CPU)
    np.testing.assert_allclose(K_by_blocks, K, atol=1e-12)
    np.testing.assert_allclose(by_blocks.mean, made.mean, atol=1e-12)


def test_the_linear_kernel_has_no_anchors_and_does_not_change_X():
    X = RNG.standard_normal((20, 3))
    before = X.copy()
    made, K = features.compute_features(feature_map(X, "linear"), RowSource(X), CPU)
    assert made.anchors.shape == (0, 3)
    np.testing.assert_allclose(K, X - X.mean(0), atol=1e-14)
    np.testing.assert_array_equal(X, before)


def test_features_whose_sum_overflows_are_refused():
    X = np.full((10, 2), 1e308)
    with pytest.raises(InputError, match="X holds values whose kernel features overflow float64: scale X"):
        features.compute_features(feature_map(X, "linear"), RowSource(X), CPU)


# --- Anchors ---


def test_random_anchors_are_rows_and_the_seed_decides():
    X = RNG.standard_normal((50, 3))
    draws = [
        features.choose_anchors(RowSource(X), 10, "random", all_rows(X), np.random.RandomState(seed), CPU)
        for seed in (0, 0, 1)
    ]
    for A, outliers in draws:
        picked = [int(np.flatnonzero((a == X).all(1))[0]) for a in A.numpy()]
        assert (np.diff(picked) > 0).all()
        assert len(outliers) == 0
    assert torch.equal(draws[0][0], draws[1][0])
    assert not torch.equal(draws[0][0], draws[2][0])


def test_kmeans_anchors_are_centres_of_clusters():
    centres = np.array([[0.0, 0], [50, 0], [0, 50]])
    X = centres[np.arange(300) % 3] + RNG.standard_normal((300, 2))
    A, outliers = features.choose_anchors(RowSource(X), 3, "kmeans", all_rows(X), np.random.RandomState(0), CPU)
    assert len(outliers) == 0
    distances = np.linalg.norm(A.numpy()[:, None] - centres, axis=2)
    assert sorted(distances.argmin(1)) == [0, 1, 2]
    assert distances.min(1).max() < 1


def test_as_many_kmeans_anchors_as_rows_are_the_rows():
    X = RNG.standard_normal((6, 3))
    A, outliers = features.choose_anchors(RowSource(X), 9, "kmeans", all_rows(X), np.random.RandomState(0), CPU)
    np.testing.assert_array_equal(A, X)
    assert len(outliers) == 0


@pytest.mark.parametrize("how", ["random", "kmeans"])
def test_anchors_are_typical_rows(how):
    X, _ = groups(400)
    far = np.sort(RNG.choice(400, 100, replace=False))
    X[far] = 1e6 * RNG.standard_normal((100, 6))
    typical = find_typical_rows(RowSample.of(RowSource(X), None, CPU), "rbf", None)
    A, outliers = features.choose_anchors(RowSource(X), 80, how, typical, np.random.RandomState(0), CPU)
    assert A.shape == (80, 6)
    assert A.abs().max() < 1e3
    assert set(outliers) <= set(far)
    assert len(outliers)
    all_others, _ = features.choose_anchors(RowSource(X), 400, how, typical, np.random.RandomState(0), CPU)
    assert len(all_others) == 300  # no more rows are left


@pytest.mark.parametrize(
    "anchors", [np.zeros((5, 3)), np.zeros((0, 4)), np.zeros(4), np.full((5, 4), np.nan)], ids=str
)
def test_bad_anchors_are_refused(anchors):
    with pytest.raises(InputError, match=r"anchors must be finite, of shape \(m, 4\) as X has 4 features"):
        features.given_anchors(anchors, RowSource(np.zeros((10, 4))), CPU)


def test_more_anchors_than_rows_takes_all_rows_with_a_warning():
    X, y = groups(50)
    with pytest.warns(UserWarning, match=r"n_anchors=1000 is more than the 50 rows") as told:
        hasher = DISHK(n_bits=8).fit(X, y)
    np.testing.assert_array_equal(hasher.anchors_, X)
    assert told[0].filename == __file__  # the line that called fit


@pytest.mark.parametrize("scale", [1e19, 1e30])
def test_values_too_large_for_the_linear_kernel_are_refused(scale):
    X, y = groups(300)
    with pytest.raises(InputError, match="overflow"):
        DISHK(n_bits=4, kernel="linear").fit((X * scale).astype(np.float32), y)


def test_the_linear_kernel_takes_small_values():
    X, y = groups(300)
    codes = [DISHK(n_bits=4, kernel="linear").fit((X * s).astype(np.float32), y).codes_ for s in (1.0, 2.0**-40)]
    np.testing.assert_array_equal(*codes)


@pytest.mark.parametrize("kernel", ["rbf", "linear"])
@pytest.mark.parametrize("value", [0.1, 1.0])
def test_rows_that_are_all_equal_are_refused(kernel, value):
    with pytest.raises(InputError, match="do not vary: all rows are equal"):
        DISHK(n_bits=4, n_anchors=10, kernel=kernel).fit(np.full((30, 3), value), np.arange(30) % 2)


# --- K that does not fit in memory ---


@pytest.fixture
def rows():
    return groups(3000, 5)


def kernel_rows(X, kernel="rbf", on_disk=True, monkeypatch=None):
    """K of all rows with a budget of one byte, from a scratch file or recomputed."""
    if on_disk:
        monkeypatch.setattr(features.time, "perf_counter", iter([0.0, 9.0, 9.0, 9.1]).__next__)
    else:
        monkeypatch.setattr(features.time, "perf_counter", iter([0.0, 0.1, 0.1, 9.0]).__next__)
    return features.compute_features(feature_map(X, kernel), RowSource(X), CPU, budget=1)


@pytest.mark.parametrize("on_disk", [True, False])
@pytest.mark.parametrize("kernel", ["rbf", "linear", "rbf+linear", cubic])
def test_K_outside_of_memory_has_the_rows_of_K(rows, kernel, on_disk, monkeypatch):
    X, _ = rows
    made, K = features.compute_features(feature_map(X, kernel), RowSource(X), CPU)
    again, stored = kernel_rows(X, kernel, on_disk, monkeypatch)
    assert isinstance(stored, features.KernelRows)
    assert (stored.file is not None) == on_disk
    assert stored.shape == K.shape
    assert len(stored) == len(K)
    np.testing.assert_allclose(again.mean, made.mean, atol=1e-12)
    for size in (256, None):
        blocks = list(features.feature_blocks(stored, size))
        np.testing.assert_allclose(torch.cat([block for _, block in blocks]), K, atol=1e-12)
        assert [rows.start for rows, _ in blocks] == [rows.start for rows, _ in features.feature_blocks(K, size)]
    picked = torch.tensor([5, 1, 2999, 5])
    np.testing.assert_allclose(stored[picked], K[picked], atol=1e-12)
    W = torch.from_numpy(RNG.standard_normal((K.shape[1], 11)))
    np.testing.assert_array_equal(features.pack_F(stored, W), features.pack_F(K, W))


def test_K_is_recomputed_if_no_scratch_file_can_be_written(rows, monkeypatch):
    X, _ = rows

    def full(*args):
        raise OSError("no space left")

    monkeypatch.setattr(features, "scratch", full)
    with pytest.warns(UserWarning, match=f"cannot write a scratch file in {tempfile.gettempdir()} .*recomputed"):
        _, K = features.compute_features(feature_map(X), RowSource(X), CPU, budget=1)
    assert K.file is None


@pytest.mark.parametrize("loss", ["ridge", "hinge"])
@pytest.mark.parametrize("on_disk", [True, False])
def test_a_fit_outside_of_memory_gives_the_same_codes(rows, on_disk, loss, monkeypatch):
    X, y = rows
    hasher = DISHK(n_bits=12, n_anchors=40, loss=loss).fit(X, y)

    def choose(self):
        self.file = features.scratch(*self.shape, np.dtype(np.float64)) if on_disk else None

    monkeypatch.setattr(features.KernelRows, "choose_storage", choose)
    small = DISHK(n_bits=12, n_anchors=40, loss=loss, memory_budget=1).fit(X, y)
    np.testing.assert_array_equal(small.codes_, hasher.codes_)
    np.testing.assert_allclose(small.objective_, hasher.objective_, rtol=1e-9)


def test_K_stays_in_memory_if_the_budget_allows(rows):
    X, y = rows
    K_bytes = 3000 * 9 * 8
    for budget, kind in ((K_bytes, torch.Tensor), (K_bytes - 1, features.KernelRows), (None, torch.Tensor)):
        data = prepare(
            RowSource(X), from_labels(y), anchors=X[:9], gamma=0.3, rng=np.random.RandomState(0), device=CPU,
            budget=budget,
        )  # fmt: skip
        assert isinstance(data.K, kind)


def test_packed_signs_of_F():
    K, W = (torch.from_numpy(RNG.standard_normal(shape)) for shape in ((50, 7), (7, 13)))
    np.testing.assert_array_equal(features.pack_F(K, W), np.packbits((K @ W).numpy() >= 0, axis=1))
    F = torch.cat([F for _, F in features.F_blocks(K, W)])
    np.testing.assert_allclose(F, K @ W)


def test_bad_rows_are_found_while_features_are_computed(rows):
    X, y = rows
    X = X.copy()
    X[1234, 2] = np.inf
    with pytest.raises(InputError, match="NaN or infinity in row 1,234"):
        DISHK(n_bits=4, n_anchors=9).fit(iter([X[:1000], X[1000:]]), y)
