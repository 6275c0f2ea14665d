"""Figures made from results."""

import dataclasses

import numpy as np
import pytest

from dish.errors import InputError
from dish.evaluation.compare import RankingScores
from dish.experiments import figures, paper, style
from dish.experiments.bench import Run

ONE = {"map": 0.4, "precision_within_2": 0.5, "curve_recall": [0, 0.2, 1], "curve_precision": [0, 1, 0.1]}
ONE |= {"precision_at": {"1": 1.0}, "definition": {"synthetic": False}}


def names(axis):
    """The names beside a panel, with their colours."""
    return {text.get_text(): text.get_color() for text in axis.texts}


def test_drawing_keeps_the_settings_of_matplotlib(small):
    import matplotlib

    before = matplotlib.get_backend()
    matplotlib.use("svg")
    settings = dict(matplotlib.rcParams)
    try:
        figures.sensitivity_figure({}, 1)
        assert dict(matplotlib.rcParams) == settings
    finally:
        matplotlib.use(before)


def test_the_heading_names_what_the_figure_shows(small):
    table = dataclasses.replace(small, title="Table 1. digits: MAP and training time")
    figure = figures.method_figure(table, {}, 1)
    assert figure.get_suptitle() == "Table 1. digits"  # no panel shows a time
    assert all(axis.get_xlabel() and axis.get_ylabel() for axis in figure.axes)


def test_methods_keep_their_colours_and_settings_differ_in_dashes(small):
    lines = [
        paper.Line(f"{method} {i}", method, None, params=(("p", i),)) for method in ("ksh", "dish_k") for i in (0, 1)
    ]
    table = dataclasses.replace(small, lines=tuple(lines))
    for axis in figures.method_figure(table, dict.fromkeys(table.runs(["ksh", "dish_k"], 1), ONE), 1).axes:
        drawn = [(line.get_label(), line.get_color(), str(line._unscaled_dash_pattern)) for line in axis.lines]
        assert [colour for _, colour, _ in drawn] == [style.COLOURS[m] for m in ("ksh", "ksh", "dish_k", "dish_k")]
        assert len({look for _, *look in map(list, drawn) for look in [tuple(look)]}) == 4
        assert names(axis) == {label: colour for label, colour, _ in drawn}


def test_float_rankings_are_horizontal_lines(small):
    lines = (*small.lines, paper.Line("Cosine", "l2", None, bits=(8,)), paper.Line("Ceiling", "ceiling", bits=(8,)))
    table = dataclasses.replace(small, lines=lines)
    found = {"l2": 0.6, "ceiling": 0.9}
    runs = table.runs(["l2", "ceiling"], 1)
    assert len(runs) == 2
    results = {run: {"map": found[run.method], "definition": {"synthetic": False}} for run in runs}
    level = figures.method_figure(table, results, 1).axes[0].lines
    assert [(line.get_label(), list(line.get_ydata())) for line in level] == [
        ("Cosine", [0.6, 0.6]),
        ("Ceiling", [0.9, 0.9]),
    ]


def test_precision_recall_has_a_panel_per_code_length_and_means_over_trials():
    runs = [Run("d", method, r, None, t) for method in ("dish", "m:Own") for r in (16, 32) for t in (0, 1)]
    runs.append(Run("d", "l2", 16))  # has no codes
    results = {run: {**ONE, "curve_precision": [0, 1 - run.trial, 0.1]} for run in runs if run.method != "l2"}
    left, right = figures.precision_recall_figure("data", runs, results).axes
    assert (left.get_xlabel(), right.get_xlabel(), left.get_ylabel()) == (
        "recall (16 bits)",
        "recall (32 bits)",
        "precision",
    )
    recall, precision = left.lines[0].get_data()
    assert (list(recall), list(precision)) == ([0.2, 1.0], [0.5, 0.1])  # nothing was found within radius 0
    assert names(left) == {"DISH": style.COLOURS["dish"], "Own": style.style("m:Own")["color"]}
    several = [dataclasses.replace(run, n_train=1000) for run in runs] + runs
    drawn = figures.precision_recall_figure("data", several, dict.fromkeys(several, ONE)).axes[0]
    assert "DISH, 1,000 rows" in names(drawn)
    with pytest.raises(InputError, match="no run has a precision-recall curve"):
        figures.precision_recall_figure("data", runs[-1:], {})


def test_rankings_of_a_comparison_are_named_beside_their_lines():
    at, none = {1: 0.9, 10: 0.8}, {"precision_within_2": None, "recall_within_2": None, "rescored_precision": 0.9}
    more = {"map": 0.5, "precision_at": at, "recall_at": at, "neighbours_at": at, **none}
    lines = [
        RankingScores(name, size, "all", 100, "all", 30, **more)
        for name, size in (("float cosine", 256), ("PCA-ITQ", 8), ("DISH", 8), ("DISH, labelled rows", 8))
    ]
    scored, top = figures.comparison_figure(lines).axes
    assert len(scored.lines) == 4
    assert names(scored) == names(top)
    assert names(top)["DISH"] == names(top)["DISH, labelled rows"] == style.COLOURS["dish"]
    assert names(top)["PCA-ITQ"] == style.COLOURS["pca_itq"]
    assert np.allclose(top.get_ylim(), (0, 1.05))
