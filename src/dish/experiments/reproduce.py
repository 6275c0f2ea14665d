"""`dish reproduce`: do the missing runs of the paper's tables and figures, then write them to files and a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import torch

from dish.errors import InputError
from dish.experiments import bench, coverage, figures, paper, report, style, tables
from dish.experiments.bench import OpenDatasets, Progress, Results, Run
from dish.io.atomic import write_atomically

WHAT = (*paper.TABLES, "figures", "sensitivity", "coverage", "all")


@dataclass
class Reproduction:
    """What to reproduce. Own data, and a choice of methods, code lengths and training sizes, need a single table."""

    what: str
    trials: int = 5
    data: str | None = None  # a name or a path instead of the table's data; then its key
    labels: Path | None = None
    split: Path | None = None
    methods: Sequence[str] | None = None
    bits: Sequence[int] | None = None
    sizes: Sequence[int | None] | None = None
    opened: OpenDatasets = field(default_factory=OpenDatasets)

    def __post_init__(self) -> None:
        if self.what not in WHAT:
            raise InputError(f"what must be one of {', '.join(WHAT)}; got {self.what!r}")
        chosen = self.methods, self.bits, self.sizes
        self.tables = {name: table for name, table in paper.TABLES.items() if self.what in (name, "all")}
        if self.what in self.tables:
            self.tables = {name: table.only(*chosen) for name, table in self.tables.items()}
            self._open(self.tables[self.what])
        elif (self.data, self.labels, self.split, *chosen) != (None,) * 6:
            raise InputError(
                f"data, labels, a split, methods, bits and training sizes belong to a single table; got {self.what!r}"
            )
        self.draws_methods = self.what in ("figures", "all")
        self.draws_sensitivity = self.what in ("sensitivity", "figures", "all")

    def _open(self, table: paper.PaperTable) -> None:
        """Load the user's own data."""
        if self.data is None and (self.labels or self.split):
            raise InputError("labels and a split belong to your own data: give them, too")
        if self.data == table.data:
            self.data = None
        if self.data is not None:
            self.data = self.opened.key(self.data, self.labels, self.split, queries=table.queries)

    def runs_of(self, table: paper.PaperTable) -> list[Run]:
        """All runs of a table that can be done somewhere."""
        return table.runs(bench.method_names() + bench.method_names(images=True), self.trials, self.data)

    def runs(self) -> list[Run]:
        """All runs to do. Without a GPU, networks are not trained."""
        found = [run for table in self.tables.values() if not _needs_gpu(table) for run in self.runs_of(table)]
        runs_sensitivity = self.what in ("sensitivity", "all")
        return found + (paper.sensitivity_runs(self.trials) if runs_sensitivity else [])

    def gpu_runs(self) -> list[Run]:
        """Runs that are left out, because this machine has no GPU."""
        return [run for table in self.tables.values() if _needs_gpu(table) for run in self.runs_of(table)]

    def unavailable(self) -> list[str]:
        """Lines of tables that cannot be run, with the reason."""
        return [
            f"{name}, {line.label}: {paper.UNAVAILABLE[on]}"
            for name, table in self.tables.items()
            for line in table.lines
            if (on := self.data or line.data or table.data) in paper.UNAVAILABLE
        ]


def plan(job: Reproduction, folder: Path) -> bench.Plan:
    """The runs that are missing, and their expected time."""
    found = bench.plan([*job.runs(), *job.gpu_runs()], folder, data=job.opened)
    found.n_gpu = len(bench.plan(job.gpu_runs(), folder, data=job.opened).missing)
    return found


def reproduce(
    job: Reproduction,
    folder: Path,
    output: Path,
    *,
    progress: Progress = print,
    show: Callable[[str], None] = print,
) -> Path:
    """Do the missing runs, write tables and figures to ``output``, and return the path of the HTML page.

    ``progress`` gets status lines; ``show`` gets the finished tables as Markdown.
    """
    for line in job.unavailable():
        progress(line)
    results = bench.run_all(job.runs(), folder, data=job.opened, report=progress)
    if left_out := job.gpu_runs():
        progress("no GPU here, so only finished runs of networks are shown (benchmarks/paper_runs.py trains)")
        results |= bench.finished(left_out, folder, job.opened)
    drawn = []  # figures need finished runs; the commands of the tables and of the sensitivity do those
    for name, runs in _runs_of_figures(job).items():
        finished = bench.finished(runs, folder, job.opened)
        results |= finished
        drawn += [name] if finished else []
        if not finished:
            progress(f"{name} has no finished runs: do them with dish reproduce {name}")
    _write_tables(job, results, output, show)
    return _write_html(job, drawn, results, output)


