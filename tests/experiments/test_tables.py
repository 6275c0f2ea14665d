"""Tables made from run files."""

import csv
import dataclasses
import shutil
import subprocess

import numpy as np
import pytest

from dish.experiments import paper, tables
from dish.experiments.bench import AVERAGE_PRECISIONS, Run

MACHINE = {"cpu": "Fast", "cores": 2, "commit": "abc"}
RESULT = {"definition": {"synthetic": False}, "map": 0.5, "fit_s": 1.0, "environment": MACHINE}


def test_title_names_a_synthetic_stand_in(small):
    run = small.run(small.lines[0], 8, 0)
    for synthetic in (True, False):
        results = {run: {**RESULT, "definition": {"data": "digits", "synthetic": synthetic}}}
        assert ("a synthetic stand-in" in tables.markdown(small, results, 1)) == synthetic


def test_latex_escapes_special_characters():
    assert r"50\%\_a" in tables.latex_grid(["50%_a"], [["{b}&~"]])
    assert r"\{b\}\&\textasciitilde{}" in tables.latex_grid(["50%_a"], [["{b}&~"]])


def test_latex_has_signs_as_mathematics_and_the_best_codes_in_bold():
    cells = [["a-b", "-0.5 [-0.6, +0.1]", "< 0.001"], ["DISH-K, 1e-5", "**Mixed.** 5–10", "α > 2 − 1"]]
    lines = tables.latex_grid(["x", "y", "z"], cells, {(0, 0)}).splitlines()
    assert lines[4] == r"\textbf{a-b} & $-$0.5 [$-$0.6, $+$0.1] & $<$ 0.001 \\"
    assert lines[5] == r"DISH-K, 1e-5 & \textbf{Mixed.} 5--10 & $\alpha$ $>$ 2 $-$ 1 \\"


def test_best_cells_are_the_highest_printed_numbers_of_codes():
    rows = [["floats", "0.9", "0.9"], ["a", "0.500 ± 0.100 (0.8)", "0.2"], ["b", "0.500 ± 0.002", "failed"]]
    rows.append(["c", "0.499", "– (0.7)"])
    assert tables.best_cells(rows, (1, 2), [0]) == {(1, 1), (2, 1)}  # one number alone is not the best of several
    bold = tables.latex_grid(["", "", ""], rows, {(1, 1)})
    assert r"a & \textbf{0.500 $\pm$ 0.100} (0.8) & 0.2" in bold


@pytest.fixture
def compared():
    """Runs of two methods and a float ranking, with average precisions of 40 queries."""
    runs = [Run("digits", method, 16) for method in ("l2", "lsh", "own_module:My_Hash")]
    rng = np.random.default_rng(0)
    maps = {run: rng.uniform(low, 1, 40) for run, low in zip(runs, (0.9, 0.2, 0.5), strict=True)}
    return {run: {**RESULT, "map": float(v.mean()), AVERAGE_PRECISIONS: v.tolist()} for run, v in maps.items()}


def test_latex_of_bench(compared, tmp_path):
    tables.write_bench(tmp_path / "t.tex", "digits: MAP", list(compared), compared)
    text = (tmp_path / "t.tex").read_text()
    best, other = (result["map"] for result in list(compared.values())[:0:-1])
    assert text.startswith("% needs \\usepackage{booktabs}")
    assert rf"own\_module:My\_Hash & all & \textbf{{{best:.3f}}} & 1.00" in text
    assert rf"lsh & all & {other:.3f} & 1.00" in text
    assert "$<$ 0.001" in text
    assert " -0" not in text
    assert "[-" not in text


