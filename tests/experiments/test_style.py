"""How figures look: colours, names beside lines, and files."""

import re

import numpy as np
import pytest

from dish import registry
from dish.errors import InputError
from dish.experiments import style


def luminance(colour):
    """The relative luminance of a colour #rrggbb, as in the guidelines for accessible web content."""
    c = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]


def test_every_method_has_a_colour_and_a_look_of_its_own():
    assert set(registry.NAMES) <= set(style.COLOURS)
    looks = [tuple(map(str, style.style(name).values())) for name in style.COLOURS]
    assert len(set(looks)) == len(looks)
    assert style.style("module:Own") == style.style("module:Own")
    assert style.style("ksh", 1)["linestyle"] != style.style("ksh")["linestyle"]


@pytest.mark.parametrize("paper", ["#ffffff", "#0d1117"])
def test_colours_are_readable_on_white_and_on_black(paper):
    """A contrast of 3 is the guideline for graphics."""
    for colour in {*style.COLOURS.values(), style.INK}:
        low, high = sorted([luminance(colour), luminance(paper)])
        assert (high + 0.05) / (low + 0.05) >= 3, colour


def test_names_of_methods():
    methods = ("dish_k", "pca_itq", "sdh", "my.module:MyHash", "fasth")
    assert [style.name_of(method) for method in methods] == ["DISH-K", "PCA-ITQ", "SDH", "MyHash", "FastH"]


def test_spread_moves_names_apart_and_keeps_their_order():
    found = style.spread([0.5, 0.9, 0.51], 0.1)
    assert found == pytest.approx([0.455, 0.9, 0.555])
    assert style.spread([1.0, 1.0], 0.1) == pytest.approx([0.9, 1.0])  # inside the panel
    crowded = style.spread([0.2] * 21, 0.1)
    assert (min(crowded), max(crowded)) == pytest.approx((-0.5, 1.5))  # more than fit are centred


def test_names_stand_at_the_ends_of_lines():
    _, (axis,) = style.panels(1, "a heading")
    for name, end in (("low", 0.1), ("high", 0.9)):
        axis.plot([0, 1, 2], [0.5, end, np.nan], label=name)
    axis.set_ylim(0, 1)
    style.name_lines(axis, axis.lines)
    assert {text.get_text(): pytest.approx(text.get_position()[1]) for text in axis.texts} == {
        "low": 0.1,
        "high": 0.9,
    }


def test_names_of_lines_on_a_logarithmic_axis():
    _, (axis,) = style.panels(1, "a heading")
    axis.plot([0, 1], [1, 10], label="ten")
    axis.set(yscale="log", ylim=(1, 1000))
    style.name_lines(axis, axis.lines)
    assert axis.texts[0].get_position()[1] == pytest.approx(1 / 3)


def test_panels_are_as_wide_as_a_page():
    for n, columns in ((1, 2), (5, 2), (4, 1)):
        figure, axes = style.panels(n, "x", columns=columns)
        assert (len(axes), len(figure.axes), figure.get_figwidth()) == (n, n, style.WIDTH)


def test_files(tmp_path):
    figure, (axis,) = style.panels(1, "the heading")
    axis.set_xlabel("the label")
    for name in ("a.svg", "b.svg", "a.png", "a.pdf"):
        style.write(figure, tmp_path / name)
    svg = (tmp_path / "a.svg").read_text()
    assert svg == (tmp_path / "b.svg").read_text()
    assert re.search(r"<text[^>]*>the label</text>", svg)  # text is text
    assert "fill: #ffffff" not in svg  # no background
    assert (tmp_path / "a.png").read_bytes()[1:4] == b"PNG"
    assert (tmp_path / "a.pdf").read_bytes()[:4] == b"%PDF"
    assert axis.xaxis.label.get_color() == "black"  # in the .pdf file, which is for print
    with pytest.raises(InputError, match=r"must end in .pdf, .svg, .png; got 'a.jpg'"):
        style.write(figure, tmp_path / "a.jpg")
    assert style.as_html(figure, tmp_path / "c.svg").startswith("<figure><svg")
