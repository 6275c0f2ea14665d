"""The HTML page of tables and figures."""

import dataclasses

from dish.experiments import paper, report, tables

MACHINE = {"cpu": "Fast", "cores": 2, "commit": "abc"}


def test_only_rows_of_our_methods_are_marked(small):
    """COSDISH is a rival, although its name contains DISH."""
    lines = (*small.lines, paper.Line("COSDISH", "cosdish", None), paper.Line("DISH", "dish", None))
    text = report.html_table(dataclasses.replace(small, lines=lines), {}, 1, None)
    assert text.count('class="ours"') == 2


def test_table_has_its_finding_and_figure_and_marks_synthetic_data(small):
    run = small.run(small.lines[0], small.time_bits, 0)
    for synthetic in (True, False):
        results = {run: {"map": 0.9, "definition": {"synthetic": synthetic}, "environment": MACHINE}}
        page = report.html_table(small, results, 1, None, "<figure></figure>")
        assert tables.finding(small, results, 1) in page
        assert "</p><figure></figure><div class='scroll'><table>" in page
        assert ("<mark>synthetic data</mark>" in page) == synthetic
