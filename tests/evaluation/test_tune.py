"""``recommend`` compares methods and parameters on held-out rows within a time limit."""

import json

import numpy as np
import pytest

import dish
from dish.evaluation import tune
from dish.evaluation.tune import HeldOut, Search, Setting, Trial, recommend

FEW = {"method": ("dish_k", "pca_itq"), "n_bits": (16,), "geometry": (0,), "n_anchors": (10**6,)}


def trial(parameter, value, score, n_train=100, seconds=1.0):
    """A trial with this MAP."""
    if parameter == "method":
        setting = Setting(parameter, value)
    else:
        setting = Setting(parameter, params={} if parameter == "defaults" else {parameter: value})
    return Trial(parameter, setting.method, dict(setting.params), 8, score, score, seconds, n_train, setting)


@pytest.fixture(scope="module")
def found(digits):
    X, y, *_ = digits
    return recommend(X[:400], y[:400], candidates=FEW, seconds=600)


def test_every_setting_is_tried_once(found):
    tried = [(t.parameter, t.value) for t in found.trials if t.parameter != "together"]
    assert tried[0] == ("defaults", "")
    assert sorted(tried[1:], key=str) == [
        ("geometry", 0),
        ("method", "dish_k"),
        ("method", "pca_itq"),
        ("n_bits", 16),
    ]
    assert found.not_tried == [("n_anchors", 10**6)]  # more than there are rows
    assert (found.n_rows, found.n_train) == (400, 240)
    assert {t.n_train for t in found.trials} == {240}
    assert all(0.2 < t.map < 1 for t in found.trials)
    assert next(t.bytes for t in found.trials if t.value == 16) == 2


def test_the_recommendation_can_be_fitted_printed_and_written(found, digits):
    X, y, *_ = digits
    assert found.hasher().set_params(n_anchors=50).fit(X[:200], y[:200]).n_bits == found.params["n_bits"]
    assert "(n_bits=" in str(found)
    assert "dish_k" in str(found)
    assert json.loads(json.dumps(found.to_dict()))["trials"][0]["map"] == found.trials[0].map


def test_a_change_must_gain_more_than_the_noise():
    default = trial("defaults", "", 0.80)
    assert trial("kernel", "linear", 0.805).score < default.score < trial("kernel", "linear", 0.815).score
    assert trial("n_bits", 256, 0.815).score < default.score < trial("n_bits", 256, 0.825).score
    assert trial("n_bits", 16, 0.775).score < default.score < trial("n_bits", 16, 0.785).score
    assert trial("method", "dish_k", 0.805).score < default.score


def test_changes_that_helped_are_tried_together_with_the_same_share_of_geometry_bits():
    done = [trial("defaults", "", 0.80), trial("n_bits", 32, 0.80), trial("n_bits", 16, 0.70)]
    done += [trial("geometry", 32, 0.85), trial("kernel", "linear", 0.75), trial("method", "dish_k", 0.9)]
    assert tune._together(done).params == {"n_bits": 32, "geometry": 16}
    assert tune._together(done[:3]) is None


class Scripted:
    """Held-out rows with known scores. A fit takes one second per 100 rows of a clock of its own."""

    def __init__(self):
        self.now = 0.0
        self.maps = {"": 0.8, "dish_k": 0.7, "linear": 0.85, "rbf": 0.3}

    def sizes(self):
        return [100, 300, 900]

    def trial(self, setting, n):
        self.now += n / 100
        return trial(setting.parameter, setting.value, self.maps[str(setting.value)], n, n / 100)


def search(monkeypatch, limit):
    """The values of every round, the best trial, the search and the time that it took."""
    held_out = Scripted()
    monkeypatch.setattr(tune.time, "perf_counter", lambda: held_out.now)
    found = Search(held_out, limit, lambda line: None)
    best = found.run(list(tune._settings({"method": ("dish_k",), "kernel": ("linear", "rbf")})))
    values = {n: {t.value for t in found.trials if t.n_train == n} for n in (100, 300, 900)}
    return values, best, found, held_out.now


