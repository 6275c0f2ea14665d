"""Figures made from run files, as PNG and SVG.

They use matplotlib's objects, not pyplot, so matplotlib's global state stays as it is.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dish.errors import InputError
from dish.evaluation.compare import RankingScores
from dish.evaluation.drift import NAMES, Drift
from dish.evaluation.tune import Recommendation
from dish.experiments import paper
from dish.experiments.bench import FLOATS, Results, Run
from dish.experiments.tables import title, values
from dish.io.atomic import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = (
    *("#1d4e89", "#00818a", "#4f7942", "#7b5ea7", "#8d6e63"),
    *("#607d8b", "#b08900", "#3aa6dd", "#9c9c9c", "#d16ba5"),
)
OURS = ("#c1121f", "#f77f00", "#6a040f")
MOST_BARS = 40
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (6, 1.5, 1.5, 1.5)))


def panels(columns: int, heading: str, height: float = 3.6, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure with rows × columns panels, and their axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.3 * columns, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    figure.suptitle(heading)
    for axis in axes:
        axis.grid(True, alpha=0.3)
    return figure, axes


def styles(colours: Sequence[str], width: float) -> Iterator[dict[str, Any]]:
    """Line styles. All differ in colour or dashes; markers help further where there are few points."""
    both = itertools.product(_DASHES, colours)
    for (dashes, colour), marker in zip(both, itertools.cycle("osv^DPX"), strict=False):
        yield {"color": colour, "linestyle": dashes, "marker": marker, "linewidth": width}


def method_figure(table: paper.PaperTable, results: Results, trials: int, data: str | None = None) -> Figure:
    """MAP and precision within radius 2 against bits, precision–recall, and precision@k, of every method with runs.

    Each method is drawn at its largest training size. Our methods have thick lines, rivals thin ones. Float rankings
    are horizontal lines.
    """
    figure, axes = panels(4, title(table, results), height=5.4)
    largest = {line.label for line in table.lines if line.n_train is None}
    rivals, ours = styles(COLOURS, 1.1), styles(OURS, 2.6)
    for line in table.lines:
        if line.n_train is not None and line.label in largest:
            continue
        label = f"{line.label} ({line.n_train:,})" if line.n_train and largest else line.label
        runs = {r: [table.run(line, r, t, data) for t in range(trials)] for r in line.bits or table.bits}
        if line.method in FLOATS:
            _draw_horizontal(axes[0], label, values(results, next(iter(runs.values())), "map"), line.method)
        else:
            dish = line.label.startswith("DISH")
            _draw_method(axes, label, runs, results, table.time_bits, next(ours if dish else rivals))
    labels = (("bits", "MAP"), ("bits", "precision within radius 2"), ("recall", "precision"), ("k", "precision@k"))
    for axis, (x, y) in zip(axes, labels, strict=True):
        axis.set(xlabel=x, ylabel=y)
    for axis in axes[:2]:
        axis.set(xticks=table.bits)
    for axis in axes[2:]:
        axis.set(title=f"{table.time_bits} bits")
    axes[3].set(xscale="log")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize="small")
    return figure


def _draw_horizontal(axis: Axes, label: str, found: list[float], method: str) -> None:
    """Draw a float ranking, which has no code length."""
    if found:
        dashes = dict(zip(FLOATS, (":", (0, (6, 2))), strict=True))
        axis.axhline(float(np.mean(found)), color="black", linewidth=1.6, linestyle=dashes[method], label=label)


def _draw_method(
    axes: list[Axes],
    label: str,
    runs: dict[int, list[Run]],
    results: Results,
    bits: int,
    style: dict[str, Any],
) -> None:
    """Draw the finished runs of one method. Both curves are for the code length ``bits``."""
    for axis, key in zip(axes, ("map", "precision_within_2"), strict=False):
        means = [np.mean(values(results, of, key) or [np.nan]) for of in runs.values()]
        if np.isfinite(means).any():
            axis.plot(list(runs), means, label=label, **style)
    at = [results[run] for run in runs.get(bits, ()) if "curve_recall" in results.get(run, {})]
    if not at:
        return
    plain = {**style, "marker": ""}
    recall, precision = (np.mean([x[f"curve_{k}"] for x in at], 0) for k in ("recall", "precision"))
    axes[2].plot(recall, precision, **plain)
    places = [int(name) for name in at[0]["precision_at"]]
    axes[3].plot(places, np.mean([list(x["precision_at"].values()) for x in at], 0), **plain)


def sensitivity_figure(results: Results, trials: int) -> Figure:
    """MAP and precision within radius 2 against ν, and against the iterations from both starts."""
    figure, (left, middle, right) = panels(3, "DISH-K on CIFAR-10, 5,000 training rows, 64 bits")

    def mean(key: str, **params: object) -> float:
        found = values(results, [paper.sensitivity_run(t, **params) for t in range(trials)], key)
        return float(np.mean(found)) if found else float("nan")

    for key, name in (("map", "MAP"), ("precision_within_2", "precision within radius 2")):
        left.plot(paper.NUS, [mean(key, nu=nu) for nu in paper.NUS], "o-", label=name)
    left.set(xlabel="ν", xscale="log", title="weight ν of the loss")
    left.legend()
    for axis, key, name in ((middle, "map", "MAP"), (right, "precision_within_2", "precision within radius 2")):
        for start in paper.STARTS:
            line = [mean(key, init=start, n_iter=t) for t in paper.ITERATIONS]
            axis.plot(paper.ITERATIONS, line, "o-", label=f"{start} start")
        axis.set(xlabel="iterations", ylabel=name)
        axis.legend()
    return figure


def comparison_figure(lines: Sequence[RankingScores]) -> Figure:
    """MAP against bytes per row, and precision@k, of all rankings of ``compare``; one row per group of its lines."""
    groups = list(dict.fromkeys(line.group for line in lines))
    figure, axes = panels(2, "rankings of the same rows", 3.4 * len(groups), len(groups))
    for group, size, top in zip(groups, axes[::2], axes[1::2], strict=True):
        part = [line for line in lines if line.group == group]
        for colour, line in zip(itertools.cycle(COLOURS), part, strict=False):
            ours = line is part[-1]
            style: dict[str, Any] = {"color": "#c1121f" if ours else colour, "zorder": 3 if ours else 2}
            size.plot(line.bytes, line.map, "o", markersize=11 if ours else 7, **style)
            places, found = zip(*line.precision_at.items(), strict=True)
            top.plot(places, found, "o-", label=line.ranking, linewidth=2.6 if ours else 1.4, **style)
        size.set(xlabel="bytes per row", ylabel="MAP", xscale="log", ylim=(0, 1.05), title=group)
        top.set(xlabel="k", ylabel="precision@k", xscale="log", ylim=(0, 1.05), title=group)
        top.legend(fontsize="small")
    return figure


def tuning_figure(found: Recommendation) -> Figure:
    """MAP and precision@10 against every parameter that was varied, with fit times below.

    All settings were tried with the rows of the first trial; only the best with more.
    """
    first = found.trials[0]
    varied = [name for name in first.params if any(t.parameter == name for t in found.trials)]
    heading = f"DISH fitted to {first.n_train:,} rows, scored on held-out rows"
    figure, axes = panels(max(1, len(varied)), heading, 6.0, 2)
    for name, top, below in zip(varied, axes, axes[len(varied) :], strict=False):
        trials = [t for t in found.trials if t.parameter in (name, "defaults") and t.n_train == first.n_train]
        trials.sort(key=lambda t: (isinstance(t.params[name], str), t.params[name]))
        values = [str(t.params[name]) for t in trials]
        top.plot(values, [t.map for t in trials], "o-", color="#c1121f", label="MAP")
        top.plot(values, [t.precision_at_10 for t in trials], "s--", color=COLOURS[0], label="precision@10")
        scores = [score for t in trials for score in (t.map, t.precision_at_10)]
        # The margins keep small differences from looking large.
        top.set(title=name, ylabel="held-out rows", ylim=(min(scores) - 0.05, max(scores) + 0.08))
        top.axvline(str(first.params[name]), color="#9c9c9c", linewidth=1, linestyle=":", label="default")  # type: ignore[arg-type]
        below.bar(values, [t.seconds for t in trials], color=COLOURS[5])
        below.set(ylabel="fit, s")
    axes[0].legend(fontsize="small")
    return figure


def drift_figure(found: Drift) -> Figure:
    """New rows against reference rows: the share of rows with each bit set, and every histogram."""
    profile, counts = found.profile, found.counts
    heading = f"drift score {found.score:.2f}: {found.n:,} new rows, {found.n_reference:,} {found.source}"
    if found.unknown is not None:
        shares = f"{found.unknown:.0%} of the new rows, {found.unknown_reference:.0%} of the reference rows"
        heading += f"\nof no known class: {shares}"
    figure, axes = panels(1 + len(profile.edges), heading, 3.9)
    reference, new = "#9c9c9c", "#c1121f"
    order = np.argsort(profile.bit_shares())
    places = np.arange(1, profile.n_bits + 1)
    axes[0].plot(places, profile.bit_shares()[order], linewidth=2.6, color=reference)
    axes[0].plot(places, profile.bit_shares(counts)[order], "o", markersize=3, color=new)
    axes[0].set(title="share of rows with a bit set", xlabel="bits, by their share in the reference", ylim=(0, 1))
    for axis, (name, edges) in zip(axes[1:], profile.edges.items(), strict=True):
        places, before, after = _merged(edges, profile.shares(name), profile.shares(name, counts))
        axis.stairs(before, places, fill=True, alpha=0.45, color=reference)
        axis.stairs(after, places, linewidth=1.8, color=new)
        axis.set(title=NAMES[name], ylabel="share of rows", ylim=(0, None))
        if name in profile.limits:
            axis.axvline(profile.limits[name], color="black", linewidth=1, linestyle=":")
            place = (profile.limits[name], 0.9)
            axis.annotate("no known class →", place, (3, 0), ("data", "axes fraction"), "offset points")
    axes[0].annotate("reference rows", (0.04, 0.9), xycoords="axes fraction", weight="bold", color=reference)
    axes[0].annotate("new rows", (0.04, 0.82), xycoords="axes fraction", weight="bold", color=new)
    return figure


def _merged(edges: Any, *shares: Any) -> tuple[Any, ...]:
    """Bins in which any row lies, at most 40 of them: their edges, and shares of rows by bin.

    The first and last bin also have the rows beyond the edges.
    """
    step = edges[1] - edges[0]
    full = np.flatnonzero(np.sum(shares, axis=0))
    low, high = max(0, full[0] - 1), min(len(edges), full[-1] + 1)
    places = np.concatenate([[edges[0] - step], edges, [edges[-1] + step]])[low : high + 2]
    parts = [share[low : high + 1] for share in shares]
    group = np.arange(0, len(parts[0]), -(-len(parts[0]) // MOST_BARS))
    return np.append(places[:-1][group], places[-1]), *(np.add.reduceat(part, group) for part in parts)


def write(figure: Figure, path: Path) -> None:
    """Write a figure to a .png or .svg file."""
    if path.suffix not in (".png", ".svg"):
        raise InputError(f"a picture file must end in .png or .svg; got {path.name!r}")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix[1:], dpi=150)
    write_atomically(path, buffer.getvalue())


def save(figure: Figure, output: Path, name: str) -> str:
    """Write a figure as PNG and SVG, and return the SVG as an HTML figure."""
    content = {}
    for kind in ("png", "svg"):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, dpi=150)
        content[kind] = buffer.getvalue()
        write_atomically(output / f"{name}.{kind}", content[kind])
    svg = content["svg"].decode()
    return f"<figure>{svg[svg.index('<svg') :]}</figure>"
