"""``reproduce`` does the missing runs, and writes tables, figures and a page."""

import csv
import dataclasses
import json

import numpy as np
import pytest

from dish.experiments import paper
from dish.experiments import reproduce as reproducing
from dish.experiments.reproduce import plan, reproduce


@pytest.mark.slow
def test_reproduce_writes_tables_figures_and_a_page(small, tmp_path):
    lines = []
    page = reproduce("all", tmp_path / "runs", tmp_path / "out", trials=2, progress=lines.append, show=lines.append)
    text = (tmp_path / "out" / "table1.md").read_text()
    runs = [small.run(small.lines[0], 8, t) for t in range(2)]
    found = [json.loads(run.path(tmp_path / "runs").read_text())["map"] for run in runs]
    assert f"{np.mean(found):.3f} ± {np.std(found):.3f} (0.900)" in text
    assert "| Other | all | – (0.500) | – (0.600) | – (1) |" in text
    assert "learned codes as the database" in text
    for name in ("table1_curves.png", "table1_curves.svg", "sensitivity.png", "sensitivity.svg"):
        assert (tmp_path / "out" / name).stat().st_size > 5000
    content = page.read_text()
    assert content.count("<svg") == 2
    assert "a note" in content
    assert "http://" not in content.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )
    assert any("digits/dish" in line for line in lines)


@pytest.mark.slow
def test_figures_use_finished_runs_and_report_missing_ones(small, tmp_path):
    lines = []
    reproduce("figures", tmp_path / "runs", tmp_path / "out", trials=1, progress=lines.append, show=lines.append)
    assert any("table1 has no finished runs" in line for line in lines)
    assert not (tmp_path / "out" / "table1_curves.png").exists()
    assert (tmp_path / "out" / "sensitivity.png").exists()


def test_unknown_table_names_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match="table1, table2"):
        reproduce("table9", tmp_path, tmp_path)


def test_without_a_gpu_deep_tables_show_finished_runs(small, tmp_path, monkeypatch):
    monkeypatch.setattr(paper, "TABLES", {"table1": dataclasses.replace(small, deep=True)})
    monkeypatch.setattr(reproducing.torch.cuda, "is_available", lambda: False)
    lines = []
    reproduce("table1", tmp_path / "runs", tmp_path / "out", trials=1, progress=lines.append, show=lines.append)
    assert any("no GPU here" in line for line in lines)
    assert not (tmp_path / "runs").exists()


def test_csv_and_latex_have_the_same_numbers_as_the_runs(small, tmp_path):
    reproduce(
        "table1", tmp_path / "runs", tmp_path / "out", trials=2, progress=lambda line: None, show=lambda text: None
    )
    with (tmp_path / "out" / "table1.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [(line["method"], line["bits"]) for line in lines] == [
        *(("DISH-K", "8"), ("DISH-K", "12"), ("Other", "8"), ("Other", "12"), ("LSH", "12"))
    ]
    runs = [small.run(small.lines[0], 12, t) for t in range(2)]
    found = [json.loads(run.path(tmp_path / "runs").read_text())["map"] for run in runs]
    assert float(lines[1]["map"]) == pytest.approx(np.mean(found))
    assert float(lines[1]["map_std"]) == pytest.approx(np.std(found))
    assert (lines[1]["paper_map"], lines[1]["trials"]) == ("0.95", "2")
    assert (lines[2]["map"], lines[2]["trials"], lines[4]["paper_map"]) == ("", "0", "")
    tex = (tmp_path / "out" / "table1.tex").read_text()
    assert r"DISH-K & all & " in tex
    assert rf"{np.mean(found):.3f} $\pm$ {np.std(found):.3f} (0.950)" in tex
    assert tex.count(r"\\") == 4


def test_plan_counts_the_missing_runs(small, tmp_path):
    found = plan("all", tmp_path / "runs", trials=2)
    assert len(found.missing) == 2 * (2 + 1) + 2 * (2 + 4)  # two lines of the table, ν and the starts
    assert found.n_unknown == len(found.missing)
    assert not (tmp_path / "runs").exists()
