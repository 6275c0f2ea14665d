"""Tables made from run files, as Markdown, LaTeX and CSV: the paper's tables, and those of `dish bench`."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import numpy as np

from dish.errors import InputError
from dish.experiments import significance
from dish.experiments.bench import FLOATS, Results, Run
from dish.experiments.paper import PaperTable
from dish.io.atomic import write_atomically

FORMS = (".md", ".tex", ".csv")


def values(results: Results, runs: list[Run], key: str) -> list[float]:
    """The value of ``key`` in every run that has it."""
    return [results[run][key] for run in runs if run in results and key in results[run]]


def cell(found: list[float], digits: int = 3) -> str:
    """Mean ± standard deviation."""
    if not found:
        return "–"
    mean = f"{np.mean(found):.{digits}f}"
    return f"{mean} ± {np.std(found):.{digits}f}" if len(found) > 1 else mean


def table_rows(table: PaperTable, results: Results, trials: int, data: str | None) -> list[list[str]]:
    """Cells of a table: method, training rows, our MAP (the paper's in brackets) at every length, and fit times."""
    rows = []
    for line in table.lines:
        wanted = line.bits or table.bits
        cells = [line.label, f"{line.n_train:,}" if line.n_train else "all"]
        for i, r in enumerate(table.bits):
            runs = [table.run(line, r, t, data) for t in range(trials)]
            ours = cell(values(results, runs, "map")) if r in wanted or line.method in FLOATS else ""
            theirs = line.map[i] if line.map else None
            cells.append(f"{ours} ({theirs:.3f})" if theirs is not None else ours)
        runs = [table.run(line, table.time_bits, t, data) for t in range(trials)]
        seconds = cell(values(results, runs, "fit_s"), 1)
        cells.append(f"{seconds} ({line.seconds:g})" if line.seconds is not None else seconds)
        rows.append(cells)
    return rows


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
    return ["method", "training rows", *(f"{r} bits" for r in table.bits), f"fit, s ({table.time_bits} bits)"]


def markdown(table: PaperTable, results: Results, trials: int, data: str | None = None) -> str:
    """A table as Markdown, with the paper's numbers in brackets."""
    grid = markdown_grid(header(table), table_rows(table, results, trials, data))
    lines = [f"**{title(table, results)}**", "", grid, legend(table, trials)]
    lines += [f"- {text}" for text in further_scores(table, results, trials, data)]
    return "\n".join(lines) + "\n"


def latex(table: PaperTable, results: Results, trials: int, data: str | None = None) -> str:
    """A table as LaTeX; needs the package booktabs."""
    grid = latex_grid(header(table), table_rows(table, results, trials, data))
    caption = _latex(f"{title(table, results)}. {legend(table, trials)}")
    return f"\\begin{{table}}\n\\caption{{{caption}}}\n{grid}\\end{{table}}\n"


def comma_separated(table: PaperTable, results: Results, trials: int, data: str | None = None) -> str:
    """A table as CSV: one line per method, training size and code length."""
    names = ["method", "training_rows", "bits", "trials", "map", "map_std", "paper_map", "fit_s", "fit_s_std"]
    lines: list[list[object]] = []
    for line in table.lines:
        for r in line.bits or table.bits:
            runs = [table.run(line, r, t, data) for t in range(trials)]
            found, seconds = values(results, runs, "map"), values(results, runs, "fit_s")
            theirs = line.map[table.bits.index(r)] if line.map else None
            lines.append(
                [line.label, line.n_train or "all", r, len(found), *_spread(found), theirs, *_spread(seconds)]
            )
    return csv_grid(names, lines)


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
    return (None, None) if found is None else significance.interval(found)[1:]


def _cell_or_failed(results: Results, runs: list[Run], key: str, digits: int) -> str:
    found = values(results, runs, key)
    return "failed" if not found and any("failed" in results[run] for run in runs) else cell(found, digits)


def write_bench(path: Path, title: str, runs: list[Run], results: Results) -> None:
    """Write the runs as a .md or .tex table, or as .csv with one line per run."""
    if path.suffix == ".csv":
        numbers = ("map", "precision_within_2", "recall_within_2", "fit_s", "encode_s", "failed")
        lines = [
            [
                *(run.method, run.n_train or "all", run.bits, run.trial),
                *(results[run].get(name) for name in numbers),
                *_map_interval(run, results),
            ]
            for run in runs
        ]
        text = csv_grid(["method", "training_rows", "bits", "trial", *numbers, "map_low", "map_high"], lines)
    elif path.suffix == ".tex":
        names, tested = significance.grid(runs, results)
        text = latex_grid(*bench_grid(runs, results)) + (latex_grid(names, tested) if tested else "")
    elif path.suffix == ".md":
        names, tested = significance.grid(runs, results)
        text = f"**{title}**\n\n{markdown_grid(*bench_grid(runs, results))}"
        text += f"\n{significance.LEGEND}:\n\n{markdown_grid(names, tested)}" if tested else ""
    else:
        raise InputError(f"a table file must end in {', '.join(FORMS)}; got {path.name!r}")
    write_atomically(path, text.encode())


# --- grids of text ----------------------------------------------------------------------------------------


def markdown_grid(names: list[str], rows: list[list[str]]) -> str:
    """Rows of cells as a Markdown table."""
    lines = [names, ["---"] * len(names), *rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def latex_grid(names: list[str], rows: list[list[str]]) -> str:
    """Rows of cells as a LaTeX tabular; needs the package booktabs."""
    body = ["\\toprule", _latex_line(names), "\\midrule", *map(_latex_line, rows), "\\bottomrule"]
    columns = "l" + "r" * (len(names) - 1)
    return "\n".join([f"\\begin{{tabular}}{{{columns}}}", *body, "\\end{tabular}"]) + "\n"


def csv_grid(names: list[str], rows: list[list[object]]) -> str:
    """Rows of values as CSV; None is an empty field."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([names, *rows])
    return buffer.getvalue()


def _latex_line(cells: list[str]) -> str:
    return " & ".join(map(_latex, cells)) + r" \\"


def _latex(text: str) -> str:
    """Plain text with LaTeX's special characters escaped."""
    marks = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    marks |= {"±": r"$\pm$", "–": "--", "α": r"$\alpha$", "×": r"$\times$"} | {c: "\\" + c for c in "&%$#_{}"}
    return re.sub("|".join(map(re.escape, marks)), lambda found: marks[found[0]], text)


def further_scores(table: PaperTable, results: Results, trials: int, data: str | None) -> list[str]:
    """Further scores of DISH-K: with learned codes as the database, and with real-valued queries."""
    parts = []
    for line in table.lines:
        if line.method != "dish_k":
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
                parts.append(f"{line.label}, {line.n_train or 'all'} rows, {text}: {numbers}")
    return parts


def legend(table: PaperTable, trials: int) -> str:
    """The caption of a table."""
    spread = f"Mean ± standard deviation of up to {trials} trials" if trials > 1 else "One trial"
    return f"{spread}; the paper's number in brackets; – not run. {table.note}"
