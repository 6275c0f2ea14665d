"""Warnings about codes that are of no use."""

import re
import warnings

import numpy as np
import pytest
import torch

from dish import DISH, DISHK, codes
from dish.io.rows import RowSource
from dish.kernel import held_out_check
from dish.kernel.fit_data import prepare
from dish.parallel import ALONE
from dish.similarity import from_labels

RNG = np.random.default_rng(3)
CPU = torch.device("cpu")


def groups(n=1000, d=6, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 4, n)
    return rng.standard_normal((n, d)) + 3 * rng.standard_normal((4, d))[y], y


@pytest.mark.parametrize("method", [DISH, DISHK])
@pytest.mark.parametrize("n", [300, 1000])
def test_useful_codes_give_no_warning(method, n):
    X, y = groups(n)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        method(16, n_anchors=100).fit(X, y)
        method(16, n_anchors=100).fit(X, np.eye(4, dtype=int)[y])


@pytest.mark.parametrize("method", [DISH, DISHK])
@pytest.mark.parametrize("n", [300, 1000])
def test_codes_no_better_than_chance(method, n, all_steps):
    X, y = groups(n)
    with pytest.warns(UserWarning, match=r"held-out rows rank no better than chance \(MAP 0\.\d\d, chance 0\.\d\d\)"):
        method(16, n_anchors=100).fit(X, RNG.permutation(y))


def test_codes_worse_than_sign_bits():
    """Each of 16 features tells one bit of a class; a kernel far too narrow learns little of it."""
    y = RNG.integers(0, 256, 3000)
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(float)
    X = np.hstack([bits, bits])[y] + 0.1 * RNG.standard_normal((3000, 16))
    with pytest.warns(
        UserWarning, match="rank worse than one bit per feature.* of similar scales, gamma='auto', and"
    ):
        DISHK(16, n_anchors=20, gamma=0.001).fit(X, y)


def test_wrong_labels_are_counted():
    X, y = groups(3000)
    wrong = RNG.random(3000) < 0.3
    with pytest.warns(UserWarning, match=r"about (2[4-9]|3\d)% of the labels of 1500 held-out rows fit no better"):
        DISH(16, n_anchors=100).fit(X, np.where(wrong, RNG.integers(0, 4, 3000), y))


def warnings_of(fit):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit()
    return " ".join(str(each.message) for each in caught)


@pytest.mark.parametrize("centres", [0.5, *(pytest.param(c, marks=pytest.mark.long) for c in (0.3, 0.2))])
def test_classes_that_overlap_are_not_wrong_labels(centres, all_steps):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        y = rng.integers(0, 4, 1500)
        X = centres * rng.standard_normal((4, 6))[y] + rng.standard_normal((1500, 6))
        assert "wrong labels" not in warnings_of(lambda X=X, y=y: DISH(16, n_anchors=100).fit(X, y))


@pytest.mark.parametrize("kind", ["digits", pytest.param("ten groups", marks=pytest.mark.long)])
def test_wrong_labels_are_noticed(kind, digits, all_steps):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        y = rng.integers(0, 10, 1500)
        X = 3 * rng.standard_normal((10, 20))[y] + rng.standard_normal((1500, 20))
        if kind == "digits":
            X, y = digits[:2]
        given = np.where(rng.random(len(y)) < 0.3, rng.integers(0, 10, len(y)), y)
        said = warnings_of(lambda X=X, y=given: DISH(16, n_anchors=300).fit(X, y))
        assert re.search("about (1[6-9]|2.|3.|4.)% of the labels", said), said


def test_warnings_say_what_was_found_and_what_to_try():
    X, y = groups(1000)
    said = warnings_of(lambda: DISH(16, n_anchors=100, gamma=1e6, kernel="rbf", scale=None).fit(X, y))
    assert "rank no better than chance" in said
    assert "cannot be predicted" not in said
    assert said.endswith("scales of its features are similar; try gamma='auto', scale='auto'")
    said = warnings_of(lambda: DISH(16, n_anchors=100).fit(X, RNG.permutation(y)))
    assert said.endswith("scales of its features are similar")


def test_left_out_F_is_ridge_regression_without_these_rows():
    X, y = groups(400)
    data = prepare(RowSource(X), from_labels(y), n_anchors=30, rng=np.random.RandomState(0), device=CPU)
    H = codes.pack(RNG.standard_normal((400, 12)))
    signs = torch.from_numpy(codes.unpack(H, 12)).double()
    K, rho = data.K, data.white.rho
    rows = np.arange(0, 400, 5)
    rest = np.setdiff1d(np.arange(400), rows)

    def ridge(some):
        return torch.linalg.solve(K[some].T @ K[some] + rho * torch.eye(30), K[some].T @ signs[some])

    found = held_out_check.left_out_F(K, data.white, ridge(np.arange(400)), H, rows, ALONE)
    torch.testing.assert_close(found, K[rows] @ ridge(rest), rtol=1e-4, atol=1e-5)


def test_a_similarity_without_labels_is_not_checked():
    from dish.similarity import nystroem

    X, _ = groups(300)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DISHK(8, n_anchors=50).fit(X, nystroem(X))
