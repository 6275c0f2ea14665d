"""`dish bench` and `dish reproduce`: runs of methods on data, and the paper's tables and figures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from dish.cli.options import RESULTS, Header, IdColumn, XColumn, YColumn, columns_of, console, example
from dish.errors import InputError

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only say how many runs there are, and how long they may take.")
]


@example(
    "dish bench --data cifar10 --methods all --bits 16,32,64,96 --trials 5",
    "dish bench --data X.npy --labels y.npy --methods dish,pca_itq,l2 --dry-run",
    "dish bench --data docs.parquet --x-column embedding --y-column topic --split split.npy",
    "dish bench --methods dish,my_package.my_module:MyHasher --table table.tex",
)
def bench(
    data: Annotated[
        str, typer.Option(help="A dataset's name, or a path: .npy, .npz, .parquet, .csv, shards.")
    ] = "digits",
    labels: Annotated[
        Path | None, typer.Option(help="For a path: a file of labels, where they do not come with the rows.")
    ] = None,
    split: Annotated[
        Path | None,
        typer.Option(
            help="For a path: a file that says of every row what it is for: train (and database), train-only, "
            "database or query. Without: 100 queries per class are drawn."
        ),
    ] = None,
    methods: Annotated[
        str, typer.Option(help="Names with commas between them, or all; module:Class is a class of your own.")
    ] = "all",
    bits: Annotated[str, typer.Option(help="Code lengths with commas between them.")] = "16,32,64",
    train: Annotated[
        str, typer.Option(help="Rows with commas; all: the database; paper: what the paper trained on.")
    ] = "all",
    trials: Annotated[int, typer.Option(help="Random splits.")] = 1,
    cut: Annotated[int | None, typer.Option(help="Cut the MAP at that many places.")] = None,
    results: Annotated[Path, typer.Option(help="Folder of run files.")] = RESULTS,
    force: Annotated[bool, typer.Option("--force", help="Run again what is finished.")] = False,
    dry_run: DryRun = False,
    table: Annotated[
        Path | None, typer.Option(help="Write the table, too: .md, .tex, or .csv with one line per run.")
    ] = None,
    x_column: XColumn = None,
    y_column: YColumn = None,
    id_column: IdColumn = None,
    header: Header = None,
) -> None:
    """Run methods on a dataset; one JSON per run. Finished runs are skipped, failing ones recorded (exit status 1).

    The first lines of the table rank by real numbers: the cosine of the rows, and the product of the class posteriors
    that DISH learns, the ceiling of its codes. (Above 200,000 rows only if --methods names them: l2, ceiling.)
    """
    from dish.experiments import bench as benchmark
    from dish.experiments import definition, tables

    wanted, sizes = _methods(data, methods, train)
    opened: dict[str, Any] = {}
    key = benchmark.data_key(data, opened, labels, split, columns_of(x_column, y_column, id_column, header))
    lengths = [_whole("--bits", text) for text in bits.split(",")]
    each = ((method, r, n, i) for method in wanted for n in sizes[method] for r in lengths for i in range(trials))
    runs = [definition.Run(key, *one, cut=cut) for one in each]
    if dry_run:
        print(benchmark.plan(runs, results, force=force, opened=opened))
        return
    if table is not None and table.suffix not in tables.FORMS:  # before hours of work, not after
        raise InputError(f"--table must end in {', '.join(tables.FORMS)}; got {table.name!r}")
    found = benchmark.run_all(runs, results, force=force, opened=opened, report=_status)
    found |= (floats := benchmark.float_lines(runs, results, opened=opened, report=_status_of_new))
    title = f"{data}: MAP" + (f"@{cut}" if cut else "")
    _show_found(title, [*floats, *runs], runs, found, results)
    if table is not None:
        tables.write_bench(table, title, runs if table.suffix == ".csv" else [*floats, *runs], found)
        print(f"written: {table}")
    if any("failed" in result for result in found.values()):
        raise typer.Exit(1)


def _show_found(title: str, lines: list[Any], runs: list[Any], found: dict[Any, Any], results: Path) -> None:
    """The table, which differences are more than chance, and what failed."""
    from dish.experiments import significance, tables

    _show_table(title, *tables.bench_grid(lines, found))
    names, tested = significance.grid(runs, found)
    if tested:
        _show_table(significance.LEGEND, names, tested)
    for run, result in found.items():
        if "failed" in result:
            print(f"failed: {run.path(results)}: {result['failed']}")


def _show_table(title: str, names: list[str], rows: list[list[str]]) -> None:
    shown = Table(title=title)
    for name in names:
        shown.add_column(name, justify="left" if name == "method" else "right")
    for row in rows:
        shown.add_row(*row)
    console.print(shown)


@example("dish reproduce table1 --trials 5 --output report")
def reproduce(
    what: Annotated[str, typer.Argument(help="table1, 2, 4, 6, 7, 8 (as table1), figures, sensitivity or all.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for tables, figures and the page.")] = Path(
        "report"
    ),
    trials: Annotated[int, typer.Option(help="Random splits.")] = 5,
    data: Annotated[str | None, typer.Option(help="Real data in place of a stand-in: a name or a path.")] = None,
    results: Annotated[Path, typer.Option(help="Folder of run files.")] = RESULTS,
    dry_run: DryRun = False,
) -> None:
    """The paper's tables and figures, its figures beside ours. Runs what is missing; exit status 1 if a run fails."""
    from dish.experiments import reproduce as paper

    if dry_run:
        print(paper.plan(what, results, trials=trials, data=data))
        return
    page = paper.reproduce(what, results, output, trials=trials, data=data, say=_status)
    print(f"written: {page}")
    failed = paper.failures(what, results, trials=trials, data=data)
    for path, why in failed.items():
        print(f"failed: {path}: {why}")
    if failed:
        raise typer.Exit(1)


def _methods(data: str, methods: str, train: str) -> tuple[list[str], dict[str, list[int | None]]]:
    """The methods asked for, and the numbers of training rows of each."""
    from dish import registry
    from dish.experiments import bench as benchmark
    from dish.experiments import paper
    from dish.experiments.definition import FLOATS

    every = [name for name in benchmark.method_names(images=data == "cifar10_images") if name not in FLOATS]
    wanted = every if methods == "all" else methods.split(",")
    for method in wanted:
        if method not in FLOATS:
            registry.find(method)
    if train == "paper":
        return wanted, {method: paper.training_sizes(data, method) for method in wanted}
    sizes = [None if size == "all" else _whole("--train", size) for size in train.split(",")]
    return wanted, dict.fromkeys(wanted, sizes)


def _status_of_new(line: str) -> None:
    """What was done; what is reused was said before."""
    if "reused" not in line:
        _status(line)


def _status(line: str) -> None:
    """Tables to standard output, progress to standard error."""
    print(line, file=sys.stdout if line.startswith("**") else sys.stderr, flush=True)


def _whole(option: str, text: str) -> int:
    if not text.strip().isdigit():
        raise InputError(f"{option} must be whole numbers with commas between them, got {text!r}")
    return int(text)
