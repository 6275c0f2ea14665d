"""Figures of the paper from run files, as PNG and SVG. matplotlib by its objects: no state of the process changes."""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dish.experiments import paper
from dish.experiments.compare import Line
from dish.experiments.definition import Results, Run
from dish.experiments.tables import title, values
from dish.experiments.tune import Recommendation
from dish.io.atomic import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = (
    *("#1d4e89", "#00818a", "#4f7942", "#7b5ea7", "#8d6e63"),
    *("#607d8b", "#b08900", "#3aa6dd", "#9c9c9c", "#d16ba5"),
)


def _figure(columns: int, heading: str, height: float = 3.6, rows: int = 1) -> tuple[Figure, list[Axes]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.3 * columns, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    figure.suptitle(heading)
    for axis in axes:
        axis.grid(True, alpha=0.3)
    return figure, axes


def method_figure(table: paper.Table, results: Results, trials: int, data: str | None = None) -> Figure:
    """Precision within radius 2 against bits, precision–recall, and precision@k, for every method there is.

    Where a table has several training sizes only the largest is drawn (and methods that have no other); DISH is
    drawn thick, rivals thin, told apart by colour and marker.
    """
    figure, (radius, curve, top) = _figure(3, title(table, results), height=5.4)
    largest = {line.method for line in table.lines if line.n_train is None}
    rivals = zip(itertools.cycle(_COLOURS), itertools.cycle("osv^DPX"), strict=True)  # 70 pairs before one repeats
    ours = itertools.cycle(("#c1121f", "#f77f00", "#6a040f"))
    for line in table.lines:
        if line.n_train is not None and line.method in largest:
            continue
        label = f"{line.label} ({line.n_train:,})" if line.n_train and largest else line.label
        dish = line.label.startswith("DISH")
        color, marker = (next(ours), "o") if dish else next(rivals)
        style = {"color": color, "linewidth": 2.6 if dish else 1.1, "zorder": 3 if dish else 2}

        def runs(r: int, line: paper.Line = line) -> list[Run]:
            return [table.run(line, r, t, data) for t in range(trials)]

        wanted = line.bits or table.bits
        means = [np.mean(values(results, runs(r), "precision_within_2") or [np.nan]) for r in wanted]
        if not np.isfinite(means).any():
            continue
        radius.plot(wanted, means, marker=marker, label=label, **style)  # type: ignore[arg-type]
        at = [results[run] for run in runs(table.time_bits) if "curve_recall" in results.get(run, {})]
        recall, precision = (np.mean([x[f"curve_{k}"] for x in at], 0) for k in ("recall", "precision"))
        curve.plot(recall, precision, **style)  # type: ignore[arg-type]
        k = [int(name) for name in at[0]["precision_at"]]
        top.plot(k, np.mean([list(x["precision_at"].values()) for x in at], 0), **style)  # type: ignore[arg-type]
    radius.set(xlabel="bits", ylabel="precision within radius 2", xticks=table.bits)
    curve.set(xlabel="recall", ylabel="precision", title=f"{table.time_bits} bits")
    top.set(xlabel="places", ylabel="precision", xscale="log", title=f"{table.time_bits} bits")
    figure.legend(loc="outside lower center", ncols=5, fontsize="small")
    return figure


def sensitivity_figure(results: Results, trials: int) -> Figure:
    """MAP and precision within radius 2 against ν, and against iterations from both starts."""
    figure, (left, middle, right) = _figure(3, "DISH-K on CIFAR-10, 5,000 training rows, 64 bits")

    def mean(key: str, **params: object) -> float:
        found = values(results, [paper.sensitivity_run(t, **params) for t in range(trials)], key)
        return float(np.mean(found)) if found else float("nan")

    for key, name in (("map", "MAP"), ("precision_within_2", "precision within radius 2")):
        left.plot(paper.NUS, [mean(key, nu=nu) for nu in paper.NUS], "o-", label=name)
    left.set(xlabel="ν", xscale="log", title="weight of the loss")
    left.legend()
    for axis, key, name in ((middle, "map", "MAP"), (right, "precision_within_2", "precision within radius 2")):
        for start in paper.STARTS:
            line = [mean(key, init=start, n_iter=t) for t in paper.ITERATIONS]
            axis.plot(paper.ITERATIONS, line, "o-", label=f"{start} start")
        axis.set(xlabel="iterations", ylabel=name)
        axis.legend()
    return figure


def comparison_figure(lines: Sequence[Line]) -> Figure:
    """MAP against bytes per row, and precision by places, of the rankings of ``compare``; a row per kind of query."""
    groups = list(dict.fromkeys(line.queries for line in lines))
    figure, axes = _figure(2, "the same rows, ranked by …", 3.4 * len(groups), len(groups))
    for queries, size, top in zip(groups, axes[::2], axes[1::2], strict=True):
        part = [line for line in lines if line.queries == queries]
        for colour, line in zip(itertools.cycle(_COLOURS), part, strict=False):
            ours = line is part[-1]
            style: dict[str, Any] = {"color": "#c1121f" if ours else colour, "zorder": 3 if ours else 2}
            size.plot(line.bytes, line.map, "o", markersize=11 if ours else 7, **style)
            places, found = zip(*line.precision_at.items(), strict=True)
            top.plot(places, found, "o-", label=line.ranking, linewidth=2.6 if ours else 1.4, **style)
        which = "all queries" if queries == "all" else f"queries of {queries} classes"
        size.set(xlabel="bytes per row", ylabel="MAP", xscale="log", ylim=(0, 1.05), title=which)
        top.set(xlabel="places", ylabel="precision", xscale="log", ylim=(0, 1.05), title=which)
        top.legend(fontsize="small")
    return figure


def tuning_figure(found: Recommendation) -> Figure:
    """MAP and precision@10 against every knob that was turned, the defaults among its values; fit times below."""
    first = found.trials[0]
    knobs = [knob for knob in first.params if any(t.knob == knob for t in found.trials)]
    figure, axes = _figure(max(1, len(knobs)), f"DISH on {found.n_rows:,} rows, judged by held-out ones", 6.0, 2)
    for knob, top, below in zip(knobs, axes, axes[len(knobs) :], strict=False):
        trials = [t for t in found.trials if t.knob in (knob, "defaults")]
        trials.sort(key=lambda t: (isinstance(t.params[knob], str), t.params[knob]))
        values = [str(t.params[knob]) for t in trials]
        top.plot(values, [t.map for t in trials], "o-", color="#c1121f", label="MAP")
        top.plot(values, [t.precision_at_10 for t in trials], "s--", color=_COLOURS[0], label="precision@10")
        scores = [score for t in trials for score in (t.map, t.precision_at_10)]
        top.set(
            title=knob, ylabel="held-out rows", ylim=(min(scores) - 0.05, max(scores) + 0.08)
        )  # a hundredth is to look like one
        top.axvline(str(first.params[knob]), color="#9c9c9c", linewidth=1, linestyle=":", label="default")  # type: ignore[arg-type]
        below.bar(values, [t.seconds for t in trials], color=_COLOURS[5])
        below.set(ylabel="fit, s")
    axes[0].legend(fontsize="small")
    return figure


def write(figure: Figure, path: Path) -> None:
    """One file, .png or .svg."""
    if path.suffix not in (".png", ".svg"):
        raise ValueError(f"a picture is written as .png or .svg, not as {path.name!r}")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix[1:], dpi=150)
    write_atomically(path, buffer.getvalue())


def save(figure: Figure, output: Path, name: str) -> str:
    """Write PNG and SVG files; the SVG as an HTML figure for the page."""
    content = {}
    for kind in ("png", "svg"):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, dpi=150)
        content[kind] = buffer.getvalue()
        write_atomically(output / f"{name}.{kind}", content[kind])
    svg = content["svg"].decode()
    return f"<figure>{svg[svg.index('<svg') :]}</figure>"
