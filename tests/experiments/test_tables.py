"""Tables made from run files."""

import dataclasses

from dish.experiments import paper, tables


def test_title_names_a_synthetic_stand_in(small):
    run = small.run(small.lines[0], 8, 0)
    for synthetic in (True, False):
        results = {run: {"definition": {"data": "digits", "synthetic": synthetic}, "map": 0.5, "fit_s": 1.0}}
        assert ("a synthetic stand-in" in tables.markdown(small, results, 1)) == synthetic


def test_latex_escapes_special_characters():
    assert r"50\%\_a" in tables.latex_grid(["50%_a"], [["{b}&~"]])
    assert r"\{b\}\&\textasciitilde{}" in tables.latex_grid(["50%_a"], [["{b}&~"]])


def test_float_rankings_fill_all_columns(small):
    table = dataclasses.replace(small, lines=(paper.Line("Ceiling", "ceiling", bits=(8,)),))
    (run,) = table.runs(["ceiling"], 1)
    results = {run: {"map": 0.9, "definition": {"synthetic": False}}}
    assert "| Ceiling | all | 0.900 | 0.900 | – |" in tables.markdown(table, results, 1)


def test_finding_names_the_best_of_ours_and_of_the_rivals(small):
    ours, _, lsh = small.lines
    runs = {0.9: small.run(ours, small.time_bits, 0), 0.4: small.run(lsh, small.time_bits, 0)}
    results = {run: {"map": score, "definition": {"synthetic": False}} for score, run in runs.items()}
    text = tables.finding(small, results, 1)
    assert "the best of DISH is DISH-K (all training rows) with a MAP of 0.900 (the paper: 0.950)" in text
    assert "the best of the other methods is LSH (500 training rows) with a MAP of 0.400" in text
    assert tables.finding(small, {}, 1) == ""
