"""Anchors and the scale γ: the same on ordinary rows as ever, and not at the mercy of a single row."""

import warnings

import numpy as np
import pytest
import torch

from dish import DISH, metrics
from dish.io.rows import RowSource
from dish.kernel import anchors

RNG = np.random.default_rng(5)


def groups(n=3000, d=6, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 4, n)
    return rng.standard_normal((n, d)) + 2 * rng.standard_normal((4, d))[y], y


def test_mean_squared_distance():
    X, A = RNG.standard_normal((50, 3)), RNG.standard_normal((20, 3)) + 2
    expected = ((X[:, None] - A[None]) ** 2).sum(2).mean()
    assert anchors.mean_squared_distance(RowSource(X), torch.from_numpy(A)) == pytest.approx(expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["normal", "lognormal", "sparse", "one_hot", "two_scales"])
def test_gamma_of_ordinary_rows_is_the_plain_mean_and_nothing_is_said(kind, dtype):
    n = 2000
    X = {
        "normal": lambda: RNG.standard_normal((n, 10)),
        "lognormal": lambda: RNG.lognormal(0, 1, (n, 10)),
        "sparse": lambda: RNG.random((n, 50)) * (RNG.random((n, 50)) < 0.02),
        "one_hot": lambda: np.eye(8)[RNG.integers(0, 8, n)],
        "two_scales": lambda: RNG.standard_normal((n, 5)) * np.where(RNG.random((n, 1)) < 0.3, 100, 1),
    }[kind]().astype(dtype)
    A = X[::20]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gamma = anchors.scale_of(RowSource(X), torch.from_numpy(A))
    direct = ((X[:, None].astype(np.float64) - A[None]) ** 2).sum(2).mean()
    assert gamma == pytest.approx(1 / direct, rel=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("value", [1e3, 1e6, 1e12])
@pytest.mark.parametrize("row", [7, 1234])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_row_far_out_does_no_harm_and_is_named(value, row, dtype):
    """Also where it becomes an anchor itself: every row does here."""
    X, y = groups()
    X = X.astype(dtype)
    bad = X.copy()
    bad[row] = value
    params = {"n_bits": 16, "n_anchors": 100, "anchors": X[:100] if row > 100 else bad[:100]}
    good = DISH(**{**params, "anchors": X[:100]}).fit(X, y)
    with pytest.warns(UserWarning, match=rf"row {row} \(counted from 0\) lies more than 32 times"):
        hasher = DISH(**params).fit(bad, y)
    assert hasher.gamma_ == pytest.approx(good.gamma_, rel=0.02)
    other = np.delete(np.arange(3000), row)
    scores = [
        metrics.mean_average_precision(codes[other[:200]], y[other[:200]], codes[other], y[other])
        for codes in (good.transform(X), hasher.transform(bad))
    ]
    assert scores[1] > scores[0] - 0.02


def test_an_anchor_far_out_is_named_by_its_row():
    X, _ = groups(40_000)
    X[33] = 1e7  # the sample of rows that γ is taken from has every fourth
    picked = np.arange(0, 300)
    with pytest.warns(UserWarning, match="row 33 "):
        anchors.scale_of(RowSource(X), torch.from_numpy(X[picked]), picked)


def test_many_rows_far_out_are_no_accident():
    X, _ = groups()
    X[:600] *= 1e4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gamma = anchors.scale_of(RowSource(X), torch.from_numpy(X[::10]))
    assert 1 / gamma > 1e6


@pytest.mark.parametrize(("scale", "word"), [(1e-30, "too small"), (1e19, "too large"), (1e30, "too large")])
def test_values_out_of_the_reach_of_float32_are_named_as_the_reason(scale, word):
    X, y = groups(300)
    tiny = (X * scale).astype(np.float32)
    with pytest.raises(ValueError, match=f"{word} for the arithmetic of float32: scale X"):
        DISH(n_bits=8, n_anchors=50).fit(tiny, y)
    codes = [DISH(n_bits=8, n_anchors=50).fit(Z, y).codes_ for Z in (X, X * scale)]
    np.testing.assert_array_equal(*codes)  # float64 has the reach


@pytest.mark.parametrize("scale", [1e19, 1e30])
def test_values_too_large_for_the_linear_kernel_are_named_as_the_reason(scale):
    X, y = groups(300)
    with pytest.raises(ValueError, match="overflow"):
        DISH(n_bits=4, kernel="linear").fit((X * scale).astype(np.float32), y)


def test_small_values_do_for_the_linear_kernel():
    X, y = groups(300)
    codes = [DISH(n_bits=4, kernel="linear").fit((X * s).astype(np.float32), y).codes_ for s in (1.0, 2.0**-40)]
    np.testing.assert_array_equal(*codes)


def test_rows_all_alike_are_still_told_so():
    for kernel in ("rbf", "linear"):
        with pytest.raises(ValueError, match="do not vary: its rows are all alike"):
            DISH(n_bits=4, n_anchors=10, kernel=kernel).fit(np.full((30, 3), 0.1), np.arange(30) % 2)
