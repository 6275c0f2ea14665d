"""Tables and figures of the paper from run files: Markdown, PNG and SVG, and one self-contained HTML page."""

from __future__ import annotations

import html
import io
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dish.experiments import bench, paper
from dish.experiments.bench import Run
from dish.io.modelfile import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Results = dict[Run, dict[str, Any]]
WHAT = (*paper.TABLES, "figures", "sensitivity", "all")


def reproduce(
    what: str,
    folder: Path,
    output: Path,
    *,
    trials: int = 5,
    data: str | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Do the missing runs of a table or figure, write it to ``output``; the path of the HTML page."""
    if what not in WHAT:
        raise ValueError(f"what must be one of {', '.join(WHAT)}; got {what!r}")
    tables = [name for name in paper.TABLES if what in (name, "all")]
    methods, datasets = bench.method_names() + bench.method_names(images=True), {}  # type: ignore[var-annotated]
    results: Results = {}
    for name in tables:
        runs = paper.TABLES[name].runs(methods, trials, data)
        if paper.TABLES[name].deep and not _has_gpu():
            say(f"{name}: no GPU here, so only finished runs are shown (benchmarks/deep.py makes the others)")
            results |= bench.finished(runs, folder)
        else:
            results |= bench.run_all(runs, folder, datasets=datasets, report=say)
    drawn = []  # figures of methods come from finished runs: a table's own command makes them
    for name, table in paper.TABLES.items() if what in ("figures", "all") else ():
        finished = bench.finished(table.runs(methods, trials, data), folder)
        results |= finished
        drawn += [name] if finished and len(table.bits) > 1 else []
        if not finished:
            say(f"no runs of {name} yet: dish reproduce {name} makes them")
    if what in ("sensitivity", "figures", "all"):
        results |= bench.run_all(paper.sensitivity_runs(trials), folder, datasets=datasets, report=say)

    output.mkdir(parents=True, exist_ok=True)
    parts: list[str] = []
    for name in tables:
        table = paper.TABLES[name]
        text = markdown(table, results, trials, data)
        write_atomically(output / f"{name}.md", text.encode())
        say(text)
        parts.append(_html_table(table, results, trials, data))
    for name in drawn:
        parts += _save(method_figure(paper.TABLES[name], results, trials, data), output, f"{name}_curves")
    if what in ("sensitivity", "figures", "all"):
        parts += _save(sensitivity_figure(results, trials), output, "sensitivity")
    page = output / f"{what}.html"
    write_atomically(page, _PAGE.format(body="\n".join(parts), environment=_environments(results)).encode())
    return page


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


# --- numbers ----------------------------------------------------------------------------------------------


def values(results: Results, runs: list[Run], key: str) -> list[float]:
    """One number from each run that has it."""
    return [results[run][key] for run in runs if run in results and key in results[run]]


def cell(found: list[float], digits: int = 3) -> str:
    """Mean ± standard deviation."""
    if not found:
        return "–"
    mean = f"{np.mean(found):.{digits}f}"
    return f"{mean} ± {np.std(found):.{digits}f}" if len(found) > 1 else mean


def table_rows(table: paper.Table, results: Results, trials: int, data: str | None) -> list[list[str]]:
    """Cells of a table: method, training rows, ours and the paper's MAP at every length, both times."""
    rows = []
    for line in table.lines:
        wanted = line.bits or table.bits
        cells = [line.label, f"{line.n_train:,}" if line.n_train else "all"]
        for i, r in enumerate(table.bits):
            runs = [table.run(line, r, t, data) for t in range(trials)]
            ours = cell(values(results, runs, "map")) if r in wanted else ""
            theirs = line.map[i] if line.map else None
            cells.append(f"{ours} ({theirs:.3f})" if theirs is not None else ours)
        runs = [table.run(line, table.time_bits, t, data) for t in range(trials)]
        seconds = cell(values(results, runs, "fit_s"), 1)
        cells.append(f"{seconds} ({line.seconds:g})" if line.seconds is not None else seconds)
        rows.append(cells)
    return rows


def title(table: paper.Table, results: Results) -> str:
    """The paper's title, and the stand-in's name where the numbers are of one."""
    synthetic = any(run.data == table.data and r["definition"]["synthetic"] for run, r in results.items())
    return f"{table.title} [on {table.data}, a synthetic stand-in]" if synthetic else table.title


def header(table: paper.Table) -> list[str]:
    """Column names."""
    return ["method", "training rows", *(f"{r} bits" for r in table.bits), f"fit, s ({table.time_bits} bits)"]


def markdown(table: paper.Table, results: Results, trials: int, data: str | None = None) -> str:
    """A table with the paper's figures in brackets beside ours."""
    names = header(table)
    lines = [f"**{title(table, results)}**", "", "| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(row) + " |" for row in table_rows(table, results, trials, data)]
    lines += ["", f"{_trials(trials)}; in brackets the paper's figure; – not run. {table.note}"]
    lines += [f"- {text}" for text in extras(table, results, trials, data)]
    return "\n".join(lines) + "\n"


def extras(table: paper.Table, results: Results, trials: int, data: str | None) -> list[str]:
    """What the runs also measured: learned codes as the database, real-valued queries."""
    said = []
    for line in table.lines:
        if line.method != "dish":
            continue
        for key, text in (
            ("map_learned_codes", "learned codes as the database"),
            ("map_asymmetric", "queries ranked by their real-valued outputs"),
        ):
            found = {
                r: values(results, [table.run(line, r, t, data) for t in range(trials)], key)
                for r in (line.bits or table.bits)
            }
            if any(found.values()):
                numbers = ", ".join(f"{cell(v)} ({r} bits)" for r, v in found.items() if v)
                said.append(f"{line.label}, {line.n_train or 'all'} rows, {text}: {numbers}")
    return said


def _trials(trials: int) -> str:
    return f"Mean ± standard deviation of up to {trials} trials" if trials > 1 else "One trial"


# --- figures ----------------------------------------------------------------------------------------------


_COLOURS = (
    *("#1d4e89", "#00818a", "#4f7942", "#7b5ea7", "#8d6e63"),
    *("#607d8b", "#b08900", "#3aa6dd", "#9c9c9c", "#d16ba5"),
)


def _figure(columns: int, title: str, height: float = 3.6) -> tuple[Figure, list[Axes]]:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, columns, figsize=(4.3 * columns, height), layout="constrained")
    figure.suptitle(title)
    for axis in np.atleast_1d(axes):
        axis.grid(True, alpha=0.3)
    return figure, list(np.atleast_1d(axes))


def method_figure(table: paper.Table, results: Results, trials: int, data: str | None = None) -> Figure:
    """Precision within radius 2 against bits, precision–recall, and precision@k, for every method there is.

    Where a table has several training sizes only the largest is drawn (and methods that have no other); DISH is
    drawn thick, rivals thin, told apart by colour and marker.
    """
    figure, (radius, curve, top) = _figure(3, title(table, results), height=5.4)
    largest = {line.method for line in table.lines if line.n_train is None}
    rivals = itertools.cycle(zip(_COLOURS, itertools.cycle("osv^DPX"), strict=False))
    ours = itertools.cycle(("#c1121f", "#f77f00", "#6a040f"))
    for line in table.lines:
        if line.n_train is not None and line.method in largest:
            continue
        label = f"{line.label} ({line.n_train:,})" if line.n_train and largest else line.label
        dish = "DISH-" in line.label
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


def _save(figure: Figure, output: Path, name: str) -> list[str]:
    """PNG and SVG files; the SVG for the page."""
    import matplotlib.pyplot as plt

    content = {}
    for kind in ("png", "svg"):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, dpi=150)
        content[kind] = buffer.getvalue()
        write_atomically(output / f"{name}.{kind}", content[kind])
    plt.close(figure)
    svg = content["svg"].decode()
    return [f"<figure>{svg[svg.index('<svg') :]}</figure>"]


