"""Drift: normal rows do not alarm, shifted rows and new classes do; references, files and other hashers."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import make_multilabel_classification

import dish
from dish import DISH, DISHK, DeepDISH
from dish.baselines import REGISTRY
from dish.errors import InputError
from dish.evaluation.drift import Drift, drift, profile_of
from dish.experiments import figures, style

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module")
def seven(digits):
    """A model of seven digits, new rows of these, and rows of the other three."""
    X, y, Xq, yq = digits
    X, y = np.concatenate([X, Xq]), np.concatenate([y, yq])
    known = np.flatnonzero(y < 7)
    hasher = DISH(n_bits=24, n_anchors=100).fit(X[known[:600]], y[known[:600]])
    return hasher, X[known[600:]], X[y >= 7], (X[known[:600]], y[known[:600]])


def test_normal_rows_do_not_alarm_and_shifted_rows_do(seven):
    hasher, normal, new_classes, _ = seven
    rng = np.random.default_rng(0)
    samples = [rng.choice(normal, size, replace=False) for size in (50, 100, 300) for _ in range(10)]
    assert max(drift(hasher, sample).score for sample in samples) < 0.05
    noisy = normal + 8 * rng.standard_normal(normal.shape)
    for X in (normal + 4, noisy, 3 * normal, rng.permuted(normal, axis=0)):
        assert drift(hasher, X[:100]).score > 0.1
    some = np.concatenate([normal[:150], new_classes[:150]])
    assert drift(hasher, some).score > 0.1


def test_rows_of_new_classes_belong_to_no_known_class(seven):
    hasher, normal, new_classes, _ = seven
    assert drift(hasher, normal).unknown < 0.1
    assert drift(hasher, new_classes).unknown > 0.6
    assert drift(hasher, normal).unknown_reference <= 0.05


def test_rows_far_away_are_unknown_although_p_is_certain(seven):
    hasher, normal, _, _ = seven
    (far,) = hasher.row_traits(3 * normal)
    assert (far.values["entropy"] >= hasher.profile_.limits["entropy"]).mean() < 0.3
    assert drift(hasher, 3 * normal).unknown > 0.8


def test_a_profile_of_training_rows_would_call_new_rows_a_drift(seven):
    hasher, normal, _, (X, _) = seven
    by_training_rows = drift(hasher, normal, reference=X)
    assert by_training_rows.source == "given rows"
    held_out = drift(hasher, normal)
    assert held_out.source == "held-out rows"
    distances = [found.changes["entropy"].distance for found in (held_out, by_training_rows)]
    assert distances[1] > 0.05 + distances[0]


def test_reference_rows_like_the_new_ones_score_zero(seven):
    hasher, normal, _, _ = seven
    found = drift(hasher, normal[::2], reference=normal[1::2])
    assert (found.score, found.n, found.n_reference) == (0.0, len(normal[::2]), len(normal[1::2]))
    moved = drift(hasher, normal[::2] + 4, reference=normal[1::2] + 4)
    assert moved.score == 0.0


def test_the_score_is_the_largest_change_beyond_chance(seven):
    hasher, _, new_classes, _ = seven
    found = drift(hasher, new_classes)
    assert set(found.changes) == {"bits", "distance", "entropy", "ambiguity"}
    assert found.score == max(change.beyond_chance for change in found.changes.values())
    assert found.score == found.to_dict()["score"]


def test_values_of_rows_are_those_of_the_hasher(seven):
    hasher, normal, _, _ = seven
    (traits,) = hasher.row_traits(normal[:40])
    np.testing.assert_array_equal(traits.codes, hasher.transform(normal[:40]))
    p = hasher.predict_proba(normal[:40]).astype(np.float64)
    np.testing.assert_allclose(traits.values["entropy"], -(p * np.log(p + 1e-300)).sum(1), atol=1e-6)
    class_bits = np.setdiff1d(np.arange(24), dish.encoder.geometry_positions(24, hasher.geometry_.n_bits))
    H = np.unpackbits(traits.codes, axis=1, count=24)[:, class_bits]
    labelled = hasher.transform(np.repeat(normal[:1], 7, axis=0), labels=hasher.classes_)
    C = np.unpackbits(labelled, axis=1, count=24)[:, class_bits]
    np.testing.assert_array_equal(traits.values["distance"], (H[:, None] != C).sum(2).min(1))


def test_the_profile_is_saved_and_is_not_part_of_the_fingerprint(seven, tmp_path):
    hasher, normal, _, _ = seven
    hasher.save(tmp_path / "m.dish")
    same = dish.load(tmp_path / "m.dish")
    assert drift(same, normal).to_dict() == drift(hasher, normal).to_dict()
    same.profile_ = profile_of(hasher, normal)
    assert same.fingerprint_ == hasher.fingerprint_
    same.save(tmp_path / "m.dish")
    assert dish.load(tmp_path / "m.dish").profile_.source == "given rows"


def test_a_model_without_a_profile_needs_reference_rows():
    old = dish.load(GOLDEN / "dish.dish")
    X = np.random.default_rng(0).random((60, old.n_features_in_)).astype(np.float32)
    with pytest.raises(InputError, match="has no profile of normal rows: pass reference="):
        drift(old, X)
    assert drift(old, X[:30], reference=X[30:]).score == 0.0


def test_files_and_blocks_are_compared_like_arrays(seven, tmp_path):
    hasher, normal, _, _ = seven
    np.save(tmp_path / "X.npy", normal)
    expected = drift(hasher, normal).to_dict()
    assert drift(hasher, tmp_path / "X.npy").to_dict() == expected
    assert drift(hasher, iter(np.array_split(normal, 7))).to_dict() == expected


def test_too_few_rows_are_refused(seven):
    hasher, normal, _, _ = seven
    with pytest.raises(InputError, match="X must have at least 10 rows to be compared, got 9"):
        drift(hasher, normal[:9])
    with pytest.raises(InputError, match="reference must have at least 10 rows to be compared, got 3"):
        drift(hasher, normal, reference=normal[:3])


@pytest.mark.parametrize(
    ("make", "source", "histograms"),
    [
        (lambda: DISHK(n_bits=16, n_anchors=80), "held-out rows", ["distance", "margin"]),
        (lambda: DISHK(n_bits=16, n_anchors=80, loss="hinge"), "training rows", ["distance", "margin"]),
        (lambda: REGISTRY["lsh"](n_bits=16), None, ["margin"]),
        (lambda: DeepDISH(n_bits=12, epochs=1, n_iter=0), None, ["distance", "entropy", "ambiguity"]),
    ],
)
def test_other_hashers(seven, make, source, histograms, tmp_path):
    _, normal, _, (X, y) = seven
    hasher = make().fit(X[:400].astype(np.float32), y[:400])
    assert (None if hasher.profile_ is None else hasher.profile_.source) == source
    if source is None:
        hasher.profile_ = profile_of(hasher, normal[::2])
    hasher.save(tmp_path / "m.dish")
    hasher = dish.load(tmp_path / "m.dish")
    assert list(hasher.profile_.edges) == histograms
    found = drift(hasher, normal[1::2]).score
    assert found < (0.3 if source == "training rows" else 0.05)
    assert drift(hasher, 3 * normal[1::2] + 4).score > max(0.1, found)


def test_label_sets():
    X, Y = make_multilabel_classification(500, 8, n_classes=4, random_state=0)
    hasher = DISH(n_bits=12, n_anchors=30, kernel="rbf", n_iter=1).fit(X[:300], Y[:300])
    assert list(hasher.profile_.edges) == ["distance", "entropy", "ambiguity"]
    assert drift(hasher, X[300:]).score < 0.05
    assert drift(hasher, X[300:] + 10).score > 0.1


def test_two_rows_per_class_leave_only_training_rows():
    X = np.random.default_rng(0).normal(size=(12, 4))
    assert DISH(n_bits=8, n_anchors=6).fit(X, np.arange(12) % 6).profile_.source == "training rows"


def test_the_picture_shows_every_comparison(seven, tmp_path):
    hasher, _, new_classes, _ = seven
    found = drift(hasher, new_classes)
    figure = figures.drift_figure(found)
    assert [axis.get_xlabel() for axis in figure.axes][1] == "distance to the nearest codeword"
    style.write(figure, tmp_path / "d.png")
    assert (tmp_path / "d.png").stat().st_size > 10_000
    before, after = figure.axes[2].patches[:2]  # the bars hold all rows
    assert before.get_data().values.sum() == pytest.approx(1)
    assert after.get_data().values.sum() == pytest.approx(1)


def test_rows_outside_all_bins_are_drawn(seven):
    hasher, normal, _, _ = seven
    profile = hasher.profile_
    found = Drift.of(profile, profile.count(next(hasher.row_traits(1e4 * normal))))
    assert figures.drift_figure(found).axes[3].patches[1].get_data().values.sum() == pytest.approx(1)
