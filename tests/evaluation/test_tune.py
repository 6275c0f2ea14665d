"""`dish tune`: parameters by held-out rows, within a given time."""

import json

import numpy as np
import pytest

import dish
from dish import DISH
from dish.evaluation import tune
from dish.evaluation.tune import Trial, recommend

FEW = {"n_bits": (16, 32), "n_anchors": (50, 10**6), "loss": ("ridge",)}


@pytest.fixture(scope="module")
def found(digits):
    X, y, *_ = digits
    return recommend(X[:600], y[:600], knobs=FEW, seconds=600)


def test_every_setting_is_tried_once_and_scored_as_it_should_be(found, digits):
    assert [(t.knob, t.value) for t in found.trials[:5]] == [
        ("defaults", ""), ("n_bits", 16), ("n_anchors", 50), ("loss", "ridge"), ("n_bits", 32)
    ]  # fmt: skip
    assert found.not_tried == []
    assert (found.n_rows, found.n_train) == (600, 360)
    assert all(0.5 < t.map < 1 for t in found.trials)
    assert found.trials[1].bytes == 2
    DISH(**found.params).get_params()
    assert "DISH(n_bits=" in str(found)
    json.dumps(found.to_dict())


def test_what_is_recommended():
    def trial(knob, value, score):
        return Trial(knob, tune.DEFAULTS | ({} if knob == "defaults" else {knob: value}), 8, score, score, 1.0)

    trials = [trial("defaults", "", 0.80), trial("n_bits", 32, 0.795), trial("n_bits", 16, 0.70)]
    trials += [trial("loss", "ridge", 0.75), trial("n_anchors", 300, 0.82), trial("n_anchors", 3000, 0.85)]
    assert tune._shortest(trials) == 32
    assert tune._helped(trials) == {"n_anchors": 3000}
    assert tune._best_alone(trials) == {"n_anchors": 3000}
    assert tune._best_alone(trials[:4]) == {}


def test_no_time_is_said(digits):
    X, y, *_ = digits
    found = recommend(X[:300], y[:300], knobs=FEW, seconds=1e-6, max_rows=200)
    assert len(found.trials) == 1
    assert found.not_tried == [("n_bits", 16), ("n_anchors", 50), ("loss", "ridge"), ("n_bits", 32)]
    assert "not tried, for want of time" in str(found)
    assert "on 200 of 300 rows" in str(found)
    assert found.params == {"n_bits": 64}


def test_frames_and_lists_do_and_it_says_what_it_does(digits):
    pandas = pytest.importorskip("pandas")
    X, y, *_ = digits
    lines = []
    few = {"knobs": {"n_bits": (16,)}, "seconds": 60}
    frame = pandas.DataFrame(X[:200], index=range(1000, 1200))
    found = dish.recommend(frame, pandas.Series(y[:200], index=frame.index).astype(str), report=lines.append, **few)
    listed = dish.recommend(X[:200].tolist(), [str(label) for label in y[:200]], **few)
    assert [t.map for t in found.trials] == [t.map for t in listed.trials]
    assert "200 of 200 rows: learning from 120" in lines[0]
    assert "compile" in lines[1]
    assert lines[-1].startswith("n_bits=16: MAP")


def test_errors_name_the_argument(digits):
    X, y, *_ = digits
    with pytest.raises(ValueError, match="X has 9 rows, too few to hold some out"):
        recommend(X[:9], y[:9])
    with pytest.raises(ValueError, match=r"y have a label for each; got \(300, 64\) and \(299,\)"):
        recommend(X[:300], y[:299])
    with pytest.raises(ValueError, match="knobs must be some of n_bits"):
        recommend(X[:300], y[:300], knobs={"magic": (1,)})
    with pytest.raises(ValueError, match="seconds must be"):
        recommend(X, y, seconds=0)


def test_the_command(cli, digits, tmp_path, monkeypatch):
    X, y, *_ = digits
    np.savez(tmp_path / "d.npz", X=X[:300], y=y[:300])
    monkeypatch.setattr(tune, "KNOBS", {"n_bits": (16,), "loss": ("ridge",)})
    code, out, err = cli("tune", tmp_path / "d.npz", "--picture", tmp_path / "t.svg", "--minutes", 5)
    assert code == 0, err
    assert "recommended: dish fit" in out
    assert "--bits" in out
    assert "</svg>" in (tmp_path / "t.svg").read_text()
    code, out, _ = cli("tune", tmp_path / "d.npz", "--json", "--minutes", 0.0001)
    assert json.loads(out)["params"] == {"n_bits": 64}
