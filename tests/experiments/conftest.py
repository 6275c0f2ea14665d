"""A small table to reproduce."""

import pytest

from dish.experiments import paper


@pytest.fixture
def small(monkeypatch):
    """The first table shrunk to digits, a few lines and one trial."""
    lines = (
        paper.Line("DISH-K", "dish_k", None, (0.9, 0.95), 3.0, params=(("n_anchors", 40),), learned=(None, 0.8)),
        paper.Line("Other", "not_there", None, (0.5, 0.6), 1.0),
        paper.Line("LSH", "lsh", 500, bits=(12,)),
    )
    table = paper.PaperTable("Table 1. digits: MAP", "digits", (8, 12), 12, lines, note="a note")
    monkeypatch.setattr(paper, "TABLES", {"table1": table})
    monkeypatch.setattr(paper, "SENSITIVITY_DATA", "digits")
    monkeypatch.setattr(paper, "SENSITIVITY_TRAIN", 200)
    monkeypatch.setattr(paper, "SENSITIVITY_BITS", 8)
    monkeypatch.setattr(paper, "NUS", (1e-4, 1e-2))
    monkeypatch.setattr(paper, "ITERATIONS", (0, 1))
    return table
