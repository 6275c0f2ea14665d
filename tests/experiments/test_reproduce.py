import csv
import dataclasses
import json

import numpy as np
import pytest

from dish.experiments import figures, paper, report, tables
from dish.experiments import reproduce as reproducing
from dish.experiments.reproduce import plan, reproduce


@pytest.fixture
def small(monkeypatch):
    """The first table shrunk to digits, a few lines and one trial."""
    lines = (
        paper.Line("DISH-K", "dish_k", None, (0.9, 0.95), 3.0, params=(("n_anchors", 40),)),
        paper.Line("Other", "not_there", None, (0.5, 0.6), 1.0),
        paper.Line("LSH", "lsh", 500, bits=(12,)),
    )
    table = paper.Table("Table 1. digits: MAP", "digits", (8, 12), 12, lines, note="a note")
    monkeypatch.setattr(paper, "TABLES", {"table1": table})
    monkeypatch.setattr(paper, "SENSITIVITY_DATA", "digits")
    monkeypatch.setattr(paper, "SENSITIVITY_TRAIN", 200)
    monkeypatch.setattr(paper, "SENSITIVITY_BITS", 8)
    monkeypatch.setattr(paper, "NUS", (1e-4, 1e-2))
    monkeypatch.setattr(paper, "ITERATIONS", (0, 1))
    return table


@pytest.mark.slow
def test_reproduce_writes_tables_figures_and_a_page(small, tmp_path):
    said = []
    page = reproduce("all", tmp_path / "runs", tmp_path / "out", trials=2, say=said.append)
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
    assert any("digits/dish" in line for line in said)


@pytest.mark.slow
def test_figures_come_from_finished_runs_and_say_what_is_missing(small, tmp_path):
    said = []
    reproduce("figures", tmp_path / "runs", tmp_path / "out", trials=1, say=said.append)
    assert any("no runs of table1 yet" in line for line in said)
    assert not (tmp_path / "out" / "table1_curves.png").exists()
    assert (tmp_path / "out" / "sensitivity.png").exists()


def test_a_synthetic_stand_in_is_named_in_the_title(small):
    run = small.run(small.lines[0], 8, 0)
    for synthetic in (True, False):
        results = {run: {"definition": {"data": "digits", "synthetic": synthetic}, "map": 0.5, "fit_s": 1.0}}
        assert ("a synthetic stand-in" in tables.markdown(small, results, 1)) == synthetic


def test_reproduce_names_what_there_is(tmp_path):
    with pytest.raises(ValueError, match="table1, table2"):
        reproduce("table9", tmp_path, tmp_path)


def test_the_papers_tables_are_complete():
    for table in paper.TABLES.values():
        for line in table.lines:
            assert not line.map or len(line.map) == len(table.bits)
    assert len(paper.sensitivity_runs(5)) == 5 * (len(paper.NUS) + 2 * len(paper.ITERATIONS))


def test_deep_tables_without_a_gpu_show_what_is_finished(small, tmp_path, monkeypatch):
    monkeypatch.setattr(paper, "TABLES", {"table1": dataclasses.replace(small, deep=True)})
    monkeypatch.setattr(reproducing.torch.cuda, "is_available", lambda: False)
    said = []
    reproduce("table1", tmp_path / "runs", tmp_path / "out", trials=1, say=said.append)
    assert any("no GPU here" in line for line in said)
    assert not (tmp_path / "runs").exists()


def test_tables_for_computers_and_papers(small, tmp_path):
    reproduce("table1", tmp_path / "runs", tmp_path / "out", trials=2, say=lambda line: None)
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
    assert tables.latex_grid(["50%_a"], [["{b}&~"]]).count("\\") >= 8


def test_the_page_says_what_a_table_shows(small):
    def result(score, synthetic=False):
        return {"map": score, "definition": {"synthetic": synthetic}}

    ours, _, lsh = small.lines
    results = {small.run(ours, small.time_bits, 0): result(0.9), small.run(lsh, small.time_bits, 0): result(0.4)}
    text = tables.reading(small, results, 1)
    assert "the best of DISH is DISH-K (all training rows) with a MAP of 0.900 (the paper: 0.950)" in text
    assert "the best of the other methods is LSH (500 training rows) with a MAP of 0.400" in text
    assert tables.reading(small, {}, 1) == ""
    page = report.html_table(small, results, 1, None, "<figure></figure>")
    assert text in page
    assert "</p><figure></figure><div class='scroll'><table>" in page
    assert "<mark>" not in page
    assert "<mark>synthetic data</mark>" in report.html_table(
        small, {small.run(ours, 12, 0): result(0.9, synthetic=True)}, 1, None
    )


def test_only_our_own_rows_are_marked_as_ours(small):
    """COSDISH has DISH in its name, too."""
    lines = (*small.lines, paper.Line("COSDISH", "cosdish", None), paper.Line("DISH", "dish", None))
    text = report.html_table(dataclasses.replace(small, lines=lines), {}, 1, None)
    assert text.count('class="ours"') == 2


def test_drawing_leaves_matplotlibs_backend_alone(small):
    import matplotlib

    before = matplotlib.get_backend()
    matplotlib.use("svg")
    try:
        figures.sensitivity_figure({}, 1)
        assert matplotlib.get_backend() == "svg"
    finally:
        matplotlib.use(before)


def test_a_plan_says_what_a_table_would_take(small, tmp_path):
    found = plan("all", tmp_path / "runs", trials=2)
    assert len(found.missing) == 2 * (2 + 1) + 2 * (2 + 4)  # two lines of the table, ν and the starts
    assert found.n_unknown == len(found.missing)
    assert not (tmp_path / "runs").exists()


def drawn(table, results):
    return figures.method_figure(table, results, 1).axes


def looks(axis):
    """Colour and dashes of every line, by what matplotlib draws."""
    return [(line.get_color(), str(line._unscaled_dash_pattern)) for line in axis.lines]


def test_lines_are_drawn_in_different_ways(small):
    """More rivals and more of our own than any table has: in every panel no two look the same, markers left aside."""
    count = {"R": 32, "DISH": 12}
    lines = tuple(paper.Line(f"{k}{i}", "lsh", None, params=((k, i),)) for k, n in count.items() for i in range(n))
    table = dataclasses.replace(small, lines=lines)
    one = {"map": 0.4, "precision_within_2": 0.5, "curve_recall": [0, 1], "curve_precision": [1, 0]}
    one |= {"precision_at": {"1": 1.0}, "definition": {"synthetic": False}}
    for axis in drawn(table, dict.fromkeys(table.runs(["lsh"], 1), one)):
        assert len(axis.lines) == 44
        assert len(set(looks(axis))) == 44


def test_rankings_by_real_numbers_are_level_lines_and_fill_their_row(small):
    lines = (*small.lines, paper.Line("Cosine", "l2", None, bits=(8,)), paper.Line("Ceiling", "ceiling", bits=(8,)))
    table = dataclasses.replace(small, lines=lines)
    found = {"l2": 0.6, "ceiling": 0.9}
    runs = table.runs(["l2", "ceiling"], 1)
    assert len(runs) == 2
    results = {run: {"map": found[run.method], "definition": {"synthetic": False}} for run in runs}
    level = drawn(table, results)[0].lines
    assert [(line.get_label(), list(line.get_ydata())) for line in level] == [
        ("Cosine", [0.6, 0.6]),
        ("Ceiling", [0.9, 0.9]),
    ]
    assert "| Ceiling | all | 0.900 | 0.900 | – |" in tables.markdown(table, results, 1)
