"""`dish bench` and `dish reproduce`: compare methods on data, and reproduce the paper's tables and figures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from dish.cli.options import (
    RESULTS,
    DropMissing,
    Header,
    IdColumn,
    XColumn,
    YColumn,
    check_picture,
    check_writable,
    columns_of,
    example,
    show_table,
)
from dish.errors import InputError

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print the number of runs and the expected time.")]

Labels = Annotated[Path | None, typer.Option(help="File of labels, if --data is a path without labels of its own.")]
Split = Annotated[
    Path | None,
    typer.Option(
        help="File that assigns a role to each row of your own data: train (also in the database), train-only, "
        "database or query. Default: 100 random queries per class (table7: 50)."
    ),
]

Page = Annotated[
    Path | None,
    typer.Option(
        help="Run nothing: write the tables of finished runs into this Markdown file, between the lines "
        "<!-- table1: begin --> and <!-- table1: end -->."
    ),
]


@example(
    "dish bench --data cifar10_gist --methods all --bits 16,32,64,96 --trials 5",
    "dish bench --data X.npy --labels y.npy --methods dish,pca_itq,l2 --dry-run",
    "dish bench --data docs.parquet --x-column embedding --y-column topic --split split.npy",
    "dish bench --methods dish,my_module:MyHasher --table table.tex --figure pr.pdf",
)
def bench(
    data: Annotated[
        str, typer.Option(help="Name of a data set, or path of your own: .npy, .npz, .parquet, .csv, or shards.")
    ] = "digits",
    labels: Labels = None,
    split: Split = None,
    methods: Annotated[
        str, typer.Option(help="Comma-separated names, or all. For your own class in this folder: module:Class.")
    ] = "all",
    bits: Annotated[str, typer.Option(help="Comma-separated code lengths.")] = "16,32,64",
    train: Annotated[
        str,
        typer.Option(help="Comma-separated training sizes; all: the whole database; paper: the paper's sizes."),
    ] = "all",
    trials: Annotated[int, typer.Option(min=1, help="Number of random splits.")] = 1,
    top: Annotated[int | None, typer.Option(min=1, metavar="K", help="Compute MAP@K instead of MAP.")] = None,
    results: Annotated[Path, typer.Option(help="Folder of the run files.")] = RESULTS,
    force: Annotated[bool, typer.Option("--force", help="Repeat finished runs.")] = False,
    dry_run: DryRun = False,
    table: Annotated[
        Path | None, typer.Option(help="Also write the table to a file: .md, .tex, or .csv with one line per run.")
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option(
            help="Also draw precision against recall: a .pdf, .svg or .png file, one panel per code length."
        ),
    ] = None,
    x_column: XColumn = None,
    y_column: YColumn = None,
    id_column: IdColumn = None,
    drop_missing: DropMissing = False,
    header: Header = None,
) -> None:
    """Compare methods on a data set. Every run is stored as a JSON file, and finished runs are skipped.

    The first rows of the table rank by real numbers: by the cosine of the rows, and by the product of DISH's class
    probabilities, which its codes approximate. On more than 200,000 rows they are computed only if
    --methods names them (l2, ceiling). If a run fails, the others continue, and the exit status is 1.
    """
    from dish.experiments import bench as benchmark

    _check_outputs(table, figure, dry_run)
    opened = benchmark.OpenDatasets()
    columns = columns_of(
        Path(data), labels, split, x=x_column, y=y_column, ids=id_column, header=header, gaps=drop_missing
    )
    key = opened.key(data, labels, split, columns)
    runs = _runs(key, data, methods, bits, train, trials, top)
    if figure is not None and all(run.method in benchmark.FLOATS for run in runs):
        raise InputError("--figure needs a method with codes: rankings by real numbers have no Hamming radius")
    if dry_run:
        print(benchmark.plan(runs, results, force=force, data=opened))
        return
    found = benchmark.run_all(runs, results, force=force, data=opened, report=_status)
    floats = benchmark.float_lines(runs, results, data=opened, report=_status)
    _show_results(f"{data}: MAP" + (f"@{top}" if top else ""), floats, found, table)
    if figure is not None:
        _draw_precision_recall(_named(data, found), runs, found, figure)
    _report_failures({run.path(results): x["failed"] for run, x in (floats | found).items() if "failed" in x})


def _draw_precision_recall(heading: str, runs: Any, found: Any, path: Path) -> None:
    """Draw precision against recall to a file."""
    from dish.experiments import figures, style

    style.write(figures.precision_recall_figure(heading, runs, found), path)
    print(f"written: {path}")


def _check_outputs(table: Path | None, figure: Path | None, dry_run: bool) -> None:
    """Raise an error if a file cannot be written: before hours of work, not after."""
    from dish.experiments import tables

    for name, path in (("--table", table), ("--figure", figure)):
        if dry_run and path is not None:
            raise InputError(f"--dry-run writes no {name}: leave out one of the two")
    if table is not None and table.suffix not in tables.FORMS:
        raise InputError(f"--table must end in {', '.join(tables.FORMS)}; got {table.name!r}")
    if table is not None:
        check_writable(table, figure)
    check_picture(figure, option="--figure")


def _named(data: str, found: dict[Any, Any]) -> str:
    """The name of the data in a figure. Synthetic data are called so."""
    synthetic = any(result["definition"]["synthetic"] for result in found.values())
    return f"{data} (synthetic)" if synthetic else Path(data).stem


def _runs(key: str, data: str, methods: str, bits: str, train: str, trials: int, top: int | None) -> list[Any]:
    """All runs that the options describe."""
    from dish.experiments.bench import Run

    wanted, sizes = _methods(data, methods, train)
    lengths = [_whole("--bits", text) for text in bits.split(",")]
    each = ((method, r, n, i) for method in wanted for n in sizes[method] for r in lengths for i in range(trials))
    return [Run(key, *one, cut=top) for one in each]


def _show_results(title: str, floats: dict[Any, Any], found: dict[Any, Any], table: Path | None) -> None:
    """Print the table and the significance of differences; write the table to a file."""
    from dish.experiments import significance, tables

    runs, both = list(found), floats | found
    show_table(title, *tables.bench_grid(list(both), both))
    names, tested = significance.grid(runs, found)
    if tested:
        show_table(significance.LEGEND, names, tested)
    if table is not None:
        tables.write_bench(table, title, runs if table.suffix == ".csv" else list(both), both)
        print(f"written: {table}")


@example(
    "dish reproduce table1 --trials 5 --output report",
    "dish reproduce table1 --methods dish_k --bits 32 --train 5000 --trials 1",
    "dish reproduce table2 --data NUS-WIDE",
    "dish reproduce table7 --data features.npy --labels y.npy --split split.npy --trials 1",
    "dish reproduce all --page docs/reproduce.md",
)
def reproduce(
    what: Annotated[
        str,
        typer.Argument(help="table1, table2, table4 … table8, figures, sensitivity, coverage or all."),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for tables, figures and the page.")] = Path(
        "report"
    ),
    trials: Annotated[int, typer.Option(min=1, help="Number of random splits.")] = 5,
    data: Annotated[
        str | None,
        typer.Option(
            help="Real data instead of a stand-in: a name, your own features, or the official folder of NUS-WIDE."
        ),
    ] = None,
    labels: Labels = None,
    split: Split = None,
    methods: Annotated[
        str | None, typer.Option(help="Comma-separated names: only the table's lines of these methods.")
    ] = None,
    bits: Annotated[str | None, typer.Option(help="Comma-separated code lengths: only these columns.")] = None,
    train: Annotated[
        str | None, typer.Option(help="Comma-separated training sizes of the table, or all: only these lines.")
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder of the run files.")] = RESULTS,
    dry_run: DryRun = False,
    page: Page = None,
) -> None:
    """Reproduce the paper's tables and figures, and compare its numbers with ours.

    Missing runs are done first. If a run fails, the others continue, and the exit status is 1. Two words run nothing:
    "figures" draws finished runs, and "coverage" lists which of the paper's numbers are measured.
    """
    from dish.experiments import reproduce as paper

    if dry_run and page is not None:
        raise InputError("--dry-run writes no --page: leave out one of the two")
    job = paper.Reproduction(
        what,
        trials,
        data,
        labels,
        split,
        methods=methods.split(",") if methods else None,
        bits=[_whole("--bits", text) for text in bits.split(",")] if bits else None,
        sizes=_sizes(train) if train else None,
    )
    if page is not None:
        paper.fill_page(job, results, page)
        print(f"written: {page}")
    elif what == "coverage":
        print(paper.as_markdown(job, what, results))
    elif dry_run:
        print("\n".join([*job.unavailable(), str(paper.plan(job, results))]))
    else:
        written = paper.reproduce(job, results, output, progress=_status, show=print)
        print(f"written: {written}")
        _report_failures(paper.failures(job, results))


def _report_failures(failed: dict[Path, str]) -> None:
    """Print the failed runs, and exit with status 1 if there are any."""
    for path, why in failed.items():
        print(f"failed: {path}: {why}")
    if failed:
        raise typer.Exit(1)


def _methods(data: str, methods: str, train: str) -> tuple[list[str], dict[str, list[int | None]]]:
    """The methods to run, and the training sizes of each."""
    from dish import registry
    from dish.experiments import bench as benchmark
    from dish.experiments import paper

    floats = benchmark.FLOATS
    wanted = methods.split(",")
    if methods == "all":
        wanted = [name for name in benchmark.method_names(images=data == "cifar10") if name not in floats]
    for method in wanted:
        if method not in floats:
            registry.find(method)
    if train == "paper":
        return wanted, {method: paper.training_sizes(data, method) for method in wanted}
    return wanted, dict.fromkeys(wanted, _sizes(train))


def _sizes(train: str) -> list[int | None]:
    """The training sizes that --train lists."""
    return [None if size == "all" else _whole("--train", size) for size in train.split(",")]


def _status(line: str) -> None:
    """Print progress to standard error."""
    print(line, file=sys.stderr, flush=True)


def _whole(option: str, text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise InputError(f"{option} must be comma-separated whole numbers above 0; got {text!r}")
    return int(text)
