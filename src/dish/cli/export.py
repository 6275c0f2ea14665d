"""`dish export`: codes in the forms and the files of other engines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dish.cli.gaps import rows_of, rows_path
from dish.cli.options import (
    Bits,
    CodesPath,
    DropMissing,
    Header,
    IdColumn,
    IdsPath,
    LabelsPath,
    YColumn,
    check_writable,
    columns_of,
    example,
)
from dish.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dish.io.code_provenance import Note


Output = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        help="With --to, a file (default: next to CODES, with the form in its name). With --engine, a new folder.",
    ),
]
Form = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="FORM",
        help="Form of the codes: bits, hex, base64 (.txt), ubinary, int8, st_binary, lsb, words64, pm1 (.npy), "
        "bson (.bson) or arrow (.arrow, .parquet).",
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="ENGINE",
        help="Files that load the codes into elasticsearch, opensearch, vespa, milvus, qdrant or weaviate.",
    ),
]


@example(
    "dish export codes.npy --to hex -o codes.txt",
    "dish export codes.npy --to arrow -o codes.parquet",
    "dish export codes.npy --engine elasticsearch --ids ids.npy --labels y.npy --name products -o products/",
)
def export(
    codes: CodesPath,
    output: Output = None,
    to: Form = None,
    engine: Engine = None,
    name: Annotated[str, typer.Option("--name", help="With --engine: name of the collection.")] = "codes",
    ids: IdsPath = None,
    labels: LabelsPath = None,
    bits: Bits = None,
    y_column: YColumn = None,
    id_column: IdColumn = None,
    drop_missing: DropMissing = False,
    header: Header = None,
) -> None:
    """Write packed codes in the form that another engine expects.

    With --to, one file. With --engine, a folder with the rows in bulk, the definition of the collection, a query for
    the first code, and a README.md that says how to load them. The README.md also says what was tried with the engine
    and what only follows its documentation.

    The length of the codes comes from the note that `dish encode` wrote next to them, or from --bits.
    """
    if (to is None) == (engine is None):
        raise InputError("give either --to FORM or --engine ENGINE")
    if to is not None and (ids or labels or name != "codes"):
        raise InputError("--ids, --labels and --name are for --engine; the files of --to hold codes only")
    from dish.cli.search import read_coded, read_codes
    from dish.io.code_provenance import note_of

    B, note = read_codes(codes), note_of(codes)
    n_bits = note.n_bits(B.shape[1]) if bits is None else bits
    if to is not None:
        _write_form(codes, B, n_bits, to, output, note)
        return
    assert engine is not None
    from dish.stores.engine_files.writer import write_engine_files

    if output is None:
        raise InputError("--engine needs a folder: -o FOLDER")
    columns = columns_of(ids, labels, y=y_column, ids=id_column, header=header, gaps=drop_missing)
    B, given, y = read_coded(codes, ids, labels, columns)
    files = write_engine_files(output, engine, name, B, n_bits, given, y)
    print(f"{output}: {B.shape[0]:,} codes of {n_bits} bits for {files.title}; start with {output / 'README.md'}")
    print(files.tested)


def _write_form(codes: Path, B: NDArray[Any], n_bits: int, form: str, output: Path | None, note: Note) -> None:
    """Write the file of one form and say so."""
    from dish.checks import check_option
    from dish.io.code_files import SUFFIXES, write_form

    check_option("--to", form, tuple(SUFFIXES))
    if rows_of(codes, len(B)) is not None:
        if form == "bson":  # its documents have the number of the row as id
            raise InputError(f"{codes}: code i is not of row i, because rows were left out: use --engine with --ids")
        print(f"dish: note: code i is of the row at place i of {rows_path(codes)}", file=sys.stderr)
    path = codes.with_name(f"{codes.stem}.{form}{SUFFIXES[form][0]}") if output is None else output
    check_writable(path, codes)
    n = write_form(path, B, n_bits, form, note.model if form == "arrow" else None)
    print(f"{path}: {n:,} codes of {n_bits} bits as {form}")
