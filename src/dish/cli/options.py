"""Options and helpers that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from dish.errors import InputError
from dish.install import pip_install

if TYPE_CHECKING:
    from dish.hasher import Hasher
    from dish.io.readers import ColumnNames

FOR_SERVICE = ("fastapi", "pydantic", "uvicorn", "PIL", "prometheus_client", "orjson")  # modules of the extra serve
RESULTS = Path("benchmarks/results/runs")  # in a checkout, the folder of the committed runs

ModelPath = Annotated[Path, typer.Argument(metavar="MODEL", help="A model file made by `dish fit`.")]
RowsPath = Annotated[
    Path,
    typer.Argument(
        metavar="X",
        help="Rows (n, d): a .npy, .npz, .parquet or .csv file, or a folder of .npy, .npz or .parquet shards. Or a "
        "folder of images.",
    ),
]
CodesPath = Annotated[Path, typer.Argument(metavar="CODES", help="Packed codes made by `dish encode`.")]
QueriesPath = Annotated[Path, typer.Option("--codes", help="Packed codes of the queries.")]
IdsPath = Annotated[Path | None, typer.Option("--ids", help="Ids: integers or strings. Default: 0, 1, 2, …")]
LabelsPath = Annotated[Path | None, typer.Option("--labels", help="Labels, one per row.")]
LabelCodes = Annotated[
    bool, typer.Option("--label-codes", help="Rows with a known label get the code of their label.")
]
Bits = Annotated[int | None, typer.Option(help="Code length, if it is not a multiple of 8.")]
Nearest = Annotated[
    int | None,
    typer.Option("--k", "-k", help="Number of nearest rows, at most. Default: 10, or all with --radius."),
]
Radius = Annotated[int | None, typer.Option(help="Only rows within this distance.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one line per query.")]
Host = Annotated[str, typer.Option(help="Address to listen on. Any other than loopback is open to the network.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 chooses a free one.")]
Token = Annotated[str | None, typer.Option(envvar="DISH_TOKEN", help="Bearer token that clients must send.")]


def existing_index(path: Path | None) -> Path | None:
    """Raise an error if there is no index of this name."""
    if path is not None and not path.exists():
        raise FileNotFoundError(f"there is no index {path}: make one with `dish index`")
    return path


def npy_vectors(path: Path | None) -> Path | None:
    """Raise an error if vectors to rescore by are in a table, where single rows cannot be read quickly."""
    if path is not None and path.suffix in (".parquet", ".csv", ".npz"):
        raise InputError(
            f"--vectors takes a .npy file, of which searches read single rows; got {path}. "
            "`dish encode --save-vectors` writes one from a table, in the order of its codes and ids"
        )
    return path


ModelFile = Annotated[Path | None, typer.Option("--model", help="A model file made by `dish fit`.")]
IndexFilePath = Annotated[
    Path | None,
    typer.Option("--index", callback=existing_index, help="An index of its codes, made by `dish index`."),
]
VectorsPath = Annotated[
    Path | None,
    typer.Option(
        "--vectors",
        callback=npy_vectors,
        help="Float vectors of the items (.npy), for searches with rescore=float: `dish encode --save-vectors`.",
    ),
]
VectorIdsPath = Annotated[
    Path | None, typer.Option("--vector-ids", help="The id of each vector. Default: row i belongs to the id i.")
]

DropMissing = Annotated[
    bool,
    typer.Option(
        "--drop-missing",
        help="Leave out rows with gaps: no complete vector (null, NaN, an empty field or list), no id, or no label "
        "where one is needed. Says how many, and which. By default they are an error.",
    ),
]
ON_RAY = "Several machines"
OnRay = Annotated[
    bool,
    typer.Option("--ray", rich_help_panel=ON_RAY, help="Run on Ray: a Ray of this machine, unless --ray-address."),
]
RayAddress = Annotated[
    str | None,
    typer.Option(envvar="RAY_ADDRESS", rich_help_panel=ON_RAY, help="With --ray: HOST:PORT of a cluster, or auto."),
]
TABLES = "Tables (.csv, .parquet)"
XColumn = Annotated[
    list[str] | None,
    typer.Option("--x-column", rich_help_panel=TABLES, help="Column of features or vectors; may be repeated."),
]
YColumn = Annotated[str | None, typer.Option("--y-column", rich_help_panel=TABLES, help="Column of the labels.")]
IdColumn = Annotated[str | None, typer.Option("--id-column", rich_help_panel=TABLES, help="Column of the ids.")]
Header = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header",
        rich_help_panel=TABLES,
        help="Whether the first line of .csv files names the columns. By default it does, and a first line that "
        "looks like data (all numbers, or a single column of text) is refused.",
    ),
]

Command = Callable[..., None]


def example(*lines: str) -> Callable[[Command], Command]:
    """Add examples to the end of a command's help."""

    def mark(command: Command) -> Command:
        command.epilog = "\n\n".join(f"Example: {line}" for line in lines)  # type: ignore[attr-defined]
        return command

    return mark


