"""Outliers, γ, and features of different scales."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer

from dish import DISH, DISHK, metrics
from dish.errors import InputError
from dish.io.rows import RowSource
from dish.kernel import typical_rows
from dish.kernel.typical_rows import RowSample, TypicalRows
from dish.similarity import from_labels

RNG = np.random.default_rng(5)
CPU = torch.device("cpu")


def groups(n=3000, d=6, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 4, n)
    return rng.standard_normal((n, d)) + 2 * rng.standard_normal((4, d))[y], y


def sample_of(X, y=None):
    return RowSample.of(RowSource(X), None if y is None else from_labels(y), CPU)


def typical_of(X, y=None, scale=None, kernel="rbf"):
    return typical_rows.find_typical_rows(sample_of(X, y), kernel, scale)


def gamma_of(X, A, y=None):
    return typical_rows.choose_gamma(typical_of(X, y), torch.from_numpy(X), torch.from_numpy(A))


def held_out_map(hasher, X, y, Xq, yq):
    return metrics.mean_average_precision(hasher.transform(Xq), yq, hasher.transform(X), y)


# --- γ ---


def test_mean_squared_distance():
    X, A = RNG.standard_normal((50, 3)), RNG.standard_normal((20, 3)) + 2
    expected = ((X[:, None] - A[None]) ** 2).sum(2).mean()
    found = typical_rows.mean_squared_distance(TypicalRows(torch.zeros(3)), *map(torch.from_numpy, (X, A)))
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["normal", "lognormal", "sparse", "one_hot", "two_scales"])
def test_gamma_of_ordinary_rows_is_the_plain_mean_without_a_warning(kind, dtype):
    n = 2000
    X = {
        "normal": lambda: RNG.standard_normal((n, 10)),
        "lognormal": lambda: RNG.lognormal(0, 1, (n, 10)),
        "sparse": lambda: RNG.random((n, 50)) * (RNG.random((n, 50)) < 0.02),
        "one_hot": lambda: np.eye(8)[RNG.integers(0, 8, n)],
        "two_scales": lambda: RNG.standard_normal((n, 5)) * np.where(RNG.random((n, 1)) < 0.3, 8, 1),
    }[kind]().astype(dtype)
    A = X[::20]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gamma = gamma_of(X, A)
    direct = ((X[:, None].astype(np.float64) - A[None]) ** 2).sum(2).mean()
    assert gamma == pytest.approx(1 / direct, rel=1e-7)
    assert float(f"{gamma:.9g}") == gamma


@pytest.mark.parametrize(("scale", "word"), [(1e-30, "small"), (1e19, "large"), (1e30, "large")])
def test_values_beyond_the_range_of_float32_are_refused(scale, word):
    X, y = groups(300)
    with pytest.raises(InputError, match=f"too {word} for the arithmetic of float32: scale X"):
        DISHK(n_bits=8, n_anchors=50).fit((X * scale).astype(np.float32), y)
    codes = [DISHK(n_bits=8, n_anchors=50).fit(Z, y).codes_ for Z in (X, X * scale)]
    np.testing.assert_array_equal(*codes)  # float64 has the range


# --- Outliers ---


@pytest.mark.parametrize(("value", "dtype"), [(1e3, np.float64), (1e6, np.float32), (1e12, np.float32)])
@pytest.mark.parametrize("row", [7, 834])  # row 7 becomes an anchor
def test_an_outlier_is_named_and_does_no_harm(value, dtype, row):
    X, y = groups(1000)
    X = X.astype(dtype)
    bad = X.copy()
    bad[row] = value
    good = DISHK(n_bits=16, anchors=X[:60]).fit(X, y)
    with pytest.warns(UserWarning, match=rf"row {row} \(counted from 0\) is an outlier, more than \d+ times"):
        hasher = DISHK(n_bits=16, anchors=bad[:60]).fit(bad, y)
    assert hasher.gamma_ == pytest.approx(good.gamma_, rel=0.02)
    other = np.delete(np.arange(1000), row)
    scores = [
        metrics.mean_average_precision(codes[other[:200]], y[other[:200]], codes[other], y[other])
        for codes in (good.transform(X), hasher.transform(bad))
    ]
    assert scores[1] > scores[0] - 0.02


def test_an_anchor_that_is_an_outlier_is_named_by_its_row_and_replaced():
    X, y = groups(40_000)
    X[33] = 1e7  # outliers are looked for in every fourth row, and among rows that become anchors
    seed = next(s for s in range(1000) if 33 in np.random.RandomState(s).choice(40_000, 300, replace=False))
    with pytest.warns(UserWarning, match="row 33 "):
        hasher = DISHK(8, n_anchors=300, n_iter=1, random_state=seed).fit(X, y)
    assert hasher.anchors_.shape == (300, 6)
    assert np.abs(hasher.anchors_).max() < 100


def test_an_anchor_of_the_users_own_that_is_an_outlier_is_named():
    X, y = groups(500)
    A = X[:50].copy()
    A[4] = 1e7
    with pytest.warns(UserWarning, match="anchor 4 "):
        DISHK(8, anchors=A).fit(X, y)


def test_several_outliers_are_listed():
    X, y = groups(1000)
    X[[3, 5, 700, 8, 20, 6, 9]] = 1e5
    with pytest.warns(
        UserWarning, match=r"rows 3, 5, 6, 8, 9 and 2 more \(counted from 0\) are outliers, .* ignores them"
    ):
        DISHK(8, n_anchors=50).fit(X, y)


@pytest.mark.parametrize("share", [*(pytest.param(s, marks=pytest.mark.long) for s in (0.01, 0.1)), 0.3])
@pytest.mark.parametrize("kind", ["scaled", "noise"])
@pytest.mark.parametrize("method", [DISH, DISHK])
def test_codes_survive_outliers(method, kind, share):
    """The same rows are outliers for γ, the centre and the anchors."""
    X, y = groups(1600)
    train, rest, y_train, y_rest = X[:1000].copy(), X[1000:], y[:1000], y[1000:]
    far = RNG.choice(1000, round(share * 1000), replace=False)
    train[far] = 1e4 * (train[far] if kind == "scaled" else RNG.standard_normal((len(far), 6)))
    clean = held_out_map(method(16, n_anchors=100).fit(X[:1000], y_train), rest, y_rest, rest, y_rest)
    with pytest.warns(UserWarning, match="are outliers"):
        hasher = method(16, n_anchors=100).fit(train, y_train)
    assert held_out_map(hasher, rest, y_rest, rest, y_rest) > clean - 0.02


@pytest.mark.parametrize("share", [0.01, 0.02, 0.1])
def test_outliers_are_found_among_many_classes_with_a_linear_part(share):
    """Their linear features spoil the prediction of their own labels, which must not decide for all rows."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(100), 30)
    X = rng.standard_normal((100, 128))[y] + 0.7 * rng.standard_normal((3000, 128))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    X[rng.choice(3000, int(share * 3000), replace=False)] *= 1e4
    assert typical_of(X, y, kernel="rbf+linear").reach < 100


