"""``reproduce`` does the missing runs, and writes tables, figures and a page."""

import csv
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from dish.experiments import paper
from dish.experiments import reproduce as reproducing
from dish.experiments.reproduce import Reproduction, fill_page, plan, reproduce

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_reproduce_writes_tables_figures_and_a_page(small, tmp_path):
    lines = []
    job = Reproduction("all", 2)
    page = reproduce(job, tmp_path / "runs", tmp_path / "out", progress=lines.append, show=lines.append)
    text = (tmp_path / "out" / "table1.md").read_text()
    runs = [small.run(small.lines[0], 8, t) for t in range(2)]
    found = [json.loads(run.path(tmp_path / "runs").read_text())["map"] for run in runs]
    assert f"{np.mean(found):.3f} ± {np.std(found):.3f} (0.900)" in text
    assert "| Other | all | – | – (0.500) | – (0.600) | – (1) |" in text
    learned = np.mean([json.loads(run.path(tmp_path / "runs").read_text())["map_learned_codes"] for run in runs])
    assert "learned codes of the training rows as the database" in text
    assert f"| DISH-K | all | 2 | {learned:.3f}" in text
    marks = ("<!-- table1: begin -->\n", "<!-- table1: end -->\n")
    (tmp_path / "page.md").write_text(f"before\n{marks[0]}old\n{marks[1]}after\n")
    fill_page(job, tmp_path / "runs", tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text() == f"before\n{marks[0]}{text}{marks[1]}after\n"
    with pytest.raises(ValueError, match=r"page.md needs a line <!-- coverage: begin -->"):
        fill_page(Reproduction("coverage"), tmp_path / "runs", tmp_path / "page.md")
    for name in ("table1_curves.svg", "sensitivity.svg"):
        assert (tmp_path / "out" / name).stat().st_size > 5000
    content = page.read_text()
    assert content.count("<svg") == 2
    assert "a note" in content
    assert "http://" not in content.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )
    assert any("digits/dish" in line for line in lines)


def test_figures_use_finished_runs_and_do_none(small, tmp_path, monkeypatch):
    def download(*_):
        raise AssertionError("data were loaded")

    results = {"map": 0.5, "precision_within_2": 0.4, "curve_recall": [0, 1], "curve_precision": [1, 0]}
    results |= {"precision_at": {"1": 1.0}, "environment": {"cpu": "c", "cores": 2, "commit": "a", "python": "3"}}
    results["environment"]["versions"] = {"torch": "2"}
    monkeypatch.setattr(reproducing.bench, "load_data", download)

    def draw():
        lines = []
        assert str(plan(Reproduction("figures", 1), tmp_path / "runs")).startswith("0 runs to do")
        reproduce(Reproduction("figures", 1), tmp_path / "runs", tmp_path / "out", progress=lines.append)
        return lines, sorted(path.name for path in (tmp_path / "out").glob("*.svg"))

    missing = [
        f"{name} has no finished runs: do them with dish reproduce {name}" for name in ("table1", "sensitivity")
    ]
    assert draw() == (missing, [])
    for run in (*paper.sensitivity_runs(1), *small.runs(["dish_k", "lsh"], 1)):
        path = run.path(tmp_path / "runs")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"definition": {**run.definition(), "synthetic": False}, **results}))
    assert draw() == ([], ["sensitivity.svg", "table1_curves.svg"])


def test_a_single_cell_is_one_run(small, tmp_path):
    """One method, one code length, one trial: what --dry-run counts is what is done, and then nothing is missing."""
    job = Reproduction("table1", 1, methods=["lsh"], bits=[12])
    assert str(plan(job, tmp_path / "runs")).startswith("1 runs to do, 0 finished runs reused")
    reproduce(job, tmp_path / "runs", tmp_path / "out", progress=lambda line: None, show=lambda text: None)
    (run,) = (tmp_path / "runs").rglob("*.json")
    found = json.loads(run.read_text())
    assert (found["definition"]["method"], found["definition"]["bits"]) == ("lsh", 12)
    assert f"| LSH | 500 | 1 | {found['map']:.3f} |" in (tmp_path / "out" / "table1.md").read_text()
    assert str(plan(job, tmp_path / "runs")) == "0 runs to do, 1 finished runs reused"


