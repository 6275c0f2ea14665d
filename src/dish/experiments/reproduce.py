"""The paper's tables and figures: run what is missing, then write Markdown, LaTeX, CSV, PNG, SVG and a page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from dish.errors import InputError
from dish.experiments import bench, figures, paper, report, tables
from dish.experiments.definition import Results, Run
from dish.io.atomic import write_atomically

WHAT = (*paper.TABLES, "figures", "sensitivity", "all")


@dataclass
class _Job:
    """What was asked for, and what it takes: the tables, those drawn as figures, and the runs to do."""

    what: str
    trials: int
    data: str | None
    opened: dict[str, Any] = field(default_factory=dict)  # datasets, by key

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
        """All that would have to be finished (without the networks where there is no GPU)."""
        found = [run for name in self.tables if not _needs_gpu(name) for run in self.runs_of(name)]
        return found + (paper.sensitivity_runs(self.trials) if self.draws_sensitivity else [])


def plan(what: str, folder: Path, *, trials: int = 5, data: str | None = None) -> bench.Plan:
    """How many runs ``reproduce`` would do, and how long they may take."""
    job = _Job(what, trials, data)
    return bench.plan(job.runs(), folder, opened=job.opened)


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
    job = _Job(what, trials, data)
    results = bench.run_all(job.runs(), folder, opened=job.opened, report=say)
    for name in job.tables:
        if _needs_gpu(name):
            say(f"{name}: no GPU here, so only finished runs are shown (benchmarks/deep.py makes the others)")
            results |= bench.finished(job.runs_of(name), folder, job.opened)
    drawn = []  # figures of methods come from finished runs: a table's own command makes them
    for name, table in paper.TABLES.items() if job.draws_methods else ():
        finished = bench.finished(job.runs_of(name), folder, job.opened)
        results |= finished
        drawn += [name] if finished and len(table.bits) > 1 else []
        if not finished:
            say(f"no runs of {name} yet: dish reproduce {name} makes them")
    return _write(job, drawn, results, output, say)


def failures(what: str, folder: Path, *, trials: int = 5, data: str | None = None) -> dict[Path, str]:
    """Of the runs that ``reproduce`` needs, those that failed: their files, and why."""
    job = _Job(what, trials, data)
    keyed = [replace(run, data=bench.data_key(run.data, job.opened)) for run in job.runs()]
    found = bench.finished(keyed, folder, job.opened)
    return {run.path(folder): result["failed"] for run, result in found.items() if "failed" in result}


def _write(job: _Job, drawn: list[str], results: Results, output: Path, say: Callable[[str], None]) -> Path:
    """Every table with its figure, as files and as one page."""
    output.mkdir(parents=True, exist_ok=True)
    parts: list[str] = []
    for name, table in paper.TABLES.items():
        figure = ""
        if name in drawn or (name in job.tables and _has_curves(name, job, results)):
            curves = figures.method_figure(table, results, job.trials, job.data)
            figure = figures.save(curves, output, f"{name}_curves")
        if name in job.tables:
            _write_table(name, job, results, output, say)
            parts.append(report.html_table(table, results, job.trials, job.data, figure))
        elif figure:
            parts.append(figure)
    if job.draws_sensitivity:
        parts.append(figures.save(figures.sensitivity_figure(results, job.trials), output, "sensitivity"))
    path = output / f"{job.what}.html"
    write_atomically(path, report.page(parts, results).encode())
    return path


def _has_curves(name: str, job: _Job, results: Results) -> bool:
    """Whether a table's runs can be drawn, and there is something to draw them with."""
    table = paper.TABLES[name]
    at = [run for run in job.runs_of(name) if run.bits == table.time_bits]
    drawable = len(table.bits) > 1 and any("curve_recall" in results.get(run, {}) for run in at)
    return drawable and find_spec("matplotlib") is not None


def _write_table(name: str, job: _Job, results: Results, output: Path, say: Callable[[str], None]) -> None:
    for ending, form in (("md", tables.markdown), ("tex", tables.latex), ("csv", tables.comma_separated)):
        text = form(paper.TABLES[name], results, job.trials, job.data)
        write_atomically(output / f"{name}.{ending}", text.encode())
        if ending == "md":
            say(text)


def _needs_gpu(name: str) -> bool:
    return paper.TABLES[name].deep and not torch.cuda.is_available()
