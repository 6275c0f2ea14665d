"""Anchors, γ, outliers, and K in memory or on disk."""

import tempfile
import warnings

import numpy as np
import pytest
import torch
from sklearn.metrics.pairwise import rbf_kernel

from dish import DISHK, metrics
from dish.errors import InputError
from dish.io.rows import RowSource
from dish.kernel import features
from dish.kernel.fit_data import prepare
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
    return features.make_feature_map(RowSource(X), kernel, X[:m], m, gamma, np.random.RandomState(0), CPU)


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
        features.choose_anchors(RowSource(X), 10, "random", np.random.RandomState(seed), CPU) for seed in (0, 0, 1)
    ]
    for A, picked in draws:
        np.testing.assert_array_equal(A, X[picked])
        assert (np.diff(picked) > 0).all()
    assert torch.equal(draws[0][0], draws[1][0])
    assert not torch.equal(draws[0][0], draws[2][0])


def test_kmeans_anchors_are_centres_of_clusters():
    centres = np.array([[0.0, 0], [50, 0], [0, 50]])
    X = centres[np.arange(300) % 3] + RNG.standard_normal((300, 2))
    A, picked = features.choose_anchors(RowSource(X), 3, "kmeans", np.random.RandomState(0), CPU)
    assert picked is None
    distances = np.linalg.norm(A.numpy()[:, None] - centres, axis=2)
    assert sorted(distances.argmin(1)) == [0, 1, 2]
    assert distances.min(1).max() < 1


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


# --- γ and outliers ---


def test_mean_squared_distance():
    X, A = RNG.standard_normal((50, 3)), RNG.standard_normal((20, 3)) + 2
    expected = ((X[:, None] - A[None]) ** 2).sum(2).mean()
    assert features.mean_squared_distance(RowSource(X), torch.from_numpy(A)) == pytest.approx(expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["normal", "lognormal", "sparse", "one_hot", "two_scales"])
def test_gamma_of_ordinary_rows_is_the_plain_mean_without_a_warning(kind, dtype):
    n = 2000
    X = {
        "normal": lambda: RNG.standard_normal((n, 10)),
        "lognormal": lambda: RNG.lognormal(0, 1, (n, 10)),
        "sparse": lambda: RNG.random((n, 50)) * (RNG.random((n, 50)) < 0.02),
        "one_hot": lambda: np.eye(8)[RNG.integers(0, 8, n)],
        "two_scales": lambda: RNG.standard_normal((n, 5)) * np.where(RNG.random((n, 1)) < 0.3, 20, 1),
    }[kind]().astype(dtype)
    A = X[::20]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gamma = features.choose_gamma(RowSource(X), torch.from_numpy(A))
    direct = ((X[:, None].astype(np.float64) - A[None]) ** 2).sum(2).mean()
    assert gamma == pytest.approx(1 / direct, rel=1e-7)
    assert float(f"{gamma:.9g}") == gamma


@pytest.mark.parametrize(("value", "dtype"), [(1e3, np.float64), (1e6, np.float32), (1e12, np.float32)])
@pytest.mark.parametrize("row", [7, 834])  # row 7 becomes an anchor
def test_an_outlier_is_named_and_does_no_harm(value, dtype, row):
    X, y = groups(1000)
    X = X.astype(dtype)
    bad = X.copy()
    bad[row] = value
    good = DISHK(n_bits=16, anchors=X[:60]).fit(X, y)
    with pytest.warns(UserWarning, match=rf"row {row} \(counted from 0\) is an outlier, more than 32 times"):
        hasher = DISHK(n_bits=16, anchors=bad[:60]).fit(bad, y)
    assert hasher.gamma_ == pytest.approx(good.gamma_, rel=0.02)
    other = np.delete(np.arange(1000), row)
    scores = [
        metrics.mean_average_precision(codes[other[:200]], y[other[:200]], codes[other], y[other])
        for codes in (good.transform(X), hasher.transform(bad))
    ]
    assert scores[1] > scores[0] - 0.02


def test_an_anchor_that_is_an_outlier_is_named_by_its_row():
    X, _ = groups(40_000)
    X[33] = 1e7  # γ is estimated from every fourth row
    picked = np.arange(0, 300)
    with pytest.warns(UserWarning, match="row 33 "):
        features.choose_gamma(RowSource(X), torch.from_numpy(X[picked]), picked)


def test_an_anchor_of_the_users_own_that_is_an_outlier_is_named():
    X, _ = groups(500)
    A = X[:50].copy()
    A[4] = 1e7
    with pytest.warns(UserWarning, match="anchor 4 "):
        features.choose_gamma(RowSource(X), torch.from_numpy(A))


def test_several_outliers_are_listed():
    X, _ = groups(1000)
    X[[3, 5, 700, 8, 20, 6, 9]] = 1e5
    with pytest.warns(
        UserWarning, match=r"rows 3, 5, 6, 8, 9 and 2 more \(counted from 0\) are outliers, .* ignores them"
    ):
        features.choose_gamma(RowSource(X), torch.from_numpy(X[100:200]))


def test_a_fifth_of_the_rows_are_not_outliers():
    X, _ = groups()
    X[:600] *= 1e4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gamma = features.choose_gamma(RowSource(X), torch.from_numpy(X[::10]))
    assert 1 / gamma > 1e6


def test_the_centre_ignores_outliers():
    A = torch.from_numpy(RNG.standard_normal((100, 3)))
    np.testing.assert_array_equal(features.centre_of(A), A.mean(0))
    assert features.ordinary(A).all()
    far = A.clone()
    far[3] = 1e6
    np.testing.assert_allclose(features.centre_of(far), np.delete(A.numpy(), 3, 0).mean(0), atol=1e-12)
    assert features.ordinary(far).tolist() == [i != 3 for i in range(100)]


@pytest.mark.parametrize(
    ("squares", "expected"),
    [
        ([1.0] * 99 + [1001.0], [False] * 99 + [True]),
        ([1.0] * 99 + [999.0], [False] * 100),
        ([1.0] * 98 + [1e6] * 2, [False] * 100),  # more than one in a hundred: no accident
        ([0.0] * 99 + [1.0], [False] * 100),
    ],
)
def test_outliers_are_beyond_a_thousand_medians(squares, expected):
    assert features.outliers(np.array(squares)).tolist() == expected


@pytest.mark.parametrize(("scale", "word"), [(1e-30, "small"), (1e19, "large"), (1e30, "large")])
def test_values_beyond_the_range_of_float32_are_refused(scale, word):
    X, y = groups(300)
    with pytest.raises(InputError, match=f"too {word} for the arithmetic of float32: scale X"):
        DISHK(n_bits=8, n_anchors=50).fit((X * scale).astype(np.float32), y)
    codes = [DISHK(n_bits=8, n_anchors=50).fit(Z, y).codes_ for Z in (X, X * scale)]
    np.testing.assert_array_equal(*codes)  # float64 has the range


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


def test_local_rows_are_the_indices_of_one_process():
    class Second:
        def offset_and_total(self, n):
            return 10, 30

    mine, places = features.local_rows(10, np.array([3, 10, 14, 19, 20, 25]), Second())
    assert mine.tolist() == [0, 4, 9]
    assert places == slice(1, 4)
