"""Figures made from run files."""

import dataclasses

from dish.experiments import figures, paper


def drawn(table, results):
    return figures.method_figure(table, results, 1).axes


def looks(axis):
    """Colour and dashes of every line."""
    return [(line.get_color(), str(line._unscaled_dash_pattern)) for line in axis.lines]


def test_drawing_keeps_the_backend_of_matplotlib(small):
    import matplotlib

    before = matplotlib.get_backend()
    matplotlib.use("svg")
    try:
        figures.sensitivity_figure({}, 1)
        assert matplotlib.get_backend() == "svg"
    finally:
        matplotlib.use(before)


def test_all_line_styles_differ(small):
    """No two lines of a panel look the same, even without markers and with more methods than any table has."""
    count = {"R": 32, "DISH": 12}
    lines = tuple(paper.Line(f"{k}{i}", "lsh", None, params=((k, i),)) for k, n in count.items() for i in range(n))
    table = dataclasses.replace(small, lines=lines)
    one = {"map": 0.4, "precision_within_2": 0.5, "curve_recall": [0, 1], "curve_precision": [1, 0]}
    one |= {"precision_at": {"1": 1.0}, "definition": {"synthetic": False}}
    for axis in drawn(table, dict.fromkeys(table.runs(["lsh"], 1), one)):
        assert len(axis.lines) == 44
        assert len(set(looks(axis))) == 44


def test_float_rankings_are_horizontal_lines(small):
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
