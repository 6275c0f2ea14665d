"""`dish tune` prints the trials and the command to fit with."""

import json
import shlex

import numpy as np
import pytest

import dish
from dish import registry
from dish.evaluation import tune


@pytest.fixture
def few(monkeypatch):
    """Few settings to try."""
    monkeypatch.setattr(tune, "CANDIDATES", {"n_bits": (16,), "geometry": (0,)})


def recommended(out):
    """The words of the printed command after ``dish``."""
    return shlex.split(out[out.index("\ndish fit ") + 1 :])[1:]


@pytest.mark.slow
def test_tune_prints_the_trials_and_a_command(cli, digits, tmp_path, few):
    X, y, *_ = digits
    np.savez(tmp_path / "d.npz", X=X[:300], y=y[:300])
    code, out, err = cli("tune", tmp_path / "d.npz", "--picture", tmp_path / "t.svg", "--minutes", 5)
    assert code == 0, err
    for word in ("defaults", "n_bits", "geometry", "180", "precision@10"):
        assert word in out
    assert "--bits" in recommended(out)
    assert "</svg>" in (tmp_path / "t.svg").read_text()
    code, out, _ = cli("tune", tmp_path / "d.npz", "--json", "--minutes", 0.0001)
    found = json.loads(out)
    assert (found["method"], found["params"]) == ("dish", {"n_bits": 64})


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dish", "dish_k"])
def test_the_printed_command_runs_with_the_same_columns(cli, digits, tmp_path, monkeypatch, few, method):
    """A table with names that a shell would split, rows without a label, and a column that is neither."""
    X, y, *_ = digits
    path, chosen = tmp_path / "my rows.csv", [20, 21, 27, 28, 29, 34, 35, 36, 42, 43]
    names = [f"pixel {i}" for i in chosen]
    lines = [",".join([*map(str, row), "" if i % 9 == 0 else f"c{label}", f"id{i}"])
             for i, (row, label) in enumerate(zip(X[:200, chosen], y, strict=False))]  # fmt: skip
    path.write_text("\n".join([",".join([*names, "the class", "key"]), *lines]))
    options = [word for name in names[1:] for word in ("--x-column", name)]
    options += ["--y-column", "the class", "--id-column", "key", "--header", "--drop-missing", "--seed", 3]
    if method != "dish":
        best = tune.Trial("method", method, {}, 8, 1.0, 1.0, 1.0, 100, tune.Setting("method", method))
        monkeypatch.setattr(tune.Search, "run", lambda self, settings: best)
    code, out, err = cli("tune", path, "--minutes", 1, *options)
    assert code == 0, err
    words = recommended(out)
    monkeypatch.chdir(tmp_path)
    code, _, err = cli(*words)
    assert code == 0, err
    model = dish.load("model.dish")
    assert list(model.feature_names_in_) == names[1:]
    assert (registry.find(method), model.random_state) == (type(model), 3)
    assert len(model.codes_) == 200 - 23  # without the rows that have no label
    assert model.n_bits == int(words[words.index("--bits") + 1])


def bad_rows():
    """Rows and labels that nothing can be learned from, and what is said about them."""
    X, y = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 3
    gap, missing = X.copy(), y.astype(float)
    gap[7, 2] = missing[5] = np.nan
    return {
        "1 of 60 rows without a complete vector (row 7,": (gap, y),
        "of shape (60,)": (X[:, 0], y),
        "of shape (0, 4)": (X[:0], y[:0]),
        "its labels have shape (50,)": (X, y[:50]),
        "1 of 60 rows without a label (row 5,": (X, missing),
        "1 class": (X, 0 * y),
        "too few to hold some out": (X[:1], y[:1]),
        "holds fractions": (X, X[:, 0]),
        "20 of 60 rows without a label (-1 is none) (rows 0, 3,": (X, np.where(y == 0, -1, y)),
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
