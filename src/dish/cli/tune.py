"""`dish tune`: find good parameters of DISH for your own rows."""

from __future__ import annotations

import json as js
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich import box

from dish.cli.fit import rows_and_labels
from dish.cli.method_options import option_name
from dish.cli.options import (
    DropUnlabelled,
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
    drop_unlabelled: DropUnlabelled = False,
    x_column: XColumn = None,
    y_column: YColumn = None,
    id_column: IdColumn = None,
    header: Header = None,
) -> None:
    """Try code lengths, anchors and kernels on held-out rows within a time limit, and recommend parameters."""
    check_picture(picture, rows, labels)
    from dish.checks import check_number

    check_number("--minutes", minutes, low=0, strict=True)
    from dish.evaluation.tune import recommend

    columns = columns_of(rows, labels, x=x_column, y=y_column, ids=id_column, header=header)
    X, y = rows_and_labels(rows, labels, columns, drop_unlabelled)
    found = recommend(X, y, seconds=60 * minutes, max_rows=max_rows, random_state=seed, report=_status)
    if picture is not None:
        from dish.experiments import figures, style

        style.write(figures.tuning_figure(found), picture)
    if json:
        print(js.dumps(found.to_dict()))
        return
    names = ("parameter", "value", "bytes", "MAP", "precision@10", "fit, s")
    cells = (
        (t.parameter, str(t.value), str(t.bytes), f"{t.map:.3f}", f"{t.precision_at_10:.3f}", f"{t.seconds:.2f}")
        for t in found.trials
    )
    show_table(None, names, cells, box=box.SIMPLE_HEAD)
    for note in found.notes:
        print(note)
    words = " ".join(f"{option_name(name)} {value}" for name, value in found.params.items())
    print(f"recommended: dish fit {rows}{f' {labels}' if labels else ''} -o model.dish {words}")


def _status(line: str) -> None:
    if sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)
