"""The scripts in examples/ work."""

import csv
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dish import metrics

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


@pytest.fixture
def paths(monkeypatch):
    """Python's path without the current folder, as the command ``dish`` has it."""
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder not in ("", str(ROOT), str(EXAMPLES))])
    yield
    sys.modules.pop("own_method", None)


@pytest.fixture
def from_examples(paths, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder of run files, so that the second call reuses those of the first."""
    return tmp_path_factory.mktemp("runs")


@pytest.mark.slow
@pytest.mark.parametrize("folder", [ROOT, EXAMPLES], ids=["root", "examples"])
def test_own_method_can_be_benchmarked(folder, paths, runs, cli, tmp_path, monkeypatch):
    """The command in its docstring works as written, in both folders that it names."""
    line = next(line for line in (EXAMPLES / "own_method.py").read_text().splitlines() if " dish bench " in line)
    variable, program, *arguments = shlex.split(line)
    assert (variable, program) == ("PYTHONPATH=examples", "dish")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder / "examples")  # what PYTHONPATH does
    code, out, err = cli(*arguments, "--results", runs, "--table", tmp_path / "t.csv")
    assert code == 0, err
    assert "own_method:MeanHash" in out
    with (tmp_path / "t.csv").open() as file:
        found = {line["method"]: float(line["map"]) for line in csv.DictReader(file)}
    assert found["own_method:MeanHash"] > found["lsh"] + 0.1  # it learns from labels


def test_own_method_is_a_hasher(from_examples, digits):
    from own_method import MeanHash

    X, y, Xq, yq = digits
    hasher = MeanHash(n_bits=20).fit(X, y)
    codes = hasher.transform(Xq)
    np.testing.assert_array_equal(codes, np.packbits(hasher.decision_function(Xq) >= 0, axis=1))
    assert metrics.mean_average_precision(codes, yq, hasher.transform(X), y) > 0.5
    with pytest.raises(ValueError, match="requires y"):
        hasher.fit(X)


def test_own_method_has_at_most_thirty_lines():
    code = (EXAMPLES / "own_method.py").read_text().split('"""\n', 2)[2].partition('if __name__ == "__main__":')[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 30


@pytest.mark.long
@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_example_runs(script, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("MPLBACKEND", "agg")
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []  # examples leave nothing behind


def test_examples_have_titles_and_say_what_is_synthetic():
    scripts = sorted(EXAMPLES.glob("*.py"))
    assert len(scripts) >= 11
    for script in scripts:
        text = script.read_text()
        title, line = text.splitlines()[1:3]
        assert line == "=" * len(title), script
        assert ("**synthetic**" in text) == any(word in text for word in ("make_blobs", "rng.choice(")), script