# --- the page ---------------------------------------------------------------------------------------------


def _html_table(table: paper.Table, results: Results, trials: int, data: str | None) -> str:
    def row(cells: list[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

    body = "".join(
        row(cells, "td").replace("<tr>", '<tr class="ours">' if "DISH" in cells[0] else "<tr>")
        for cells in table_rows(table, results, trials, data)
    )
    notes = "".join(f"<li>{html.escape(text)}</li>" for text in extras(table, results, trials, data))
    return (
        f"<h2>{html.escape(title(table, results))}</h2>"
        f"<div class='scroll'><table><thead>{row(header(table), 'th')}</thead>"
        f"<tbody>{body}</tbody></table></div><p>{_trials(trials)}; in brackets the paper's figure; – not run. "
        f"{html.escape(table.note)}</p><ul>{notes}</ul>"
    )


def _environments(results: Results) -> str:
    """The machines and commits behind the numbers."""
    lines = {
        f"{e['cpu']}, {e['cores']} cores, Python {e['python']}, torch {e['versions']['torch']}, commit {e['commit']}"
        for e in (result["environment"] for result in results.values())
    }
    return "<br>".join(html.escape(line) for line in sorted(lines))


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>DISH: the paper's tables and figures</title>
<style>
:root {{ color-scheme: light dark; --line: #8885; --ours: #2a9d5c22; }}
body {{ font: 16px/1.55 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.6rem; }} h2 {{ font-size: 1.15rem; margin-top: 2.5rem; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; white-space: nowrap; }}
td, th {{ padding: .35rem .8rem; border-bottom: 1px solid var(--line); text-align: right; }}
td:first-child, th:first-child {{ text-align: left; }}
.ours {{ background: var(--ours); font-weight: 600; }}
figure {{ margin: 2rem 0; background: white; border-radius: 8px; padding: .5rem; }}
figure svg {{ width: 100%; height: auto; }}
footer {{ margin-top: 3rem; font-size: .8rem; opacity: .75; }}
</style></head><body>
<h1>DISH: the paper's tables and figures, measured again</h1>
{body}
<footer>{environment}</footer>
</body></html>
"""
