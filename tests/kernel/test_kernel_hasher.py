"""What every kernel hasher shares: the encoder, its hash function, files."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from dish.kernel.functions import Classifiers, Linear, of_classifiers

from dish import DISH, load
from dish.kernel import features


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 500)
    X = (rng.standard_normal((500, 8)) + 2 * rng.standard_normal((4, 8))[y]).astype(np.float32)
    return DISH(n_bits=12, n_anchors=40, device="cpu").fit(X, y), X, y


def test_transform_prepares_its_features_once(fitted, monkeypatch):
    hasher, X, _ = fitted
    prepared = []
    prepare = features.prepare_rbf
    monkeypatch.setattr(features, "prepare_rbf", lambda *args: prepared.append(1) or prepare(*args))
    many = np.tile(X, (140, 1))  # three blocks of 32,768 rows
    codes = hasher.transform(many)
    hasher.transform([many[:40_000], many[40_000:]])
    assert len(prepared) == 2  # once per call
    np.testing.assert_array_equal(codes[:500], hasher.transform(X))


def test_transform_leaves_the_hasher_as_it_was(fitted):
    hasher, X, _ = fitted
    before = dict(vars(hasher))
    hasher.transform(X)
    assert vars(hasher) == before


def test_a_linear_function_is_K_W_plus_its_intercept():
    rng = np.random.default_rng(0)
    K, W, c = rng.standard_normal((7, 3)), rng.standard_normal((3, 2)), np.array([0.5, -1.0])
    function = Linear.of(W, c).to(torch.zeros(1, dtype=torch.float64))
    np.testing.assert_allclose(function(torch.from_numpy(K)), K @ W + c, rtol=1e-6)
    np.testing.assert_array_equal(function.arrays()["W_"], W)
    np.testing.assert_array_equal(Linear.of(W).intercept, [0, 0])


def test_classifiers_are_linear_where_all_of_them_are():
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import GaussianNB

    rng = np.random.default_rng(0)
    K, h = rng.standard_normal((60, 3)), np.where(rng.random((60, 2)) < 0.5, -1, 1)
    linear = of_classifiers([LogisticRegression().fit(K, bit) for bit in h.T], 3)
    assert isinstance(linear, Linear)
    expected = [LogisticRegression().fit(K, bit).decision_function(K) for bit in h.T]
    np.testing.assert_allclose(linear.to(torch.from_numpy(K))(torch.from_numpy(K)), np.stack(expected, 1), atol=1e-5)
    assert isinstance(of_classifiers([GaussianNB().fit(K, bit) for bit in h.T], 3), Classifiers)


def test_nothing_of_a_fit_stays_behind(fitted, tmp_path):
    """What a fit works on is gone when it is done: attributes are parameters and results."""
    hasher, X, _ = fitted
    extra = set(vars(hasher)) - set(hasher.get_params())
    assert all(name.endswith("_") and not name.startswith("_") for name in extra)
    hasher.save(tmp_path / "m.dish")
    np.testing.assert_array_equal(load(tmp_path / "m.dish").transform(X), hasher.transform(X))


def test_bfloat16_rows_are_taken(fitted):
    _, X, y = fitted
    half = torch.from_numpy(X).bfloat16()
    hasher = DISH(n_bits=8, n_anchors=40).fit(half, y)
    np.testing.assert_array_equal(hasher.codes_, DISH(n_bits=8, n_anchors=40).fit(half.float(), y).codes_)
    np.testing.assert_array_equal(hasher.transform(half), hasher.transform(half.float().numpy()))


def test_a_fit_on_the_CPU_makes_no_CUDA_context(fitted, monkeypatch):
    _, X, y = fitted

    def refuse(*args):
        raise AssertionError("a CUDA context would have been made")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name in ("synchronize", "mem_get_info", "_lazy_init"):
        monkeypatch.setattr(torch.cuda, name, refuse)
    DISH(n_bits=8, n_anchors=40, device="cpu").fit(X, y).transform(X)


def test_a_huge_weight_is_refused_by_name(fitted):
    _, X, y = fitted
    with pytest.raises(ValueError, match="similar_weight must be 'auto' or a number above 1, at most 1e12"):
        DISH(n_bits=8, n_anchors=40, similar_weight=1e300).fit(X, y)


@pytest.mark.slow
def test_the_package_exports_its_names_and_loads_them_late():
    late = "import sys, dish.kernel as k; assert not {'torch', 'numba'} & set(sys.modules)"
    every = "[getattr(k, name) for name in k.__all__]"
    subprocess.run([sys.executable, "-c", f"{late}; {every}"], check=True, timeout=120)
