"""Plots of the losses."""

import pytest

from dish.deep.plot_history import draw

HISTORY = [
    {"round": 0, "epoch": 0, "loss": 2.0, "held_out": 2.5},
    {"round": 0, "epoch": 1, "loss": 1.0, "held_out": 1.5},
    {"round": 1, "epoch": 0, "loss": 0.5},
]


@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_the_suffix_chooses_the_format(suffix, start, tmp_path):
    pytest.importorskip("matplotlib", reason="PLOTS NOT CHECKED: matplotlib is missing")
    draw(HISTORY, tmp_path / f"loss.{suffix}")
    assert (tmp_path / f"loss.{suffix}").read_bytes().startswith(start)


def test_both_losses_are_plotted(tmp_path, monkeypatch):
    figure = pytest.importorskip("matplotlib.figure", reason="PLOTS NOT CHECKED: matplotlib is missing")
    made, original = [], figure.Figure.savefig
    monkeypatch.setattr(figure.Figure, "savefig", lambda self, *a, **k: made.append(self) or original(self, *a, **k))
    draw(HISTORY, tmp_path / "loss.png")
    (axis,) = made[0].axes
    lines = {line.get_label(): line.get_ydata() for line in axis.get_lines() if not line.get_label().startswith("_")}
    assert list(lines["training loss"]) == [2.0, 1.0, 0.5]
    assert list(lines["held-out loss"]) == [2.5, 1.5]
    assert len(axis.get_lines()) == 4  # and one line where each round starts