def test_wrong_requests_name_what_is_allowed(small):
    for options, message in (
        ({"what": "table9"}, "table1, table2"),
        ({"what": "all", "bits": [8]}, "belong to a single table; got 'all'"),
        ({"what": "table1", "labels": Path("y.npy")}, "belong to your own data"),
        ({"what": "table1", "methods": ["sdh"]}, "methods must be among dish_k, not_there, lsh; got sdh"),
        ({"what": "table1", "bits": [16]}, "bits must be among 8, 12; got 16"),
        ({"what": "table1", "methods": ["lsh"], "bits": [8]}, "no line of the table has these"),
    ):
        with pytest.raises(ValueError, match=message):
            Reproduction(**options)


def test_without_a_gpu_deep_tables_show_finished_runs(small, tmp_path, monkeypatch):
    monkeypatch.setattr(paper, "TABLES", {"table1": dataclasses.replace(small, deep=True)})
    monkeypatch.setattr(reproducing.torch.cuda, "is_available", lambda: False)
    lines, job = [], Reproduction("table1", 1)
    reproduce(job, tmp_path / "runs", tmp_path / "out", progress=lines.append, show=lines.append)
    assert any("no GPU here" in line for line in lines)
    assert not (tmp_path / "runs").exists()
    found = str(plan(job, tmp_path / "runs"))
    assert "3 runs to do" in found
    assert "3 of them need a GPU" in found
    monkeypatch.setattr(reproducing.torch.cuda, "is_available", lambda: True)
    assert "GPU" not in str(plan(job, tmp_path / "runs"))


def test_csv_and_latex_have_the_same_numbers_as_the_runs(small, tmp_path):
    job = Reproduction("table1", 2)
    reproduce(job, tmp_path / "runs", tmp_path / "out", progress=lambda line: None, show=lambda text: None)
    with (tmp_path / "out" / "table1.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert {line["data"] for line in lines} == {"digits"}
    assert [(line["method"], line["bits"]) for line in lines] == [
        *(("DISH-K", "8"), ("DISH-K", "12"), ("Other", "8"), ("Other", "12"), ("LSH", "12"))
    ]
    runs = [small.run(small.lines[0], 12, t) for t in range(2)]
    found = [json.loads(run.path(tmp_path / "runs").read_text())["map"] for run in runs]
    assert float(lines[1]["map"]) == pytest.approx(np.mean(found))
    assert float(lines[1]["map_std"]) == pytest.approx(np.std(found))
    assert (lines[1]["paper_map"], lines[1]["trials"]) == ("0.95", "2")
    assert (lines[2]["map"], lines[2]["trials"], lines[4]["paper_map"]) == ("", "0", "")
    assert [line["synthetic"] for line in lines] == ["False", "False", "", "", "False"]
    tex = (tmp_path / "out" / "table1.tex").read_text()
    assert r"DISH-K & all & 2 & " in tex
    assert rf"\textbf{{{np.mean(found):.3f} $\pm$ {np.std(found):.3f}}} (0.950)" in tex  # better than LSH
    assert tex.count(r"\\") == 4


def test_plan_counts_the_missing_runs(small, tmp_path):
    found = plan(Reproduction("all", 2), tmp_path / "runs")
    assert len(found.missing) == 2 * (2 + 1) + 2 * (2 + 4)  # two lines of the table, ν and the starts
    assert found.n_unknown == len(found.missing)
    assert not (tmp_path / "runs").exists()


def test_data_that_cannot_be_had_are_named(small, monkeypatch):
    monkeypatch.setattr(paper, "TABLES", {"table1": dataclasses.replace(small, data="nuswide_images")})
    job = Reproduction("table1", 1)
    assert job.runs() == []
    assert job.unavailable()[0] == "table1, DISH-K: we could not obtain the images of NUS-WIDE"


@pytest.mark.parametrize("page", ["reproduce.md", "paper.md"])
def test_pages_have_exactly_what_the_command_writes(page, tmp_path):
    text = (ROOT / "docs" / page).read_text()
    (tmp_path / page).write_text(text)
    fill_page(Reproduction("all"), ROOT / "benchmarks" / "results" / "runs", tmp_path / page)
    assert (tmp_path / page).read_text() == text, f"run: dish reproduce all --page docs/{page}"
    names = ["coverage"] if page == "paper.md" else list(paper.TABLES)
    assert [name for name in names if f"<!-- {name}: begin -->" not in text] == []
