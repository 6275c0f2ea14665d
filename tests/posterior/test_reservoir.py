"""``DISH.partial_fit`` and its reservoir: bounded, class-balanced, the same for any order of the batches."""

import numpy as np
import pytest

import dish
from dish import DISH, metrics
from dish.errors import InputError, UnsupportedError
from dish.io.modelfile import family
from dish.posterior import reservoir
from dish.posterior.reservoir import Reservoir, quota, smallest_of_classes

OPTIONS = {"n_bits": 24, "n_anchors": 40}


@pytest.mark.parametrize("room", [0, 3, 10, 17, 100])
def test_quota_is_the_largest_that_fits(room):
    counts = np.array([1, 9, 4, 0, 6])
    found = quota(counts, room)
    fits = [q for q in range(counts.max() + 1) if np.minimum(counts, q).sum() <= room]
    assert found == max(fits)


def test_a_class_keeps_its_smallest_keys():
    group, keys = np.array([0, 1, 0, 0, 1, 2]), np.array([0.5, 0.1, 0.2, 0.9, 0.3, 0.8])
    np.testing.assert_array_equal(smallest_of_classes(group, keys, 5), [0, 1, 2, 4, 5])


def test_the_reservoir_is_bounded_and_balanced(monkeypatch):
    monkeypatch.setattr(reservoir, "room_for", lambda d: 60)
    rng = np.random.default_rng(0)
    group = np.sort(rng.integers(3, size=900) * (rng.random(900) < 0.5))  # half of the rows are of class 0, sorted
    found = Reservoir.none(np.empty((0, 2)), np.arange(3))
    for rows in np.array_split(np.arange(900), 9):
        found = found.plus(np.c_[rows, rows].astype(float), group[rows], np.arange(3))
        assert len(found.X) <= 60
    np.testing.assert_array_equal(np.bincount(found.group), [20, 20, 20])
    np.testing.assert_array_equal(group[found.X[:, 0].astype(int)], found.group)
    assert found.n_seen == 900


def test_a_class_is_sampled_uniformly_over_the_stream(monkeypatch):
    monkeypatch.setattr(reservoir, "room_for", lambda d: 400)
    found = Reservoir.none(np.empty((0, 1)), np.arange(2))
    for start in range(0, 4000, 100):
        rows = np.arange(start, start + 100)
        found = found.plus(rows[:, None].astype(float), rows % 2, np.arange(2))
    early = (found.X[:, 0] < 2000).sum()
    assert 150 < early < 250  # 200 ± 5 standard deviations


def test_new_classes_move_the_indices_of_the_others():
    first = Reservoir.none(np.empty((0, 1)), np.array(["b", "d"])).plus(
        np.array([[1.0], [2.0]]), np.array([0, 1]), np.array(["b", "d"])
    )
    both = first.plus(np.array([[3.0]]), np.array([2]), np.array(["a", "b", "c", "d"]))
    assert both.classes[both.group].tolist() == ["b", "d", "c"]


# --- the estimator ---


@pytest.fixture(scope="module")
def data(digits):
    X, y, Xq, yq = digits
    return X[:400], y[:400], Xq, yq


@pytest.fixture(scope="module")
def batched(data):
    """Batches sorted by class, so that later ones bring new classes; fingerprints and codes of labels on the way."""
    X, y, *_ = data
    hasher, steps = DISH(**OPTIONS), []
    for rows in np.array_split(np.argsort(y, kind="stable"), 3):
        hasher.partial_fit(X[rows], y[rows])
        known = hasher.classes_
        steps.append((hasher.fingerprint_, known, hasher.transform(X[: len(known)], labels=known)))
    return hasher, steps


def test_batches_sorted_by_class_rank_like_one_fit(data, batched):
    X, y, Xq, yq = data
    full = DISH(**OPTIONS).fit(X, y)
    maps = [metrics.mean_average_precision(h.transform(Xq), yq, h.transform(X), y) for h in (batched[0], full)]
    assert maps[0] >= 0.96 * maps[1]
    assert batched[0].n_samples_seen_ == 400
    np.testing.assert_array_equal(batched[0].classes_, np.arange(10))


def test_codes_of_labels_and_the_family_stay(batched):
    _, steps = batched
    assert {family(fingerprint) for fingerprint, *_ in steps} == {steps[0][0]}
    *_, (_, last, words) = steps
    for _, known, before in steps:
        pick = np.searchsorted(last, known)
        at = np.setdiff1d(np.arange(24), dish.encoder.geometry_positions(24, batched[0].geometry_.n_bits))
        bits = [dish.codes.unpack(a, 24)[:, at] for a in (before, words[pick])]
        np.testing.assert_array_equal(*bits)


def test_it_goes_on_after_a_small_fit_and_refuses_after_a_large_one(data, monkeypatch, tmp_path):
    X, y, *_ = data
    hasher = DISH(**OPTIONS).fit(X[:200], y[:200])
    hasher.save(tmp_path / "m.dish")
    founder = hasher.fingerprint_
    hasher.partial_fit(X[200:300], y[200:300])
    assert hasher.n_samples_seen_ == 300
    assert family(hasher.fingerprint_) == founder
    with pytest.raises(UnsupportedError, match="cannot continue"):
        dish.load(tmp_path / "m.dish").partial_fit(X, y)
    monkeypatch.setattr(reservoir, "SMALL", 10)
    large = DISH(**OPTIONS).fit(X[:200], y[:200])
    with pytest.raises(UnsupportedError, match="too many rows"):
        large.partial_fit(X, y)


def test_named_classes_have_codes_before_their_rows_come(data):
    X, y, *_ = data
    hasher = DISH(**OPTIONS).partial_fit(X[y < 4], y[y < 4], classes=np.arange(10))
    words = hasher.transform(np.repeat(X[:1], 10, axis=0), labels=np.arange(10))
    assert len(np.unique(words, axis=0)) == 10
    for named in (None, [0, 1]):
        with pytest.raises(InputError, match="1 class"):
            DISH(**OPTIONS).partial_fit(X[y == 1], y[y == 1], classes=named)


def test_a_later_call_may_name_classes_whose_rows_come_afterwards(data):
    X, y, *_ = data
    hasher = DISH(**OPTIONS).partial_fit(X[y < 4], y[y < 4])
    some = X[:1].repeat(5, axis=0)
    hasher.partial_fit(X[y < 3], y[y < 3], classes=[99])
    words = hasher.transform(some, labels=np.array([0, 1, 2, 3, 99]))
    assert len(np.unique(words, axis=0)) == 5
    hasher.partial_fit(X[y < 3], y[y < 3])
    np.testing.assert_array_equal(hasher.transform(some, labels=np.array([0, 1, 2, 3, 99])), words)


def test_a_recentred_model_learns_nothing_more(data):
    X, y, *_ = data
    hasher = DISH(**OPTIONS).partial_fit(X[:300], y[:300]).recentre(3 * X + 5)
    with pytest.raises(UnsupportedError, match="recentred"):
        hasher.partial_fit(X[300:], y[300:])
    with pytest.raises(UnsupportedError, match="recentred"):
        DISH(**OPTIONS).fit(X, y, compatible_with=hasher)


@pytest.mark.long
def test_feature_names_stay(data):
    pandas = pytest.importorskip("pandas")
    X, y, *_ = data
    frame = pandas.DataFrame(X[:240], columns=[f"pixel {j}" for j in range(64)])
    hasher = DISH(**OPTIONS).partial_fit(frame[:120], y[:120]).partial_fit(frame[120:], y[120:240])
    assert hasher.feature_names_in_.tolist() == frame.columns.tolist()
