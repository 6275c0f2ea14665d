"""``recommend`` tries parameters on held-out rows within a time limit."""

import json

import pytest

import dish
from dish import DISH
from dish.evaluation import tune
from dish.evaluation.tune import Trial, recommend

FEW = {"n_bits": (16, 32), "n_anchors": (50, 10**6), "kernel": ("linear",)}


@pytest.fixture(scope="module")
def found(digits):
    X, y, *_ = digits
    return recommend(X[:600], y[:600], candidates=FEW, seconds=600)


def test_every_setting_is_tried_once(found, digits):
    assert [(t.parameter, t.value) for t in found.trials[:5]] == [
        ("defaults", ""), ("n_bits", 16), ("n_anchors", 50), ("kernel", "linear"), ("n_bits", 32)
    ]  # fmt: skip
    assert found.not_tried == []
    assert (found.n_rows, found.n_train) == (600, 360)
    assert all(0.5 < t.map < 1 for t in found.trials)
    assert found.trials[1].bytes == 2
    DISH(**found.params).get_params()
    assert "DISH(n_bits=" in str(found)
    json.dumps(found.to_dict())


def test_recommends_the_shortest_code_and_what_helped():
    def trial(parameter, value, score):
        changed = {} if parameter == "defaults" else {parameter: value}
        return Trial(parameter, tune.DEFAULTS | changed, 8, score, score, 1.0)

    trials = [trial("defaults", "", 0.80), trial("n_bits", 32, 0.795), trial("n_bits", 16, 0.70)]
    trials += [trial("kernel", "linear", 0.75), trial("n_anchors", 300, 0.82), trial("n_anchors", 3000, 0.85)]
    assert tune._shortest(trials) == 32
    assert tune._helped(trials) == {"n_anchors": 3000}
    assert tune._best_alone(trials) == {"n_anchors": 3000}
    assert tune._best_alone(trials[:4]) == {}


def test_lists_the_settings_there_was_no_time_for(digits):
    X, y, *_ = digits
    found = recommend(X[:300], y[:300], candidates=FEW, seconds=1e-6, max_rows=200)
    assert len(found.trials) == 1
    assert found.not_tried == [("n_bits", 16), ("n_anchors", 50), ("kernel", "linear"), ("n_bits", 32)]
    assert "not tried within 0 s" in str(found)
    assert "measured on 200 of 300 rows" in str(found)
    assert found.params == {"n_bits": 64}


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
    assert lines[-1].startswith("n_bits=16: MAP")


def test_errors_name_the_argument(digits):
    X, y, *_ = digits
    with pytest.raises(ValueError, match="X has 9 rows, too few to hold some out"):
        recommend(X[:9], y[:9])
    with pytest.raises(ValueError, match=r"y must have n labels; got \(300, 64\) and \(299,\)"):
        recommend(X[:300], y[:299])
    with pytest.raises(ValueError, match="candidates must be parameters of DISH: "):
        recommend(X[:300], y[:300], candidates={"magic": (1,)})
    with pytest.raises(ValueError, match="seconds must be"):
        recommend(X, y, seconds=0)
