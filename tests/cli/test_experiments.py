"""`dish bench` and `dish reproduce` as people type them."""

import csv
import json

import numpy as np

from dish.experiments import paper


def features(folder, separation):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 600)
    folder.mkdir()
    np.save(folder / "features.npy", rng.standard_normal((600, 8)) + separation * rng.standard_normal((3, 8))[y])
    np.save(folder / "features_labels.npy", y)
    return folder / "features.npy"


def test_two_files_of_one_name_have_their_own_results(cli, tmp_path):
    """The second used to show the MAP of the first."""
    shown = {}
    for name, separation in (("a", 3.0), ("b", 0.05)):
        path = features(tmp_path / name, separation)
        arguments = ("bench", "--data", path, "--methods", "lsh", "--bits", "16", "--results", tmp_path / "runs")
        code, shown[name], _ = cli(*arguments)
        assert code == 0
    line = {name: next(line for line in text.splitlines() if "lsh" in line) for name, text in shown.items()}
    assert line["a"] != line["b"]
    code, again, errors = cli(*arguments)
    assert (code, again) == (0, shown["b"])
    assert "1 finished runs reused (--force to run again)" in errors


def test_a_dry_run_runs_nothing(cli, tmp_path):
    arguments = ("bench", "--data", "digits", "--methods", "lsh,sh", "--bits", "8,16", "--results", tmp_path / "runs")
    code, out, _ = cli(*arguments, "--dry-run")
    assert code == 0
    assert "4 runs to do, 0 finished runs reused" in out
    assert "no estimate for the other 4" in out
    assert not (tmp_path / "runs").exists()
    code, out, _ = cli("reproduce", "sensitivity", "--trials", "5", "--results", tmp_path / "runs", "--dry-run")
    assert (code, "95 runs to do" in out) == (0, True)


def test_tables_and_a_class_of_ones_own(cli, tmp_path, monkeypatch):
    (tmp_path / "my_module.py").write_text("from dish.baselines.lsh import LSH\nclass MyHasher(LSH): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    common = ("bench", "--methods", "lsh,my_module:MyHasher", "--bits", "8,16", "--results", tmp_path / "runs")
    for ending in ("csv", "md", "tex"):
        code, out, errors = cli(*common, "--table", tmp_path / f"t.{ending}")
        assert code == 0, errors
    with (tmp_path / "t.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["method"] for line in lines] == ["lsh"] * 2 + ["my_module:MyHasher"] * 2
    assert lines[0]["map"] == lines[2]["map"]
    shown = f"{float(lines[1]['map']):.3f}"
    assert f" {shown} |" in (tmp_path / "t.md").read_text()
    assert f"& {shown} &" in (tmp_path / "t.tex").read_text()
    assert shown in out
    for name in ("cosine of the floats", "float ceiling"):  # in every table, asked for or not
        assert name in out
        assert name in (tmp_path / "t.md").read_text()
    code, _, errors = cli(*common, "--table", tmp_path / "t.xls")
    assert (code != 0, ".md, .tex, .csv" in errors) == (True, True)
    code, _, errors = cli("bench", "--methods", "my_module:Nothing")
    assert (code != 0, "has no Nothing" in errors) == (True, True)


def test_a_method_that_fails_is_said_and_the_others_run(cli, tmp_path, monkeypatch):
    lines = (
        "from dish.baselines.lsh import LSH",
        "class Broken(LSH):",
        "    def fit(self, X, y=None): raise OSError('off')",
    )
    (tmp_path / "broken_module.py").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    code, out, _ = cli("bench", "--methods", "broken_module:Broken,lsh", "--bits", 8, "--results", tmp_path / "runs")
    assert code == 1
    assert "OSError: off" in out.replace("\n", "")
    assert any("map" in json.loads(path.read_text()) for path in (tmp_path / "runs").rglob("*lsh*.json"))


def test_a_table_with_a_run_that_failed_is_written_and_said(cli, tmp_path, monkeypatch):
    lines = (paper.Line("LSH", "lsh", None, (0.5,)), paper.Line("Broken", "lsh", None, (0.5,), params=(("typo", 1),)))
    table = paper.PaperTable("Table 1. digits: MAP", "digits", (8,), 8, lines)
    monkeypatch.setattr(paper, "TABLES", {"table1": table})
    arguments = ("reproduce", "table1", "--trials", "1", "-o", tmp_path / "out", "--results", tmp_path / "runs")
    code, out, _ = cli(*arguments)
    assert code == 1
    assert "typo" in out.split("failed: ")[1]
    assert "LSH" in (tmp_path / "out" / "table1.md").read_text()
    monkeypatch.setattr(paper, "TABLES", {"table1": paper.PaperTable(table.title, "digits", (8,), 8, lines[:1])})
    assert cli(*arguments)[0] == 0