def test_a_distant_group_of_its_own_is_not_an_outlier():
    """A tight class of 80 % and three wide ones far away: γ must resolve the distant rows, where the labels are."""
    rng = np.random.default_rng(0)
    y = np.where(rng.random(2000) < 0.8, 0, rng.integers(1, 4, 2000))
    centres = np.vstack([np.zeros(6), 60 * rng.standard_normal((3, 6))])
    X = centres[y] + np.where(y[:, None] == 0, 0.05, 20) * rng.standard_normal((2000, 6))
    typical = typical_of(X, y)
    assert bool(typical.includes(torch.from_numpy(X)).all())
    assert int(sample_of(X).outliers(typical_of(X)).sum()) > 300  # without labels, they are


@pytest.mark.parametrize("kind", ["sign of a normal number", "groups on a line", "breast cancer"])
def test_ordinary_rows_have_no_outliers(kind):
    """The tail of a normal distribution on a line reaches more than five times the median distance."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        X, y = rng.standard_normal((1500, 1)), rng.integers(0, 4, 1500)
        if kind == "sign of a normal number":
            y = (X[:, 0] > 0).astype(int)
        elif kind == "groups on a line":
            X = X + 3 * rng.standard_normal((4, 1))[y]
        else:
            X, y = load_breast_cancer(return_X_y=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of scales
            assert not sample_of(X, y).outliers(typical_of(X, y, "auto")).any()


def test_outliers_at_ten_times_the_distance_are_found():
    X, y = groups(1000)
    X[::20] *= 10
    assert 30 <= int(sample_of(X, y).outliers(typical_of(X, y)).sum()) <= 50
    assert not sample_of(X[:400], y[:400]).outliers(typical_of(X[:400], y[:400])).any()  # too few rows to tell


def test_more_than_a_third_of_the_rows_are_not_outliers():
    X, _ = groups()
    X[:1200] *= 1e4
    assert not sample_of(X).outliers(typical_of(X)).any()


def test_equal_rows_have_no_outliers():
    X = np.zeros((100, 3))
    X[:10] = 5
    assert not sample_of(X).outliers(typical_of(X)).any()


def test_the_centre_ignores_outliers():
    A = torch.from_numpy(RNG.standard_normal((100, 3)))
    far = A.clone()
    far[3] = 1e6
    typical = typical_of(far.numpy())
    np.testing.assert_allclose(typical_rows.centre_of(typical, far), np.delete(A.numpy(), 3, 0).mean(0), atol=1e-12)
    np.testing.assert_array_equal(typical_rows.centre_of(typical_of(A.numpy()), A), A.mean(0))


# --- Scales ---


def test_deviations():
    X = np.zeros((1000, 4))
    X[:, 0] = RNG.standard_normal(1000) * 50
    X[:50, 1] = 3.0  # sparse: its zeros do not count
    X[:, 2] = 7.0  # constant
    X[:, 3] = RNG.standard_normal(1000)
    X[:200, 3] *= 1e6  # outliers
    found = typical_rows.deviations(torch.from_numpy(X))
    assert found[0] == pytest.approx(50 * 0.6745, rel=0.1)
    assert found[1] == 3.0
    assert found[2] == 0.0
    assert 0.5 < found[3] < 1.5


def test_deviations_of_features_with_a_large_offset():
    """A deviation is rounding or not by the number type of the rows."""
    X = 1e6 + RNG.standard_normal((1000, 3)) * [1e-2, 1, 100]
    X[:, 0] -= X[:, 0].mean() - 1e6
    found = typical_rows.deviations(torch.from_numpy(X))
    np.testing.assert_allclose(found, 0.6745 * np.array([1e-2, 1, 100]), rtol=0.15)
    assert typical_rows.deviations(torch.from_numpy(X).float())[0] == 0
    factors = 10.0 ** RNG.uniform(-2, 2, 20)
    y = RNG.integers(0, 4, 1000)
    rows = (2 * RNG.standard_normal((4, 20))[y] + RNG.standard_normal((1000, 20))) * factors
    with pytest.warns(UserWarning, match="the scales of its features differ"):
        assert typical_of(rows + 1e6, y, scale="auto").scale is not None


@pytest.mark.parametrize("method", [DISH, DISHK])
@pytest.mark.parametrize("kind", ["one loud feature", "tiny to huge"])
def test_features_of_different_scales_are_scaled_and_the_model_keeps_the_factors(method, kind, tmp_path):
    X, y = groups(1600)
    factors = np.ones(7) if kind == "one loud feature" else 10.0 ** np.linspace(-6, 6, 7)
    even = np.hstack([X, RNG.standard_normal((1600, 1))])
    uneven = even * (np.append(np.ones(6), 1000) if kind == "one loud feature" else factors)
    train, rest = slice(0, 1000), slice(1000, 1600)
    clean = method(16, n_anchors=100).fit(even[train], y[train])
    with pytest.warns(UserWarning, match=r"the scales of its features differ by a factor of .* scale=None turns"):
        hasher = method(16, n_anchors=100).fit(uneven[train], y[train])
    expected = held_out_map(clean, even[rest], y[rest], even[rest], y[rest])
    assert held_out_map(hasher, uneven[rest], y[rest], uneven[rest], y[rest]) > expected - 0.02
    assert hasher.scale_.shape == (7,)
    hasher.save(tmp_path / "m.dish")
    from dish import load

    np.testing.assert_array_equal(load(tmp_path / "m.dish").transform(uneven), hasher.transform(uneven))
    plain = method(16, n_anchors=100, scale=None).fit(uneven[train], y[train])
    assert plain.scale_ is None
    assert held_out_map(plain, uneven[rest], y[rest], uneven[rest], y[rest]) < expected - 0.1


def test_given_factors_are_used_as_if_X_had_been_scaled():
    X, y = groups(500)
    factors = np.array([1, 2, 4, 8, 16, 32.0])
    by_hand = DISHK(16, n_anchors=50, scale=None).fit(X * factors, y)
    by_model = DISHK(16, n_anchors=50, scale=factors).fit(X, y)
    np.testing.assert_array_equal(by_model.transform(X), by_hand.transform(X * factors))
    for bad in (factors[:3], -factors, "standard"):
        with pytest.raises(InputError, match="scale must be"):
            DISHK(16, n_anchors=50, scale=bad).fit(X, y)


@pytest.mark.parametrize("n", [16, 40, 160])
def test_few_rows_are_scaled_without_a_trial(n):
    for seed in range(10):
        rng = np.random.default_rng(seed)
        y = np.arange(n) % 2
        X = (2 * rng.standard_normal((2, 10))[y] + rng.standard_normal((n, 10))) * 10.0 ** rng.uniform(-6, 6, 10)
        with pytest.warns(UserWarning, match="the scales of its features differ"):
            assert typical_of(X, y, scale="auto").scale is not None


def test_principal_components_are_not_scaled():
    """Their scales differ too, but small components are noise: held-out rows decide."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 5, 2000)
    X = np.hstack(
        [
            10 * rng.standard_normal((5, 4))[y] + 3 * rng.standard_normal((2000, 4)),
            rng.standard_normal((2000, 60)) * 0.01,
        ]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert typical_of(X, y, scale="auto").scale is None


def test_the_choice_does_not_depend_on_how_processes_share_the_rows():
    X, y = groups(100_000, d=3)
    X[::7] *= 1e4
    one = sample_of(X, y)
    assert len(one.rows) >= typical_rows.FEWEST
    np.testing.assert_array_equal(one.rows, X[one.indices])


def test_many_labels_are_replaced_by_random_sums():
    y = RNG.integers(0, 500, 5000)
    S = from_labels(y)
    T = typical_rows.targets(S, S.row_group, torch.float64)
    assert T.shape == (5000, typical_rows.TARGETS)
    assert torch.equal(T[y == y[0]][0], T[0])
    assert (T[0] != T[np.flatnonzero(y != y[0])[0]]).any()


def relu_features(n, seed):
    """Sparse features like those of a network: 512, of which ten are rare and a thousandth of the others in size."""
    rng = np.random.default_rng(seed)
    y, mix = rng.integers(0, 5, n), rng.standard_normal((24, 512)) / np.sqrt(24)
    hidden = rng.standard_normal((5, 24))[y] + rng.standard_normal((n, 24))
    X = np.maximum(hidden @ mix + 0.3 * rng.standard_normal((n, 512)) - 1, 0)
    X[:, :10] = np.where(rng.random((n, 10)) < 0.02, 1e-3 * rng.random((n, 10)), 0)
    return X.astype(np.float32), y


@pytest.mark.parametrize("seed", [1, 3, 4])
def test_sparse_features_of_which_some_are_rare_and_tiny_are_not_scaled(seed, monkeypatch):
    """256 anchors and 512 features overfit 750 rows with a weak ridge alone: the trial would compare noise."""
    X, y = relu_features(1000, seed)
    spread = typical_rows.deviations(torch.from_numpy(X))
    assert spread.max() > 100 * spread.min() > 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert typical_of(X, y, scale="auto", kernel="rbf+linear").scale is None
    monkeypatch.setattr(typical_rows, "TRIAL_RIDGES", (1e-3,))
    with pytest.warns(UserWarning, match="the scales of its features differ"):
        assert typical_of(X, y, scale="auto", kernel="rbf+linear").scale is not None
