"""Tables made from run files."""

import dataclasses

import pytest

from dish.experiments import paper, tables

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
