"""`dish tune`: find a good method and parameters for your own rows."""

from __future__ import annotations

import json as js
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box

from dish.cli.fit import rows_and_labels
from dish.cli.method_options import option_name
from dish.cli.options import (
    DropMissing,
    Header,
    IdColumn,
    RowsPath,
    XColumn,
    YColumn,
    check_picture,
    columns_of,
    example,
    show_table,
)

if TYPE_CHECKING:
    from dish.evaluation.tune import Recommendation
    from dish.io.readers import ColumnNames


@example(
    "dish tune X.npy y.npy --minutes 5 --picture tune.png",
    "dish tune docs.parquet --x-column embedding --y-column topic --json",
)
def tune(
    rows: RowsPath,
    labels: Annotated[
        Path | None, typer.Argument(metavar="[Y]", help="Labels, as for `dish fit`. Default: those that come with X.")
    ] = None,
    minutes: Annotated[float, typer.Option(help="Approximate time limit.")] = 2.0,
    max_rows: Annotated[int, typer.Option(min=100, help="Largest sample of the rows.")] = 20_000,
    picture: Annotated[
        Path | None, typer.Option(help="Plot the effect of each parameter to a .pdf, .svg or .png file.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    drop_missing: DropMissing = False,
    x_column: XColumn = None,
    y_column: YColumn = None,
    id_column: IdColumn = None,
    header: Header = None,
) -> None:
    """Compare DISH with several parameters, DISH-K and PCA-ITQ on held-out rows, and recommend a command for the fit.

    All settings first learn from few rows, and the best from more, until the time is used.
    """
    check_picture(picture, rows, labels)
    from dish.checks import check_number

    check_number("--minutes", minutes, low=0, strict=True)
    from dish.evaluation.tune import recommend
    from dish.io.gaps import counted

    columns = columns_of(rows, labels, x=x_column, y=y_column, ids=id_column, header=header, gaps=drop_missing)
    X, y = rows_and_labels(rows, labels, columns)
    with counted(rows, X):
        found = recommend(X, y, seconds=60 * minutes, max_rows=max_rows, random_state=seed, report=_status)
    if picture is not None:
        from dish.experiments import figures, style

        style.write(figures.tuning_figure(found), picture)
    if json:
        print(js.dumps(found.to_dict()))
        return
    names = ("rows", "parameter", "value", "bytes", "MAP", "precision@10", "fit, s")
    cells = (
        (t.n_train, t.parameter, t.value, t.bytes, f"{t.map:.3f}", f"{t.precision_at_10:.3f}", f"{t.seconds:.2f}")
        for t in found.trials
    )
    show_table(None, names, (map(str, row) for row in cells), box=box.SIMPLE_HEAD)
    for note in found.notes:
        print(note)
    print("recommended:")
    data = [rows, *([labels] if labels else []), *_table_options(columns)]
    data += ["--drop-missing"] if drop_missing else []
    print(shlex.join(["dish", "fit", *map(str, data), "-o", "model.dish", *_method_options(found, seed)]))


def _table_options(columns: ColumnNames) -> list[str]:
    """The options that name these columns."""
    named = [("--x-column", name) for name in columns.x] + [("--y-column", columns.y), ("--id-column", columns.ids)]
    words = [word for option, name in named if name is not None for word in (option, name)]
    return words if columns.header is None else [*words, "--header" if columns.header else "--no-header"]


def _method_options(found: Recommendation, seed: int) -> list[str]:
    """The options of the recommended method, and the seed unless it is the default."""
    words = [] if found.method == "dish" else ["--method", found.method]
    params = found.params | ({"random_state": seed} if seed else {})
    return [*words, *(word for name, value in params.items() for word in (option_name(name), str(value)))]


def _status(line: str) -> None:
    if sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)
