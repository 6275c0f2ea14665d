"""How figures look: a colour for every method, panels, names beside the lines, and files.

Text and lines are readable on white and on black, and the background is transparent. Figures are 7.2 inches wide, so
that their text has its full size on a page of 700 pixels. They use matplotlib's objects, not pyplot, so matplotlib's
global state stays as it is.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dish.errors import InputError
from dish.io.atomic import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

FORMS = (".pdf", ".svg", ".png")
INK = "#737b85"  # of text and axes
WIDTH, FONT = 7.2, 9.0  # inches, points
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (6, 1.5, 1.5, 1.5)), (0, (9, 2)), (0, (3, 3)))
MARKERS = "osv^DPX"
OURS = {"dish": "#d55e00", "dish_k": "#0072b2", "deep_dish": "#009e73", "dish_d": "#8a63d2"}
RIVALS = {  # colour → methods. They also differ in dashes; methods that are often compared have different colours.
    "#3a97d0": ("sdh", "hc_sdh", "sh", "isoh", "agh", "tsh", "cnnh", "hashnet", "dpn"),
    "#b97a00": ("pca_itq", "cca_itq", "whitened_itq", "pca_rr", "ksh", "sfhc", "dtsh", "csq", "adsh"),
    "#c9699b": ("fssh", "lsh", "cosdish", "lfh", "fasth", "ftde", "greedyhash", "orthohash"),
    "#808080": ("sign", "logistic_lsh", "logistic_class", "minhash", "dgh", "bre", "mlh", "cnnbh", "dhn"),
}
FLOATS = {"l2": DASHES[2], "ceiling": DASHES[1], "rabitq": DASHES[3], "rabitq_rescored": DASHES[5]}
COLOURS = OURS | {name: colour for colour, names in RIVALS.items() for name in names} | dict.fromkeys(FLOATS, INK)
NAMES = {
    **{"dish": "DISH", "dish_k": "DISH-K", "deep_dish": "DeepDISH", "dish_d": "DISH-D"},
    **{"l2": "cosine of the floats", "ceiling": "float ceiling", "rabitq": "RaBitQ"},
    **{"rabitq_rescored": "RaBitQ, rescored", "sign": "sign bits", "isoh": "IsoH", "fasth": "FastH"},
    **{"minhash": "MinHash", "hashnet": "HashNet", "greedyhash": "GreedyHash", "orthohash": "OrthoHash"},
    **{"whitened_itq": "whitened ITQ", "logistic_lsh": "logistic LSH", "logistic_class": "logistic, class number"},
    **{"cnnh": "CNNH+"},
}
_TEXT = dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK)
_RC: Any = {**_TEXT, "font.size": FONT, "axes.titlesize": FONT, "axes.spines.top": False, "axes.spines.right": False}
_FILES: Any = {"svg.fonttype": "none", "svg.hashsalt": "dish", "pdf.fonttype": 42}  # text as text, equal files


def name_of(method: str) -> str:
    """The name of a method in figures. A class of the user's own has the name of the class."""
    return NAMES.get(method) or (method.split(":")[1] if ":" in method else method.upper().replace("_", "-"))


def style(method: str, variant: int = 0) -> dict[str, Any]:
    """Colour, dashes, marker and width of a method's lines. ``variant`` counts further settings of one method."""
    if method in FLOATS:
        return {"color": INK, "linestyle": FLOATS[method], "linewidth": 1.4}
    if method in OURS:
        marker = MARKERS[variant % len(MARKERS)]
        return {"color": OURS[method], "linestyle": DASHES[variant % len(DASHES)], "marker": marker, "linewidth": 2.4}
    if method in COLOURS:
        place = RIVALS[COLOURS[method]].index(method) + variant
        colour = COLOURS[method]
    else:
        place = zlib.crc32(method.encode())  # the same in every figure
        colour = list(RIVALS)[place % len(RIVALS)]
    dashes, marker = DASHES[place % len(DASHES)], MARKERS[place % len(MARKERS)]
    return {"color": colour, "linestyle": dashes, "marker": marker, "linewidth": 1.2, "markersize": 4}