def columns_of(
    *files: Path | None,
    x: list[str] | None = None,
    y: str | None = None,
    ids: str | None = None,
    header: bool | None = None,
    gaps: bool = False,
) -> ColumnNames:
    """The columns that the options about tables name. Raises InputError if none of the files is such a table.

    ``gaps``: whether rows with gaps are read, to be left out.
    """
    from dish.io.readers import ColumnNames, is_table

    given = {"--x-column": x, "--y-column": y, "--id-column": ids}
    named = next((option for option, value in given.items() if value), None)
    if named and not any(file is not None and is_table(file) for file in files):
        raise InputError(f"{named} is for tables with named columns (.csv, .parquet), and there is none")
    if header is not None and not any(file is not None and file.suffix == ".csv" for file in files):
        raise InputError(f"--{'' if header else 'no-'}header is for .csv files, and there is none")
    return ColumnNames(tuple(x or ()), y, ids, header, gaps=gaps)


def check_picture(path: Path | None, *inputs: Path | None, option: str = "--picture") -> None:
    """Raise an error if a picture cannot be drawn or written, or has an unknown ending: before the work starts."""
    if path is None:
        return
    from dish.experiments.style import FORMS

    if path.suffix not in FORMS:
        raise InputError(f"{option} must end in {', '.join(FORMS)}; got {path.name!r}")
    if find_spec("matplotlib") is None:
        raise ModuleNotFoundError(f"{option} needs matplotlib: {pip_install('plot')}")
    check_writable(path, *inputs)


def show_table(title: str | None, names: Iterable[str], rows: Iterable[Iterable[str]], **style: Any) -> None:
    """Print a table whose first column is left-aligned, and all others right-aligned."""
    table = Table(title=title, **style)
    for i, name in enumerate(names):
        table.add_column(name, justify="right" if i else "left")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def load_model(path: Path, columns: ColumnNames) -> tuple[Hasher, ColumnNames]:
    """A model from its file, and the columns of tables in its order. It takes rows as those columns give them."""
    from dish.registry import load

    hasher = load(path)
    return hasher.without_names(), columns.for_model(hasher)


def check_service_installed(command: str) -> None:
    """Raise ModuleNotFoundError that names what is not installed of the packages of the service, and the extra."""
    absent = [name for name in FOR_SERVICE if find_spec(name) is None]
    if absent:
        verb = "is" if len(absent) == 1 else "are"
        names = " and ".join(absent)
        raise ModuleNotFoundError(f"{command} needs {names}, which {verb} not installed: {pip_install('serve')}")


def check_token(token: str | None) -> None:
    """Raise an error if the token is empty, which would let everybody in."""
    if token is not None and not token.strip():
        raise InputError("--token must not be empty")


def check_writable(path: Path, *inputs: Path | None) -> None:
    """Raise an error if ``path`` cannot be written, or is an input: before hours of work, not after."""
    given = [one.resolve() for one in inputs if one is not None]
    if path.resolve() in given:
        raise InputError(f"cannot write {path}: it is one of the inputs")
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder")
    if any(one.is_dir() and one == path.resolve().parent for one in given):
        raise InputError(f"cannot write {path}: it would be inside the input folder")
    if not path.absolute().parent.is_dir():
        raise InputError(f"cannot write {path}: the folder {path.parent} does not exist")
    if not os.access(path.absolute().parent, os.W_OK):
        raise InputError(f"cannot write {path}: the folder {path.parent} is not writable")
