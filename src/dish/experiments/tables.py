"""Tables made from run files, as Markdown, LaTeX and CSV: the paper's tables, and those of `dish bench`."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from dish.errors import InputError
from dish.experiments import significance
from dish.experiments.bench import FLOATS, Results, Run
from dish.experiments.paper import FIGURES, Line, PaperTable
from dish.io.atomic import write_atomically

FORMS = (".md", ".tex", ".csv")
_BOOKTABS = "% needs \\usepackage{booktabs} in the preamble\n"
_MARKS = {
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--"},
    **{"±": r"$\pm$", "−": "$-$", "α": r"$\alpha$", "×": r"$\times$"},
    **{sign: f"${sign}$" for sign in "-+<>|"},
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
}
FURTHER = {  # scores that have a table of their own where the paper has numbers
    "map_learned_codes": "MAP with the learned codes of the training rows as the database",
    "precision_within_2": "Precision within Hamming radius 2",
}


def values(results: Results, runs: list[Run], key: str) -> list[float]:
    """The value of ``key`` in every run that has it."""
    return [results[run][key] for run in runs if run in results and key in results[run]]


def cell(found: list[float], digits: int = 3) -> str:
    """Mean ± standard deviation."""
    if not found:
        return "–"
    mean = f"{np.mean(found):.{digits}f}"
    return f"{mean} ± {np.std(found):.{digits}f}" if len(found) > 1 else mean


def table_rows(
    table: PaperTable, results: Results, trials: int, data: str | None, key: str = "map"
) -> list[list[str]]:
    """Cells of a table: method, training rows, trials, our scores (the paper's in brackets) by length, and fit times.

    For a further ``key``, only lines that have it, without fit times.
    """
    rows = []
    for line in table.lines:
        runs = [[table.run(line, r, t, data) for t in range(trials)] for r in table.bits]
        wanted = [r in (line.bits or table.bits) or line.method in FLOATS for r in table.bits]
        ours = [values(results, of, key) if asked else [] for of, asked in zip(runs, wanted, strict=True)]
        theirs = [line.theirs(key, i) for i in range(len(runs))]
        if key != "map" and not any(ours) and not any(theirs):
            continue
        counts = sorted({len(found) for found in ours if found})
        cells = [line.label, size(line), "–".join(map(str, {*counts[:1], *counts[-1:]})) or "–"]
        for found, number, asked in zip(ours, theirs, wanted, strict=True):
            cells.append((cell(found) if asked else "") + (f" ({number:.3f})" if number is not None else ""))
        if key == "map":
            seconds = cell(
                values(results, [table.run(line, table.time_bits, t, data) for t in range(trials)], "fit_s"), 1
            )
            cells.append(f"{seconds} ({line.seconds:,.10g})" if line.seconds is not None else seconds)
        rows.append(cells)
    return rows


def size(line: Line) -> str:
    """The number of training rows in words."""
    return f"{line.n_train:,}" if line.n_train else "all"


def title(table: PaperTable, results: Results) -> str:
    """The title of the table. It names the data set if that is a synthetic stand-in."""
    synthetic = any(run.data == table.data and r["definition"]["synthetic"] for run, r in results.items())
    return f"{table.title} [on {table.data}, a synthetic stand-in]" if synthetic else table.title


def finding(table: PaperTable, results: Results, trials: int, data: str | None = None) -> str:
    """One sentence on the best of our methods and the best rival, at the code length of the time column."""
    r = table.time_bits
    found = []
    for line in table.lines:
        maps = values(results, [table.run(line, r, t, data) for t in range(trials)], "map")
        if maps:
            name = f"{line.label} ({f'{line.n_train:,}' if line.n_train else 'all'} training rows)"
            paper = line.map[table.bits.index(r)] if line.map and r in table.bits else None
            found.append((line, name, float(np.mean(maps)), paper))
    ours = [one for one in found if one[0].label.startswith("DISH")]
    rivals = [one for one in found if one not in ours and one[0].method not in FLOATS]
    floats = [one for one in found if one[0].method in FLOATS]
    parts = []
    for whose, group in (("DISH", ours), ("the other methods", rivals)):
        if group:
            _, name, score, paper = max(group, key=lambda one: one[2])
            reported = "" if paper is None else f" (the paper: {paper:.3f})"
            parts.append(f"best of {whose} is {name} with a MAP of {score:.3f}{reported}")
    if not parts:
        return ""
    text = f"At {r} bits the " + ", and the ".join(parts) + "."
    for line, _, score, _ in floats:
        text += f" The {FLOATS[line.method]} gives {score:.3f}."
    return text


def header(table: PaperTable) -> list[str]:
    """Column names."""
    lengths = (f"{r} bits" for r in table.bits)
    return ["method", "training rows", "trials", *lengths, f"fit, s ({table.time_bits} bits)"]


def markdown(table: PaperTable, results: Results, trials: int, data: str | None = None) -> str:
    """A table as Markdown, with the paper's numbers in brackets."""
    parts = [f"**{title(table, results)}**", markdown_grid(header(table), table_rows(table, results, trials, data))]
    for key, heading in FURTHER.items():
        if any(getattr(line, FIGURES[key]) for line in table.lines):
            rows = table_rows(table, results, trials, data, key)
            parts += [f"{heading}:", markdown_grid(header(table)[:-1], rows)]
    parts.append("".join(f"- {text}\n" for text in notes(table, results, trials, data)))
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def latex(table: PaperTable, results: Results, trials: int, data: str | None = None) -> str:
    """A table as LaTeX. In each column of MAP, the best codes are bold; float rankings are no codes."""
    rows = table_rows(table, results, trials, data)
    floats = [i for i, line in enumerate(table.lines) if line.method in FLOATS]
    grid = latex_grid(header(table), rows, best_cells(rows, range(3, 3 + len(table.bits)), floats))
    caption = _latex(" ".join([f"{title(table, results)}.", *notes(table, results, trials, data)]))
    return f"{_BOOKTABS}\\begin{{table}}\n\\centering\n\\caption{{{caption}}}\n{grid}\\end{{table}}\n"


def comma_separated(table: PaperTable, results: Results, trials: int, data: str | None = None) -> str:
    """A table as CSV: one line per method, training size and code length."""
    names = ["data", "synthetic", "method", "training_rows", "bits", "trials"]
    names += ["map", "map_std", "paper_map", "fit_s", "fit_s_std"]
    lines: list[list[object]] = []
    for line in table.lines:
        for r in line.bits or table.bits:
            runs = [table.run(line, r, t, data) for t in range(trials)]
            found, seconds = values(results, runs, "map"), values(results, runs, "fit_s")
            theirs = line.theirs("map", table.bits.index(r) if r in table.bits else 0)  # a float ranking has one run
            size = line.n_train or "all"
            on = [runs[0].data, _is_synthetic(results, runs)]
            lines.append([*on, line.label, size, r, len(found), *_spread(found), theirs, *_spread(seconds)])
    return csv_grid(names, lines)


def _is_synthetic(results: Results, runs: list[Run]) -> bool | None:
    """Whether the runs are on a synthetic stand-in; None if there are none."""
    found = [results[run]["definition"]["synthetic"] for run in runs if run in results]
    return any(found) if found else None


def _spread(found: list[float]) -> tuple[float | None, float | None]:
    """Mean and standard deviation. One value has no deviation."""
    mean = float(np.mean(found)) if found else None
    return mean, float(np.std(found)) if len(found) > 1 else None


# --- runs of `dish bench` ---------------------------------------------------------------------------------


def bench_grid(runs: list[Run], results: Results) -> tuple[list[str], list[list[str]]]:
    """Column names and rows: one row per method and training size, with its MAP at every code length and its time."""
    lengths = list(dict.fromkeys(run.bits for run in runs))
    rows = []
    for method, n_train in dict.fromkeys((run.method, run.n_train) for run in runs):
        of = [run for run in runs if (run.method, run.n_train) == (method, n_train)]
        at = {r: of if method in FLOATS else [run for run in of if run.bits == r] for r in lengths}
        maps = [_cell_or_failed(results, at[r], "map", 3) for r in lengths]
        seconds = _cell_or_failed(results, at[lengths[-1]], "fit_s", 2)
        rows.append([FLOATS.get(method, method), f"{n_train:,}" if n_train else "all", *maps, seconds])
    return ["method", "training rows", *(f"{r} bits" for r in lengths), "fit, s"], rows


def _map_interval(run: Run, results: Results) -> tuple[float | None, float | None]:
    found = significance.of_queries([run], results)
    return (None, None) if found is None else significance.interval(found, 0.0, 1.0)[1:]


def _cell_or_failed(results: Results, runs: list[Run], key: str, digits: int) -> str:
    found = values(results, runs, key)
    return "failed" if not found and any("failed" in results[run] for run in runs) else cell(found, digits)


def write_bench(path: Path, title: str, runs: list[Run], results: Results) -> None:
    """Write the runs as a .md or .tex table, or as .csv with one line per run."""
    if path.suffix == ".csv":
        numbers = ("map", "precision_within_2", "recall_within_2", "fit_s", "encode_s", "failed")
        lines = [
            [
                *(run.data, _is_synthetic(results, [run]), run.method, run.n_train or "all", run.bits, run.trial),
                *(results[run].get(name) for name in numbers),
                *_map_interval(run, results),
            ]
            for run in runs
        ]
        names = ["data", "synthetic", "method", "training_rows", "bits", "trial", *numbers, "map_low", "map_high"]
        text = csv_grid(names, lines)
    elif path.suffix == ".tex":
        text = _bench_latex(title, runs, results)
    elif path.suffix == ".md":
        names, tested = significance.grid(runs, results)
        text = f"**{title}**\n\n{markdown_grid(*bench_grid(runs, results))}"
        text += f"\n{significance.LEGEND}:\n\n{markdown_grid(names, tested)}" if tested else ""
    else:
        raise InputError(f"a table file must end in {', '.join(FORMS)}; got {path.name!r}")
    write_atomically(path, text.encode())


def _bench_latex(title: str, runs: list[Run], results: Results) -> str:
    """The runs as LaTeX. At each code length, the best codes are bold; float rankings are no codes."""
    names, rows = bench_grid(runs, results)
    floats = [i for i, cells in enumerate(rows) if cells[0] in FLOATS.values()]
    text = f"{_BOOKTABS}% {title}\n{latex_grid(names, rows, best_cells(rows, range(2, len(names) - 1), floats))}"
    names, tested = significance.grid(runs, results)
    return text + (f"\n% {significance.LEGEND}\n{latex_grid(names, tested)}" if tested else "")


# --- grids of text ----------------------------------------------------------------------------------------


def markdown_grid(names: list[str], rows: list[list[str]]) -> str:
    """Rows of cells as a Markdown table."""
    lines = [names, ["---"] * len(names), *rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def latex_grid(names: list[str], rows: list[list[str]], bold: Collection[tuple[int, int]] = ()) -> str:
    """Rows of cells as a LaTeX tabular with some bold cells, given as (row, column); needs the package booktabs."""
    lines = [
        [_bold(_latex(cell)) if (i, j) in bold else _latex(cell) for j, cell in enumerate(cells)]
        for i, cells in enumerate(rows)
    ]
    head, *body = [" & ".join(cells) + r" \\" for cells in ([_latex(name) for name in names], *lines)]
    columns = "l" + "r" * (len(names) - 1)
    parts = ["\\toprule", head, "\\midrule", *body, "\\bottomrule"]
    return "\n".join([f"\\begin{{tabular}}{{{columns}}}", *parts, "\\end{tabular}"]) + "\n"


def best_cells(rows: list[list[str]], columns: Iterable[int], skipped: Collection[int] = ()) -> set[tuple[int, int]]:
    """(row, column) of the highest number as printed in each column with several; ``skipped`` rows do not count."""
    best = set()
    for j in columns:
        numbers = {i: re.match(r"\d+\.\d+", cells[j]) for i, cells in enumerate(rows) if i not in skipped}
        found = {i: float(number[0]) for i, number in numbers.items() if number}
        if len(found) > 1:
            best |= {(i, j) for i, number in found.items() if number == max(found.values())}
    return best


def csv_grid(names: list[str], rows: list[list[object]]) -> str:
    """Rows of values as CSV; None is an empty field."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([names, *rows])
    return buffer.getvalue()


def _bold(text: str) -> str:
    """A cell in bold, but not the paper's number in brackets after ours."""
    ours, bracket, theirs = text.partition(" (")
    return f"\\textbf{{{ours}}}{bracket}{theirs}"


def _latex(text: str) -> str:
    """Plain text as LaTeX: special characters escaped, signs of numbers and comparisons as mathematics."""
    text = re.sub(r"(?<![\w.])[-+](?=[\d.])|[\\~^±–−α×<>|&%$#_{}]", lambda found: _MARKS[found[0]], text)
    return re.sub(r"\*\*(.+?)\*\*", r"\\textbf{\1}", text)


def notes(table: PaperTable, results: Results, trials: int, data: str | None = None) -> list[str]:
    """What a reader of the table must know: sentences on its cells, its machines, and the code that made them."""
    spread = f"mean ± standard deviation of up to {trials} trials" if trials > 1 else "one trial"
    found = [
        f"MAP and fit times: {spread}. In brackets: the paper's. –: not run. Lines without brackets are our "
        "additions.",
        *([table.note] if table.note else []),
    ]
    for line in table.lines:
        runs = {r: [table.run(line, r, t, data) for t in range(trials)] for r in line.bits or table.bits}
        ranked = {r: values(results, of, "map_asymmetric") for r, of in runs.items()}
        if line.method == "dish_k" and any(ranked.values()):
            numbers = ", ".join(f"{cell(v)} ({r} bits)" for r, v in ranked.items() if v)
            found.append(f"{line.label}, {size(line)} rows, queries ranked by their real-valued outputs: {numbers}.")
    of = [(line, run, results[run]) for line, run in _runs_of(table, trials, data) if run in results]
    timed = [(line, result) for line, run, result in of if run.bits == table.time_bits and "fit_s" in result]
    return found + _machines(timed) + _commits([result["environment"]["commit"] for _, _, result in of])


def _runs_of(table: PaperTable, trials: int, data: str | None) -> list[tuple[Line, Run]]:
    """All runs of a table, each once, with its line."""
    lines = {
        table.run(line, r, t, data): line
        for line in table.lines
        for r in line.bits or table.bits
        for t in range(trials)
    }
    return [(line, run) for run, line in lines.items()]


def _machines(timed: list[tuple[Line, dict[str, Any]]]) -> list[str]:
    """On which machines the fit times were measured."""
    lines: dict[str, list[str]] = {}
    shared = max((result.get("runs_at_a_time", 1) for _, result in timed), default=1)
    for line, result in timed:
        e = result["environment"]
        name = ", ".join([e.get("gpu", e["cpu"]), f"{e['cores']} cores"])
        lines.setdefault(name, []).append(f"{line.label} ({size(line)})")
    most, *others = sorted(lines, key=lambda name: -len(lines[name])) or [""]
    text = f"Fit times: {most}" + (", unless listed here" if others else "")
    text += "".join(f"; {name}: {', '.join(dict.fromkeys(lines[name]))}" for name in others) + "."
    text += " Compare times of one machine only." if others else ""
    text += f" Up to {shared} runs shared the machine, so times are upper bounds." if shared > 1 else ""
    return [text] if lines else []


def _commits(commits: list[str]) -> list[str]:
    """Which commits made the results; a warning if there are several, or if code was changed ("+")."""
    counts = Counter(commits)
    names = ", ".join(f"{name or 'unknown'} ({n})" for name, n in counts.most_common())
    if len(counts) < 2 and "+" not in names:
        return [f"All runs are of commit {names}."] if counts else []
    return [f"**Mixed code.** The runs are of several commits, or of changed code (+), with number of runs: {names}."]
