"""The `dish` command: parse the arguments, call one function, print.

There is one module per group of commands. They import torch and other large packages only when they run, so that
`dish --help` is fast.
"""

from __future__ import annotations

import sys
import warnings
from typing import Annotated

import typer

from dish import __version__
from dish.cli import (
    alias,
    datasets,
    drift,
    encode,
    experiments,
    export,
    features,
    fit,
    photos,
    search,
    serve,
    tune,
    warmup,
)
from dish.cli.errors import run
from dish.cli.options import Command

app = typer.Typer(
    name="dish",
    help="Supervised learning to hash: short binary codes from labelled rows.\n\n"
    "Rows and labels are read from .npy (memory-mapped), .npz, .parquet or .csv files.",
    epilog="Example: dish fit X.npy y.npy -o model.dish --bits 64 && dish encode model.dish X.npy -o codes.npy",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
store_app = typer.Typer(help="Store and search codes in PostgreSQL, DuckDB or SQLite.", no_args_is_help=True)
datasets_app = typer.Typer(help="List the data sets behind the results; make their files.", no_args_is_help=True)
alias_app = typer.Typer(help="Name the collection that a server serves; switch and roll back.", no_args_is_help=True)

COMMANDS: dict[str, Command] = {
    "features": features.features,
    "fit": fit.fit,
    "tune": tune.tune,
    "encode": encode.encode,
    "backfill": encode.backfill,
    "eval": encode.evaluate,
    "info": encode.info,
    "drift": drift.drift,
    "index": search.index,
    "search": search.search,
    "export": export.export,
    "photos": photos.photos,
    "demo": serve.demo,
    "serve": serve.serve,
    "warmup": warmup.warmup,
    "bench": experiments.bench,
    "reproduce": experiments.reproduce,
}
ALIAS_COMMANDS: dict[str, Command] = {"set": alias.set_alias, "show": alias.show, "rollback": alias.rollback}
DATASETS_COMMANDS: dict[str, Command] = {"list": datasets.list_sets, "make": datasets.make}
STORE_COMMANDS: dict[str, Command] = {"push": search.push, "search": search.search_store}

for group, commands in (
    (app, COMMANDS),
    (alias_app, ALIAS_COMMANDS),
    (datasets_app, DATASETS_COMMANDS),
    (store_app, STORE_COMMANDS),
):
    for name, command in commands.items():
        group.command(name, cls=getattr(command, "cls", None), epilog=getattr(command, "epilog", None))(command)
app.add_typer(alias_app, name="alias")
app.add_typer(datasets_app, name="datasets")
app.add_typer(store_app, name="store")


def main() -> None:
    """Entry point. Bad input prints one line and exits with code 2, without a traceback."""
    warnings.showwarning = lambda message, *_, **__: print(f"dish: note: {message}", file=sys.stderr)
    run(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"dish {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options that come before the command."""
