"""Recentring: moments against NumPy, codes after a shift, what changes and what does not."""

import copy
from pathlib import Path

import numpy as np
import pytest

import dish
from dish import DISH, DISHK, metrics
from dish.errors import InputError, UnsupportedError
from dish.kernel.recentring import feature_moments, recentring

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module", params=[DISH, DISHK])
def fitted(request, digits):
    X, y, Xq, _ = digits
    return request.param(n_bits=24, n_anchors=80).fit(X[:500], y[:500]), X, y, Xq


def shift(X):
    """Every feature scaled and moved by its own numbers."""
    rng = np.random.default_rng(5)
    return X * 2.0 ** rng.uniform(-2, 2, X.shape[1]) + 30 * rng.standard_normal(X.shape[1])


@pytest.mark.parametrize("sizes", [(100,), (1, 99), (30, 0, 69, 1)])
def test_moments_of_blocks_are_those_of_all_rows(sizes):
    X = 1e6 + np.random.default_rng(0).normal(size=(100, 3)) * [1, 10, 0]
    found = feature_moments(np.split(X, np.cumsum(sizes)[:-1]))
    np.testing.assert_allclose(found, [X.mean(0), X.std(0)], rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("n", [0, 1])
def test_moments_need_two_rows(n):
    with pytest.raises(InputError, match=f"at least 2 rows .*, got {n}"):
        feature_moments([np.zeros((n, 3))])


def test_rows_get_the_moments_of_training_rows():
    rng = np.random.default_rng(0)
    X, training = 5 + 3 * rng.normal(size=(50, 4)), np.array([[0.0, 1, 2, 3], [1.0, 2, 0, 4]])
    X[:, 3] = 7
    found = recentring(feature_moments([X]), training, np.float64)(X)
    np.testing.assert_allclose(found.mean(0), training[0], atol=1e-12)
    np.testing.assert_allclose(found.std(0), [1, 2, X[:, 2].std(), 0])  # a constant feature keeps its scale


def test_recentring_undoes_a_shift_of_the_training_rows(fitted):
    """The moments in the model are those of all 500 rows, so the map is undone up to rounding."""
    hasher, X, _, Xq = fitted
    Xq = Xq * (X[:500].std(0) > 0)  # nothing is known about the scale of a feature that did not vary
    again = copy.deepcopy(hasher).recentre(shift(X[:500]))
    np.testing.assert_allclose(again.decision_function(shift(Xq)), hasher.decision_function(Xq), atol=2e-3)
    assert (hasher.transform(shift(Xq)) != hasher.transform(Xq)).mean() > 0.5


def test_recentring_on_new_rows_restores_balance_map_and_neighbours(fitted):
    hasher, X, _, Xq = fitted
    base, queries = X[500:], Xq
    again = copy.deepcopy(hasher).recentre(shift(base))

    def balance(model, rows):
        return np.unpackbits(model.transform(rows), axis=1).mean(0)

    moved = np.abs(balance(hasher, shift(base)) - balance(hasher, base)).max()
    restored = np.abs(balance(again, shift(base)) - balance(hasher, base)).max()
    assert restored < 0.05 < 0.3 < moved

    def quality(model, change):
        q, codes = model.transform(change(queries)), model.transform(change(base))
        return metrics.neighbour_recall(queries, q, base, codes, k=10, oversampling=(10,))[10]

    before, shifted, after = quality(hasher, lambda Z: Z), quality(hasher, shift), quality(again, shift)
    assert after > before - 0.02 > shifted + 0.1


def test_codes_of_labels_stay(digits):
    X, y, _, _ = digits
    hasher = DISH(n_bits=16, n_anchors=60, geometry=0).fit(X[:400], y[:400])
    before = hasher.transform(X[:50], labels=y[:50])
    np.testing.assert_array_equal(hasher.recentre(shift(X)).transform(shift(X[:50]), labels=y[:50]), before)


def test_it_returns_self_and_has_a_new_fingerprint(fitted, tmp_path):
    hasher, X, _, _ = fitted
    again = copy.deepcopy(hasher)
    assert again.recentre(shift(X)) is again
    slightly = copy.deepcopy(hasher).recentre(X[1:500])
    assert len({each.fingerprint_ for each in (hasher, again, slightly)}) == 3
    again.save(tmp_path / "m.dish")
    same = dish.load(tmp_path / "m.dish")
    assert same.fingerprint_ == again.fingerprint_
    np.testing.assert_array_equal(same.transform(shift(X)), again.transform(shift(X)))
    np.testing.assert_array_equal(again.codes_, hasher.codes_)


def test_it_starts_from_the_training_rows_every_time(fitted):
    hasher, X, _, _ = fitted
    once = copy.deepcopy(hasher).recentre(shift(X))
    twice = copy.deepcopy(hasher).recentre(X + 100).recentre(shift(X))
    assert twice.fingerprint_ == once.fingerprint_


def test_fit_forgets_it(digits):
    X, y, _, _ = digits
    hasher = DISHK(n_bits=8, n_anchors=40).fit(X[:200], y[:200])
    before = hasher.fingerprint_
    assert hasher.recentre(shift(X)).fingerprint_ != before
    assert hasher.fit(X[:200], y[:200]).fingerprint_ == before


@pytest.mark.parametrize("kernel", ["linear", "rbf", "rbf+linear", lambda A, B: np.tanh(A @ B.T / 1e4)])
def test_every_kernel(digits, kernel):
    X, y, Xq, _ = digits
    hasher = DISHK(n_bits=8, n_anchors=40, kernel=kernel).fit(X[:300], y[:300])
    again = copy.deepcopy(hasher).recentre(shift(X[:300]))
    assert (again.transform(shift(Xq)) == hasher.transform(Xq)).mean() > 0.97


def test_blocks_and_files_are_read(fitted, tmp_path):
    hasher, X, _, _ = fitted
    np.save(tmp_path / "X.npy", shift(X))
    whole = copy.deepcopy(hasher).recentre(shift(X))
    for given in (tmp_path / "X.npy", iter(np.array_split(shift(X), 5))):
        found = copy.deepcopy(hasher).recentre(given)
        np.testing.assert_allclose(found.recentred_, whole.recentred_, rtol=1e-6, atol=1e-9)


def test_a_model_without_moments_is_refused():
    old = dish.load(GOLDEN / "dish.dish")
    X = np.zeros((5, old.n_features_in_))
    with pytest.raises(UnsupportedError, match="saved without the means of its training rows; fit it again"):
        old.recentre(X)
