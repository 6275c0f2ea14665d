"""`dish reproduce`: do the missing runs of the paper's tables and figures, then write them to files and a page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import torch

from dish.errors import InputError
from dish.experiments import bench, figures, paper, report, tables
from dish.experiments.bench import OpenDatasets, Progress, Results, Run
from dish.io.atomic import write_atomically

WHAT = (*paper.TABLES, "figures", "sensitivity", "all")


@dataclass
class _Reproduction:
    """What to reproduce, and the tables, figures and runs that belong to it."""

    what: str
    trials: int
    data: str | None
    opened: OpenDatasets = field(default_factory=OpenDatasets)

    def __post_init__(self) -> None:
        if self.what not in WHAT:
            raise InputError(f"what must be one of {', '.join(WHAT)}; got {self.what!r}")
        self.tables = [name for name in paper.TABLES if self.what in (name, "all")]
        self.draws_methods = self.what in ("figures", "all")
        self.draws_sensitivity = self.what in ("sensitivity", "figures", "all")

    def runs_of(self, name: str) -> list[Run]:
        methods = bench.method_names() + bench.method_names(images=True)
        return paper.TABLES[name].runs(methods, self.trials, self.data)

    def runs(self) -> list[Run]:
        """All runs to do. Without a GPU, networks are not trained."""
        found = [run for name in self.tables if not _needs_gpu(name) for run in self.runs_of(name)]
        return found + (paper.sensitivity_runs(self.trials) if self.draws_sensitivity else [])


def plan(what: str, folder: Path, *, trials: int = 5, data: str | None = None) -> bench.Plan:
    """The runs that ``reproduce`` would do, and their expected time."""
    job = _Reproduction(what, trials, data)
    return bench.plan(job.runs(), folder, data=job.opened)


def reproduce(
    what: str,
    folder: Path,
    output: Path,
    *,
    trials: int = 5,
    data: str | None = None,
    progress: Progress = print,
    show: Callable[[str], None] = print,
) -> Path:
    """Do the missing runs, write tables and figures to ``output``, and return the path of the HTML page.

    ``progress`` gets status lines; ``show`` gets the finished tables as Markdown.
    """
    job = _Reproduction(what, trials, data)
    results = bench.run_all(job.runs(), folder, data=job.opened, report=progress)
    for name in job.tables:
        if _needs_gpu(name):
            progress(f"{name}: no GPU here, so only finished runs are shown (benchmarks/paper_runs.py trains)")
            results |= bench.finished(job.runs_of(name), folder, job.opened)
    drawn = []  # figures of methods need finished runs; the table's own command does those
    for name, table in paper.TABLES.items() if job.draws_methods else ():
        finished = bench.finished(job.runs_of(name), folder, job.opened)
        results |= finished
        drawn += [name] if finished and len(table.bits) > 1 else []
        if not finished:
            progress(f"{name} has no finished runs: do them with dish reproduce {name}")
    _write_tables(job, results, output, show)
    return _write_page(job, drawn, results, output)


def failures(what: str, folder: Path, *, trials: int = 5, data: str | None = None) -> dict[Path, str]:
    """The files of those runs of ``reproduce`` that failed, with the reason."""
    job = _Reproduction(what, trials, data)
    keyed = [job.opened.with_key(run) for run in job.runs()]
    found = bench.finished(keyed, folder, job.opened)
    return {run.path(folder): result["failed"] for run, result in found.items() if "failed" in result}


def _write_tables(job: _Reproduction, results: Results, output: Path, show: Callable[[str], None]) -> None:
    """Write every table as Markdown, LaTeX and CSV, and show the Markdown."""
    output.mkdir(parents=True, exist_ok=True)
    for name in job.tables:
        table = paper.TABLES[name]
        text = tables.markdown(table, results, job.trials, job.data)
        latex = tables.latex(table, results, job.trials, job.data)
        csv = tables.comma_separated(table, results, job.trials, job.data)
        for ending, content in (("md", text), ("tex", latex), ("csv", csv)):
            write_atomically(output / f"{name}.{ending}", content.encode())
        show(text)


def _write_page(job: _Reproduction, drawn: list[str], results: Results, output: Path) -> Path:
    """Write all figures, and one page with all tables and figures."""
    parts: list[str] = []
    for name, table in paper.TABLES.items():
        figure = ""
        if name in drawn or (name in job.tables and _has_curves(name, job, results)):
            curves = figures.method_figure(table, results, job.trials, job.data)
            figure = figures.save(curves, output, f"{name}_curves")
        if name in job.tables:
            parts.append(report.html_table(table, results, job.trials, job.data, figure))
        elif figure:
            parts.append(figure)
    if job.draws_sensitivity:
        parts.append(figures.save(figures.sensitivity_figure(results, job.trials), output, "sensitivity"))
    path = output / f"{job.what}.html"
    write_atomically(path, report.page(parts, results).encode())
    return path


def _has_curves(name: str, job: _Reproduction, results: Results) -> bool:
    """Whether the runs of a table have curves, and matplotlib is there to draw them."""
    table = paper.TABLES[name]
    at = [run for run in job.runs_of(name) if run.bits == table.time_bits]
    drawable = len(table.bits) > 1 and any("curve_recall" in results.get(run, {}) for run in at)
    return drawable and find_spec("matplotlib") is not None


def _needs_gpu(name: str) -> bool:
    return paper.TABLES[name].deep and not torch.cuda.is_available()
