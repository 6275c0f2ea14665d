import pytest

from dish.deep.deep_dish import DeepDISH
from dish.photos import fine_tune


def test_durations():
    durations = {0.1: "1 s", 40: "40 s", 89: "89 s", 90: "2 min", 200: "3 min", 5399: "90 min", 7300: "2 h"}
    for seconds, text in durations.items():
        assert fine_tune.format_duration(seconds) == f"about {text}"


def test_the_hasher_is_deep_dish(tmp_path):
    hasher = fine_tune.make_hasher(16, 3, tmp_path / "checkpoint")
    assert isinstance(hasher, DeepDISH)
    assert (hasher.n_bits, hasher.epochs, hasher.weights) == (16, 3, "imagenet")
    assert fine_tune.total_epochs(3) == 3 * (hasher.n_iter + 1)


def test_the_estimate_grows_with_photos_and_epochs(monkeypatch):
    monkeypatch.setattr(fine_tune, "seconds_per_image", lambda net: 0.125)
    few = fine_tune.estimate_seconds(80, 1)
    assert few == pytest.approx(80 / 8 * (2 + 2))
    assert fine_tune.estimate_seconds(160, 1) == pytest.approx(2 * few)
    assert fine_tune.estimate_seconds(80, 5) == pytest.approx(80 / 8 * (10 + 2))
