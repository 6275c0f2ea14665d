"""`dish drift`: compare new rows with those that a model learned from."""

from __future__ import annotations

import json as js
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box

from dish.cli.encode import rows_for
from dish.cli.gaps import complete_vectors
from dish.cli.options import (
    DropMissing,
    Header,
    ModelPath,
    RowsPath,
    XColumn,
    check_picture,
    columns_of,
    example,
    load_model,
    show_table,
)

if TYPE_CHECKING:
    from dish.evaluation.drift import Drift
    from dish.io.readers import ColumnNames

ALARM = 1  # exit code; bad input has 2


@example(
    "dish drift model.dish new.npy",
    "dish drift model.dish new.npy --alert 0.1 --picture drift.svg",
    "dish drift model.dish today.parquet --x-column embedding --json",
    "dish drift model.dish new.npy --reference held_out.npy",
)
def drift(
    model: ModelPath,
    rows: RowsPath,
    reference: Annotated[
        Path | None,
        typer.Option(
            help="Rows to compare with, which the model did not learn from. Default: the profile of normal rows in "
            "the model."
        ),
    ] = None,
    alert: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Exit with code 1 if the score is at least this, such as 0.1."),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Plot new rows against reference rows to a .pdf, .svg or .png file.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    x_column: XColumn = None,
    drop_missing: DropMissing = False,
    header: Header = None,
) -> None:
    """Tell whether new rows are still like those that a model learned from.

    Compares the balance of the bits, the distances to the nearest codeword, the entropy of the label probabilities,
    and the share of rows that belong to no known class. The score is the number to alert on: at least this share of
    the new rows is unlike the reference rows. What chance explains is subtracted, so normal rows score 0 or a few
    hundredths, however few they are.
    """
    check_picture(picture, model, rows, reference)
    from dish.evaluation.drift import drift as compare
    from dish.io.gaps import counted

    columns = columns_of(rows, reference, x=x_column, header=header, gaps=drop_missing)
    hasher, columns = load_model(model, columns)
    X, base = (None if path is None else _complete(hasher, path, columns) for path in (rows, reference))
    with counted(rows, X), nullcontext() if reference is None else counted(reference, base):
        found = compare(hasher, X, base)
    if picture is not None:
        from dish.experiments import figures, style

        style.write(figures.drift_figure(found), picture)
    if json:
        print(js.dumps(found.to_dict()))
    else:
        _show(found)
    if alert is not None and found.score >= alert:
        raise typer.Exit(ALARM)


def _complete(hasher: Any, path: Path, columns: ColumnNames) -> Any:
    """The rows of a file with a complete vector, or the path of images."""
    X = rows_for(hasher, path, columns)[0]
    return X if isinstance(X, Path) else complete_vectors(path, X, columns)[0]


def _show(found: Drift) -> None:
    """Print what was compared, and the score."""
    from dish.evaluation.drift import NAMES

    lines = [
        (NAMES[name], f"{change.distance:.3f}", f"{change.beyond_chance:.3f}")
        for name, change in found.changes.items()
    ]
    title = f"{found.n:,} rows, compared with {found.n_reference:,} {found.source}"
    show_table(title, ("", "distance", "beyond chance"), lines, box=box.SIMPLE_HEAD)
    if found.unknown is not None:
        print(f"of no known class: {found.unknown:.1%} ({found.unknown_reference:.1%} of the reference rows)")
    print(f"score: {found.score:.3f}")
