"""Figures made from results: the paper's tables, `dish bench`, `dish eval`, `dish tune` and `dish drift`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dish.errors import InputError
from dish.evaluation.compare import RankingScores
from dish.evaluation.drift import NAMES, Drift
from dish.evaluation.tune import Recommendation
from dish.experiments import paper, style
from dish.experiments.bench import FLOATS, Results, Run
from dish.experiments.style import INK, name_lines, panels
from dish.experiments.tables import size, title, values
from dish.registry import OURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

MOST_BARS = 40
NEW, REFERENCE = style.COLOURS["dish"], INK  # colours of new rows and of those that they are compared with
# The names of `dish eval` → methods.
RANKINGS = {
    "float cosine": "l2",
    "sign bits": "sign",
    "PCA-ITQ": "pca_itq",
    "class probabilities": "ceiling",
    "logistic regression": "ceiling",
}
Curve = tuple[Any, Any]


# --- the paper's tables -----------------------------------------------------------------------------------


def method_figure(table: paper.PaperTable, results: Results, trials: int, data: str | None = None) -> Figure:
    """MAP and precision within radius 2 against bits, precision–recall, and precision@k, of every method with runs.

    Each method is drawn at its largest training size. Float rankings are horizontal lines.
    """
    lines = _drawn_lines(table)
    several = any(line.n_train is None for line in lines)
    heading = title(table, results).replace(": MAP and training time", "")
    figure, axes = panels(4, heading, max(2.8, 0.15 * len(lines) + 0.7), columns=1)
    seen: Counter[str] = Counter()
    for line in lines:
        label = f"{line.label} ({size(line)})" if line.n_train and several else line.label
        runs = {r: [table.run(line, r, t, data) for t in range(trials)] for r in line.bits or table.bits}
        look = style.style(line.method, seen[line.method])
        seen[line.method] += 1
        if line.method in FLOATS:
            _draw_horizontal(axes[0], label, values(results, next(iter(runs.values())), "map"), look)
        else:
            _draw_method(axes, label, runs, results, table.time_bits, look)
    at = f"({table.time_bits} bits)"
    labels = (
        *(("bits", "MAP"), ("bits", "precision within radius 2")),
        *((f"recall {at}", "precision"), (f"k {at}", "precision@k")),
    )
    for axis, (x, y) in zip(axes, labels, strict=True):
        axis.set(xlabel=x, ylabel=y)
    for axis in axes[:2]:
        axis.set(xticks=table.bits)
    axes[3].set(xscale="log")
    for axis in axes:
        name_lines(axis, axis.lines, _middle(axis.lines) if axis is axes[2] else None)
    return figure


def _drawn_lines(table: paper.PaperTable) -> list[paper.Line]:
    """The lines of a table, each at its largest training size."""
    largest = {line.label for line in table.lines if line.n_train is None}
    return [line for line in table.lines if line.n_train is None or line.label not in largest]


def _draw_horizontal(axis: Axes, label: str, found: list[float], look: dict[str, Any]) -> None:
    """Draw a float ranking, which has no code length."""
    if found:
        axis.axhline(float(np.mean(found)), label=label, **look)


def _draw_method(
    axes: list[Axes], label: str, runs: dict[int, list[Run]], results: Results, bits: int, look: dict[str, Any]
) -> None:
    """Draw the finished runs of one method. Both curves are for the code length ``bits``."""
    for axis, key in zip(axes, ("map", "precision_within_2"), strict=False):
        means = [np.mean(values(results, of, key) or [np.nan]) for of in runs.values()]
        if np.isfinite(means).any():
            axis.plot(list(runs), means, label=label, **look)
    plain = {**look, "marker": ""}
    if curve := precision_recall(runs.get(bits, []), results):
        axes[2].plot(*curve, label=label, **plain)
    at = [results[run]["precision_at"] for run in runs.get(bits, ()) if "precision_at" in results.get(run, {})]
    if at:
        axes[3].plot([int(k) for k in at[0]], np.mean([list(x.values()) for x in at], 0), label=label, **plain)


def precision_recall(runs: Sequence[Run], results: Results) -> Curve | None:
    """Recall and precision by Hamming radius, means over runs; None if no run has them.

    Radii within which no row was found have no precision, and are left out.
    """
    at = [results[run] for run in runs if "curve_recall" in results.get(run, {})]
    if not at:
        return None
    recall, precision = (np.mean([each[f"curve_{key}"] for each in at], 0) for key in ("recall", "precision"))
    return recall[recall > 0], precision[recall > 0]


def _middle(lines: Sequence[Line2D]) -> list[float]:
    """The heights of precision-recall curves at a recall of one half: at their ends, all curves meet."""
    return [float(np.interp(0.5, *np.asarray(line.get_data(), float))) for line in lines]


def sensitivity_figure(results: Results, trials: int) -> Figure:
    """MAP and precision within radius 2 against ν, and against the iterations from both starts."""
    figure, axes = panels(4, "DISH-K on CIFAR-10, 5,000 training rows, 64 bits")

    def mean(key: str, **params: object) -> float:
        found = values(results, [paper.sensitivity_run(t, **params) for t in range(trials)], key)
        return float(np.mean(found)) if found else float("nan")

    scores = (("map", "MAP"), ("precision_within_2", "precision within radius 2"))
    for (key, name), top, below in zip(scores, axes[:2], axes[2:], strict=True):
        top.plot(paper.NUS, [mean(key, nu=nu) for nu in paper.NUS], **style.style("dish_k"))
        top.set(xlabel="weight ν of the loss", xscale="log", ylabel=name)
        for i, start in enumerate(paper.STARTS):
            line = [mean(key, init=start, n_iter=t) for t in paper.ITERATIONS]
            below.plot(paper.ITERATIONS, line, label=f"{start} start", **style.style("dish_k", i))
        below.set(xlabel="iterations", ylabel=name)
        if np.isfinite([np.asarray(line.get_ydata()) for line in below.lines]).any(axis=1).all():
            name_lines(below, below.lines)
    return figure


# --- `dish bench` -----------------------------------------------------------------------------------------


def precision_recall_figure(heading: str, runs: Sequence[Run], results: Results) -> Figure:
    """Precision against recall by Hamming radius, a panel per code length; means over trials."""
    lengths = dict.fromkeys(run.bits for run in runs)
    methods = list(dict.fromkeys((run.method, run.n_train) for run in runs))
    several = len({n_train for _, n_train in methods}) > 1
    figure, axes = panels(len(lengths), heading, max(2.8, 0.15 * len(methods) + 0.7), columns=1)
    for axis, r in zip(axes, lengths, strict=True):
        seen: Counter[str] = Counter()
        for method, n_train in methods:
            of = [run for run in runs if (run.method, run.n_train, run.bits) == (method, n_train, r)]
            look = {**style.style(method, seen[method]), "marker": ""}
            seen[method] += 1
            if curve := precision_recall(of, results):
                rows = f"{n_train:,} rows" if n_train else "all rows"
                axis.plot(*curve, label=style.name_of(method) + (f", {rows}" if several else ""), **look)
        axis.set(xlabel=f"recall ({r} bits)", ylabel="precision", xlim=(0, 1), ylim=(0, 1.03))
        name_lines(axis, axis.lines, _middle(axis.lines))
    if not any(axis.lines for axis in axes):
        raise InputError("no run has a precision-recall curve: rankings by real numbers have none, and failed runs")
    return figure


# --- `dish eval`, `dish tune`, `dish drift` ---------------------------------------------------------------


def comparison_figure(lines: Sequence[RankingScores]) -> Figure:
    """MAP against bytes per row, and precision@k, of all rankings of ``compare``; one row per group of its lines."""
    groups = list(dict.fromkeys(line.group for line in lines))
    figure, axes = panels(2 * len(groups), "rankings of the same rows", 3.2)
    for group, scored, top in zip(groups, axes[::2], axes[1::2], strict=True):
        for line in lines:
            if line.group == group:
                look = _look_of_ranking(line.ranking)
                dot = {**look, "markersize": 8, "marker": look.get("marker", "o")}
                scored.plot(line.bytes, line.map, label=line.ranking, **dot)
                top.plot(*zip(*line.precision_at.items(), strict=True), label=line.ranking, **look)
        scored.set(xlabel="bytes per row", ylabel="MAP", xscale="log", ylim=(0, 1.05))
        top.set(xlabel="k", ylabel="precision@k", xscale="log", ylim=(0, 1.05))
        for axis in (scored, top):
            axis.set_title(group, fontsize=style.FONT)
        name_lines(scored, scored.lines)
        name_lines(top, top.lines)
    return figure


def _look_of_ranking(ranking: str) -> dict[str, Any]:
    """The style of a ranking of ``compare``, which names a hasher by its class."""
    kind, _, further = ranking.partition(", ")
    methods = RANKINGS | {name: method for method, name in OURS.items()}
    return style.style(methods.get(kind, kind), 1 if further else 0)


def tuning_figure(found: Recommendation) -> Figure:
    """MAP and precision@10 against every parameter that was varied, with fit times beside them.

    All settings were tried with the rows of the first trial; only the best with more.
    """
    first = found.trials[0]
    varied = [name for name in first.params if any(t.parameter == name for t in found.trials)]
    heading = f"DISH fitted to {first.n_train:,} rows, scored on held-out rows"
    figure, axes = panels(2 * max(1, len(varied)), heading, 2.4)
    for name, scored, timed in zip(varied, axes[::2], axes[1::2], strict=True):
        trials = [t for t in found.trials if t.parameter in (name, "defaults") and t.n_train == first.n_train]
        trials.sort(key=lambda t: (isinstance(t.params[name], str), t.params[name]))
        places, default = list(range(len(trials))), [t.parameter for t in trials].index("defaults")
        scored.plot(places, [t.map for t in trials], label="MAP", **style.style("dish"))
        scored.plot(places, [t.precision_at_10 for t in trials], label="precision@10", **style.style("dish_k", 1))
        scores = [score for t in trials for score in (t.map, t.precision_at_10)]
        # The margins keep small differences from looking large.
        scored.set(ylabel="score", ylim=(min(scores) - 0.05, max(scores) + 0.08))
        scored.axvline(default, color=INK, linewidth=1, linestyle=":")
        scored.annotate("default", (default, 1), (3, -10), ("data", "axes fraction"), "offset points", color=INK)
        timed.bar(places, [t.seconds for t in trials], color=style.COLOURS["dish"])
        timed.set(ylabel="fit, s")
        for axis in (scored, timed):
            axis.set_xticks(places, [str(t.params[name]) for t in trials])
            axis.set_xlabel(name)
        name_lines(scored, scored.lines[:2])
    return figure


def drift_figure(found: Drift) -> Figure:
    """New rows against reference rows: the share of rows with each bit set, and every histogram."""
    profile, counts = found.profile, found.counts
    heading = f"drift score {found.score:.2f}: {found.n:,} new rows, {found.n_reference:,} {found.source}"
    if found.unknown is not None:
        shares = f"{found.unknown:.0%} of the new rows, {found.unknown_reference:.0%} of the reference rows"
        heading += f"\nof no known class: {shares}"
    figure, axes = panels(1 + len(profile.edges), heading)
    order = np.argsort(profile.bit_shares())
    places = np.arange(1, profile.n_bits + 1)
    axes[0].plot(places, profile.bit_shares()[order], linewidth=2.6, color=REFERENCE)
    axes[0].plot(places, profile.bit_shares(counts)[order], "o", markersize=3, color=NEW)
    axes[0].set(ylabel="share of rows with the bit set", xlabel="bits, by their share in the reference", ylim=(0, 1))
    for axis, (name, edges) in zip(axes[1:], profile.edges.items(), strict=True):
        places, before, after = _merged(edges, profile.shares(name), profile.shares(name, counts))
        axis.stairs(before, places, fill=True, alpha=0.45, color=REFERENCE)
        axis.stairs(after, places, linewidth=1.8, color=NEW)
        axis.set(xlabel=NAMES[name], ylabel="share of rows", ylim=(0, None))
        if name in profile.limits:
            axis.axvline(profile.limits[name], color=INK, linewidth=1, linestyle=":")
            place = (profile.limits[name], 0.9)
            axis.annotate("no known class →", place, (3, 0), ("data", "axes fraction"), "offset points", color=INK)
    axes[0].annotate("reference rows", (0.04, 0.9), xycoords="axes fraction", weight="bold", color=REFERENCE)
    axes[0].annotate("new rows", (0.04, 0.82), xycoords="axes fraction", weight="bold", color=NEW)
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
