"""The scripts in examples/ work."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dish import metrics

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def from_examples(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    yield
    sys.modules.pop("own_method", None)


def test_own_method_can_be_benchmarked(from_examples, cli, tmp_path, digits):
    code, out, err = cli(
        "bench", "--data", "digits", "--methods", "lsh,own_method:MeanHash", "--bits", 32,
        "--results", tmp_path / "runs", "--table", tmp_path / "t.csv",
    )  # fmt: skip
    assert code == 0, err
    assert "own_method:MeanHash" in out
    lines = [line.split(",") for line in (tmp_path / "t.csv").read_text().splitlines()[1:]]
    found = {line[0]: float(line[4]) for line in lines}
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
