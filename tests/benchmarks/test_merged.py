"""benchmarks/merged.py: joining results of runs that were made side by side."""

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import merged


def part(method, commit="a1", ridge=0.1):
    run = {"protocol": "disjoint", "trial": 0, "method": method, "bits": 64, "map": 0.5, "environment": 0}
    tuning = {"half": {"sdh": {"chosen": {"ridge": ridge}, "environment": 0}}}
    return {"what": "runs", "environments": [{"commit": commit}], "tuning": tuning, "runs": [run]}


def test_runs_keep_their_environments():
    found = merged.merged([part("sdh"), part("dish")])
    assert [(run["method"], run["environment"]) for run in found["runs"]] == [("sdh", 0), ("dish", 1)]
    assert (len(found["environments"]), found["tuning"]["half"]["sdh"]["environment"]) == (2, 0)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (part("sdh"), "two parts have the run"),
        (part("dish", commit="b2"), "several commits: a1, b2"),
        (part("dish", ridge=1.0), "sdh, half: two parts chose different settings"),
    ],
)
def test_parts_that_contradict_each_other_are_refused(other, message):
    with pytest.raises(SystemExit, match=message):
        merged.merged([part("sdh"), other])


def test_files_of_all_folders_are_joined(tmp_path, monkeypatch, capsys):
    for folder, method in (("a", "sdh"), ("b", "dish")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.json").write_text(json.dumps(part(method)))
    arguments = ["merged.py", str(tmp_path / "a"), str(tmp_path / "b"), "--output", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", arguments)
    merged.main()
    assert len(json.loads((tmp_path / "out" / "x.json").read_text())["runs"]) == 2
    assert "x.json: 2 parts, 2 runs" in capsys.readouterr().out
