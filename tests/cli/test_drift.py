"""`dish drift` prints a score, draws a picture, and exits with 1 at the alert."""

import json

import numpy as np
import pytest

import dish
from dish import DISHK
from dish.evaluation.drift import drift


@pytest.fixture
def model(files):
    X, y = (np.load(files / f"{name}.npy") for name in "Xy")
    path = files / "model.dish"
    DISHK(n_bits=16, n_anchors=60).fit(X, y).save(path)
    np.save(files / "moved.npy", np.load(files / "Xq.npy") + 6)
    return path


def test_the_score_decides_the_exit_code(cli, files, model):
    code, out, err = cli("drift", model, files / "Xq.npy", "--alert", 0.1)
    assert code == 0, err
    assert "200 rows, compared with 500 held-out rows" in out
    assert "score: 0.0" in out
    code, out, err = cli("drift", model, files / "moved.npy", "--alert", 0.1)
    assert (code, err) == (1, "")
    assert "distance to the nearest codeword" in out
    assert cli("drift", model, files / "moved.npy")[0] == 0  # without --alert


def test_json_and_picture(cli, files, model):
    code, out, err = cli("drift", model, files / "moved.npy", "--json", "--picture", files / "d.svg")
    assert code == 0, err
    assert json.loads(out) == drift(dish.load(model), np.load(files / "moved.npy")).to_dict()
    assert "reference rows" in (files / "d.svg").read_text()


def test_reference_rows(cli, files, model):
    code, out, _ = cli("drift", model, files / "moved.npy", "--reference", files / "moved.npy", "--json")
    assert code == 0
    assert (json.loads(out)["score"], json.loads(out)["source"]) == (0.0, "given rows")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--picture", "d.jpg"), "--picture must end in .pdf, .svg, .png"),
        (("--alert", "2"), "'--alert': Input should be less than or equal to 1"),
        (("--reference", "missing.npy"), "missing.npy"),
    ],
)
def test_bad_options_exit_with_2(cli, files, model, options, says):
    code, _, err = cli("drift", model, files / "Xq.npy", *options)
    assert code == 2
    assert says in err
