"""`dish tune` prints the trials and the command to fit with."""

import json

import numpy as np
import pytest

from dish.evaluation import tune


def test_tune_prints_the_recommended_command(cli, digits, tmp_path, monkeypatch):
    X, y, *_ = digits
    np.savez(tmp_path / "d.npz", X=X[:300], y=y[:300])
    monkeypatch.setattr(tune, "CANDIDATES", {"n_bits": (16,), "n_anchors": (50,)})
    code, out, err = cli("tune", tmp_path / "d.npz", "--picture", tmp_path / "t.svg", "--minutes", 5)
    assert code == 0, err
    assert "recommended: dish fit" in out
    assert "--bits" in out
    assert "</svg>" in (tmp_path / "t.svg").read_text()
    code, out, _ = cli("tune", tmp_path / "d.npz", "--json", "--minutes", 0.0001)
    assert json.loads(out)["params"] == {"n_bits": 64}


def bad_rows():
    """Rows and labels that nothing can be learned from, and what is said about them."""
    X, y = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 3
    gap, missing = X.copy(), y.astype(float)
    gap[7, 2] = missing[5] = np.nan
    return {
        "infinity in row 7": (gap, y),
        "of shape (60,)": (X[:, 0], y),
        "of shape (0, 4)": (X[:0], y[:0]),
        "its labels have shape (50,)": (X, y[:50]),
        "the first is row 5": (X, missing),
        "1 class": (X, 0 * y),
        "too few to hold some out": (X[:1], y[:1]),
        "holds fractions": (X, X[:, 0]),
        "-1 (first in row 0)": (X, np.where(y == 0, -1, y)),
        "only 0 and 1": (X, 2 * np.eye(3, dtype=int)[y]),
        "<U32": (X.astype(str), y),
        "do not vary": (0 * X, y),
    }


@pytest.mark.parametrize("says", bad_rows())
def test_bad_rows_and_labels_are_refused_in_one_line(cli, tmp_path, says):
    X, y = bad_rows()[says]
    np.savez(tmp_path / "d.npz", X=X, y=y)
    code, _, err = cli("tune", tmp_path / "d.npz", "--minutes", 0.001)
    lines = [line for line in err.splitlines() if not line.startswith("dish: note")]
    assert (code, len(lines), says in err) == (2, 1, True), err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--minutes", "nan"), "--minutes must be a number above 0"),
        (("--seed", -1), "random_state must be"),
        (("--picture", "x.xyz"), "--picture must end in .pdf, .svg, .png"),
        (("--x-column", "a"), "--x-column is for tables with named columns"),
        (("--no-header",), "--no-header is for .csv files"),
    ],
)
def test_bad_options_are_refused_before_any_work(cli, folder, monkeypatch, options, says):
    monkeypatch.setattr(tune.HeldOut, "warm_up", lambda self: pytest.fail("started"))
    code, _, err = cli("tune", folder / "both.npz", *options)
    assert (code, says in err, len(err.strip().splitlines())) == (2, True, 1), err