@pytest.mark.parametrize(
    ("limit", "rounds"),
    [
        (20, {100: {"", "linear", "dish_k", "rbf"}, 300: {"", "linear"}, 900: set()}),
        (44, {100: set(), 300: {"", "linear", "dish_k", "rbf"}, 900: {"", "linear"}}),  # no need to start with few
        (1000, {100: set(), 300: set(), 900: {"", "linear", "dish_k", "rbf"}}),
    ],
)
def test_the_best_settings_learn_from_more_rows_as_long_as_there_is_time(monkeypatch, limit, rounds):
    values, best, found, used = search(monkeypatch, limit)
    assert (best.value, found.not_tried, used <= limit) == ("linear", [], True)
    assert values == rounds
    assert best.n_train == max(n for n, some in values.items() if some)


def test_with_little_time_some_settings_are_not_tried(monkeypatch):
    values, best, found, used = search(monkeypatch, 2.9)
    assert values == {100: {"", "dish_k"}, 300: set(), 900: set()}
    assert [s.value for s in found.not_tried] == ["linear", "rbf"]
    assert "not tried within 3 s, or with so few rows: kernel=linear, kernel=rbf" in found.notes(2.9)
    assert (best.value, used <= 2.9) == ("", True)


def test_rounds_have_at_least_five_rows_per_class():
    held_out = HeldOut.__new__(HeldOut)
    held_out.n_train = 20_000
    for n_classes, sizes in ((10, [740, 2222, 6666, 20_000]), (1000, [6666, 20_000])):
        held_out.train = None, np.arange(20_000) % n_classes
        assert held_out.sizes() == sizes


def test_a_setting_that_is_not_possible_is_reported(digits):
    X, y, *_ = digits
    found = recommend(X[:200], y[:200], candidates={"geometry": (100,)}, seconds=60)
    assert any("geometry=100 is not possible: " in note for note in found.notes)
    assert [t.parameter for t in found.trials] == ["defaults"]


def test_lists_the_settings_there_was_no_time_for(digits):
    X, y, *_ = digits
    found = recommend(X[:300], y[:300], candidates=FEW, seconds=1e-6, max_rows=200)
    assert [t.parameter for t in found.trials] == ["defaults"]
    assert ("n_bits", 16) in found.not_tried
    assert "not tried within 0 s" in str(found)
    assert "measured on 200 of 300 rows" in str(found)
    assert (found.method, found.params) == ("dish", {"n_bits": 64})


@pytest.mark.slow
def test_accepts_data_frames_and_lists_and_reports_progress(digits):
    pandas = pytest.importorskip("pandas")
    X, y, *_ = digits
    lines = []
    few = {"candidates": {"n_bits": (16,)}, "seconds": 60}
    frame = pandas.DataFrame(X[:200], index=range(1000, 1200))
    found = dish.recommend(frame, pandas.Series(y[:200], index=frame.index).astype(str), report=lines.append, **few)
    listed = dish.recommend(X[:200].tolist(), [str(label) for label in y[:200]], **few)
    assert [t.map for t in found.trials] == [t.map for t in listed.trials]
    assert "200 of 200 rows: 120 for training" in lines[0]
    assert "compiles" in lines[1]
    assert lines[-1].startswith("120 rows, n_bits=16: MAP")


def test_errors_name_the_argument(digits):
    X, y, *_ = digits
    with pytest.raises(ValueError, match="X has 9 rows, too few to hold some out"):
        recommend(X[:9], y[:9])
    with pytest.raises(ValueError, match=r"y must have n labels; got \(300, 64\) and \(299,\)"):
        recommend(X[:300], y[:299])
    with pytest.raises(ValueError, match="candidates must be method or parameters of DISH: "):
        recommend(X[:300], y[:300], candidates={"magic": (1,)})
    with pytest.raises(ValueError, match="nonsense"):
        recommend(X[:300], y[:300], candidates={"method": ("nonsense",)})
    with pytest.raises(ValueError, match="seconds must be"):
        recommend(X, y, seconds=0)