def _runs_of_figures(job: Reproduction) -> dict[str, list[Run]]:
    """The runs that the figures show, by the command that does them."""
    found = {name: job.runs_of(table) for name, table in paper.TABLES.items() if job.draws_methods}
    return found | ({"sensitivity": paper.sensitivity_runs(job.trials)} if job.draws_sensitivity else {})


def failures(job: Reproduction, folder: Path) -> dict[Path, str]:
    """The files of those runs of ``reproduce`` that failed, with the reason."""
    keyed = [job.opened.with_key(run) for run in job.runs()]
    found = bench.finished(keyed, folder, job.opened)
    return {run.path(folder): result["failed"] for run, result in found.items() if "failed" in result}


def fill_page(job: Reproduction, folder: Path, page: Path) -> None:
    """Write the tables, made from finished runs, between their markers in a Markdown page. Nothing is run.

    ``job.what == "all"`` writes those that have markers in the page.
    """
    text, names = page.read_text(encoding="utf-8"), [*job.tables, *["coverage"] * (job.what in ("coverage", "all"))]
    marked = {name: (f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->") for name in names}
    found = {name: marks for name, marks in marked.items() if all(mark in text for mark in marks)}
    if not found or (job.what != "all" and len(found) < len(marked)):
        raise InputError(f"{page} needs a line <!-- {job.what}: begin --> and a line <!-- {job.what}: end -->")
    for name, (begin, end) in found.items():
        before, rest = text.split(begin, 1)
        text = before + begin + as_markdown(job, name, folder) + end + rest.split(end, 1)[1]
    write_atomically(page, text.encode())


def as_markdown(job: Reproduction, name: str, folder: Path) -> str:
    """A table, or the coverage, from finished runs."""
    if name == "coverage":
        return coverage.markdown(folder)
    table = job.tables[name]
    return tables.markdown(table, bench.finished(job.runs_of(table), folder, job.opened), job.trials, job.data)


def _write_tables(job: Reproduction, results: Results, output: Path, show: Callable[[str], None]) -> None:
    """Write every table as Markdown, LaTeX and CSV, and show the Markdown."""
    output.mkdir(parents=True, exist_ok=True)
    for name, table in job.tables.items():
        text = tables.markdown(table, results, job.trials, job.data)
        latex = tables.latex(table, results, job.trials, job.data)
        csv = tables.comma_separated(table, results, job.trials, job.data)
        for ending, content in (("md", text), ("tex", latex), ("csv", csv)):
            write_atomically(output / f"{name}.{ending}", content.encode())
        show(text)


def _write_html(job: Reproduction, drawn: list[str], results: Results, output: Path) -> Path:
    """Write all figures, and one page with all tables and figures."""
    parts: list[str] = []
    for name in paper.TABLES:
        figure, table = "", job.tables.get(name, paper.TABLES[name])
        if (name in drawn and len(table.bits) > 1) or (name in job.tables and _has_curves(table, job, results)):
            curves = figures.method_figure(table, results, job.trials, job.data)
            figure = style.as_html(curves, output / f"{name}_curves.svg")
        if name in job.tables:
            parts.append(report.html_table(table, results, job.trials, job.data, figure))
        elif figure:
            parts.append(figure)
    if "sensitivity" in drawn:
        curves = figures.sensitivity_figure(results, job.trials)
        parts.append(style.as_html(curves, output / "sensitivity.svg"))
    path = output / f"{job.what}.html"
    write_atomically(path, report.page(parts, results).encode())
    return path


def _has_curves(table: paper.PaperTable, job: Reproduction, results: Results) -> bool:
    """Whether the runs of a table have curves, and matplotlib is there to draw them."""
    at = [run for run in job.runs_of(table) if run.bits == table.time_bits]
    drawable = len(table.bits) > 1 and any("curve_recall" in results.get(run, {}) for run in at)
    return drawable and find_spec("matplotlib") is not None


def _needs_gpu(table: paper.PaperTable) -> bool:
    return table.deep and not torch.cuda.is_available()