def panels(n: int, heading: str, height: float = 2.8, columns: int = 2) -> tuple[Figure, list[Axes]]:
    """A figure with n panels in at most ``columns`` columns, each panel ``height`` inches high; and the axes."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(n, columns)
    rows = -(-n // columns)
    with rc_context(_RC):
        figure = Figure(figsize=(WIDTH, height * rows + 0.25 * (1 + heading.count("\n"))), layout="constrained")
        FigureCanvasAgg(figure)
        axes = list(figure.subplots(rows, columns, squeeze=False).flat)
        figure.suptitle(heading, fontsize=FONT + 1)
        for axis in axes:
            axis.grid(True, color=INK, alpha=0.25, linewidth=0.6)
            axis.tick_params(which="both", color=INK, labelcolor=INK, labelsize=FONT - 1)
    for axis in axes[n:]:
        axis.remove()
    return figure, axes[:n]


def name_lines(axis: Axes, lines: Sequence[Line2D], heights: Sequence[float] | None = None) -> None:
    """Write the names of lines right of a panel, each at the height of the line's end, or at ``heights``.

    Names that would overlap are moved apart. A short piece of the line stands before each name.
    """
    from matplotlib.lines import Line2D

    if not lines:
        return
    if heights is None:
        heights = [float(np.asarray(line.get_ydata(), float)[np.isfinite(line.get_ydata())][-1]) for line in lines]
    figure: Any = axis.figure
    inch = 1 / (figure.get_figwidth() * axis.get_position().width)  # as a share of the panel, before its layout
    step = 1.15 * (FONT - 1) / (72 * figure.get_figheight() * axis.get_position().height)
    low, high = axis.yaxis.get_transform().transform(axis.get_ylim())  # of logarithms on a logarithmic axis
    wanted = (axis.yaxis.get_transform().transform(np.asarray(heights, float)) - low) / (high - low)
    places = spread(wanted, step)
    for line, place in zip(lines, places, strict=True):
        key = Line2D([], [])
        key.update_from(line)
        key.set(
            data=([1 + 0.1 * inch, 1 + 0.27 * inch, 1 + 0.44 * inch], [place] * 3),
            transform=axis.transAxes,
            clip_on=False,
            markevery=[1],
        )
        figure.add_artist(key)  # axis.lines has only the lines of data
        name, colour = str(line.get_label()), line.get_color()
        at = 1 + 0.54 * inch
        axis.text(at, place, name, transform=axis.transAxes, color=colour, va="center", fontsize=FONT - 1)


def spread(wanted: Sequence[float] | NDArray[np.float64], step: float) -> list[float]:
    """The places nearest to the wanted ones, in the same order, at least ``step`` apart; in 0 to 1 if they fit."""
    from sklearn.isotonic import isotonic_regression

    order = np.argsort(wanted, kind="stable")
    ramp = step * np.arange(len(order))
    room = 1 - step * (len(order) - 1)
    low, high = (0.0, room) if room > 0 else (room / 2, room / 2)
    found = np.empty(len(order))
    found[order] = isotonic_regression(np.asarray(wanted, float)[order] - ramp, y_min=low, y_max=high) + ramp
    return found.tolist()


def write(figure: Figure, path: Path) -> None:
    """Write a figure to a .pdf, .svg or .png file. In a .pdf file, which is for print, text and axes are black."""
    from matplotlib import rc_context

    if path.suffix not in FORMS:
        raise InputError(f"a picture file must end in {', '.join(FORMS)}; got {path.name!r}")
    if path.suffix == ".pdf":
        for artist in figure.findobj(lambda artist: getattr(artist, "get_color", lambda: None)() == INK):
            artist.set(color="black")
    buffer = io.BytesIO()
    metadata = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}, ".png": {}}[path.suffix]
    with rc_context(_FILES):
        figure.savefig(buffer, format=path.suffix[1:], dpi=150, transparent=True, metadata=metadata)
    write_atomically(path, buffer.getvalue())


def as_html(figure: Figure, path: Path) -> str:
    """Write a figure to an .svg file, and return it as an HTML figure."""
    write(figure, path)
    svg = path.read_text(encoding="utf-8")
    return f"<figure>{svg[svg.index('<svg') :]}</figure>"