def test_latex_compiles(compared, small, tmp_path):
    if not shutil.which("pdflatex"):
        pytest.skip(
            "pdflatex is not on this machine (Debian: texlive-latex-base, texlive-latex-recommended, lmodern)"
        )
    tables.write_bench(tmp_path / "bench.tex", "digits: MAP", list(compared), compared)
    runs = small.runs(["dish_k", "lsh"], 2)
    mixed = {run: {**RESULT, "environment": {**MACHINE, "commit": f"a_{run.bits}+"}} for run in runs}
    (tmp_path / "paper.tex").write_text(tables.latex(small, mixed, 2))
    packages = r"\documentclass{article}\usepackage[T1]{fontenc}\usepackage{lmodern,booktabs}"
    text = packages + r"\begin{document}\input{bench}\input{paper}\end{document}"
    (tmp_path / "all.tex").write_text(text)
    done = subprocess.run(
        ["pdflatex", "-halt-on-error", "all.tex"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Missing character" not in (tmp_path / "all.log").read_text(errors="replace")
    assert (tmp_path / "all.pdf").stat().st_size > 10_000


def test_csv_marks_stand_ins(compared, small, tmp_path):
    stand_in = {run: {**result, "definition": {"synthetic": True}} for run, result in compared.items()}
    for results, mark in ((compared, "False"), (stand_in, "True")):
        tables.write_bench(tmp_path / "t.csv", "t", list(results), results)
        with (tmp_path / "t.csv").open() as file:
            assert {(line["data"], line["synthetic"]) for line in csv.DictReader(file)} == {("digits", mark)}


def test_float_rankings_fill_all_columns(small):
    table = dataclasses.replace(small, lines=(paper.Line("Ceiling", "ceiling", bits=(8,)),))
    (run,) = table.runs(["ceiling"], 1)
    results = {run: {"map": 0.9, "definition": {"synthetic": False}, "environment": MACHINE}}
    assert "| Ceiling | all | 1 | 0.900 | 0.900 | – |" in tables.markdown(table, results, 1)


def test_finding_names_the_best_of_ours_and_of_the_rivals(small):
    ours, _, lsh = small.lines
    runs = {0.9: small.run(ours, small.time_bits, 0), 0.4: small.run(lsh, small.time_bits, 0)}
    results = {run: {"map": score, "definition": {"synthetic": False}} for score, run in runs.items()}
    text = tables.finding(small, results, 1)
    assert "the best of DISH is DISH-K (all training rows) with a MAP of 0.900 (the paper: 0.950)" in text
    assert "the best of the other methods is LSH (500 training rows) with a MAP of 0.400" in text
    assert tables.finding(small, {}, 1) == ""


def test_every_line_has_its_number_of_trials(small):
    runs = [small.run(small.lines[0], r, t) for r, trials in ((8, 3), (12, 1)) for t in range(trials)]
    rows = tables.table_rows(small, dict.fromkeys(runs, RESULT), 5, None)
    assert [row[2] for row in rows] == ["1–3", "–", "–"]


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({}, ["Fit times: Fast, 2 cores.", "All runs are of commit abc (3)."]),
        (
            {"cpu": "Slow"},
            [
                "Fit times: Fast, 2 cores, unless listed here; Slow, 2 cores: LSH (500).",
                "Compare times of one machine only.",
            ],
        ),
        ({"gpu": "G"}, ["unless listed here; G, 2 cores: LSH (500)"]),
        ({"commit": "def"}, ["**Mixed code.**", "abc (2), def (1)."]),
        ({"commit": "abc+"}, ["**Mixed code.**", "abc (2), abc+ (1)."]),
    ],
)
def test_notes_name_machines_and_commits(small, other, expected):
    ours, _, lsh = small.lines
    runs = [small.run(ours, 12, 0), small.run(ours, 12, 1), small.run(lsh, 12, 0)]
    results = {**dict.fromkeys(runs, RESULT), runs[2]: {**RESULT, "environment": {**MACHINE, **other}}}
    text = tables.markdown(small, results, 2)
    assert [part for part in expected if part not in text] == []


def test_times_of_runs_side_by_side_are_upper_bounds(small):
    run = small.run(small.lines[0], 12, 0)
    assert "Up to 4 runs shared the machine" in tables.markdown(small, {run: {**RESULT, "runs_at_a_time": 4}}, 1)
