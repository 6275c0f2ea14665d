"""`dish index`, `dish search` and `dish store`: search codes in an index file or in PostgreSQL."""

from __future__ import annotations

import json as js
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dish.cli.options import (
    AsJson,
    Bits,
    CodesPath,
    Header,
    IdColumn,
    IdsPath,
    LabelsPath,
    Nearest,
    QueriesPath,
    Radius,
    YColumn,
    check_writable,
    columns_of,
    example,
)
from dish.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dish.index.hamming import HammingIndex
    from dish.io.readers import ColumnNames

Dsn = Annotated[
    str, typer.Option(envvar="DISH_DSN", help="Connection string of the server: postgresql://user@host/database.")
]
TableName = Annotated[str, typer.Option("--table", help="Name of the table.")]


@example(
    "dish index codes.npy -o ix.dish --labels y.npy",
    "dish index new.npy -o ix.dish --add --ids new_ids.npy",
    "dish index -o ix.dish --remove gone_ids.npy",
)
def index(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="File of the index; with --add or --remove, an existing one.")
    ],
    codes: Annotated[
        Path | None, typer.Argument(metavar="[CODES]", help="Packed codes made by `dish encode`.")
    ] = None,
    ids: IdsPath = None,
    labels: LabelsPath = None,
    bits: Bits = None,
    add: Annotated[bool, typer.Option("--add", help="Add to an existing index; existing ids are replaced.")] = False,
    remove: Annotated[
        Path | None, typer.Option("--remove", help="Remove the ids in this file from an existing index.")
    ] = None,
    y_column: YColumn = None,
    id_column: IdColumn = None,
    header: Header = None,
) -> None:
    """Build a search index of packed codes, or add codes to one, or remove ids from it."""
    check_writable(output, codes, ids, labels, remove)
    if codes is None and (remove is None or add or ids or labels):
        raise InputError("CODES are missing: give a file of packed codes (only --remove works without)")
    columns = columns_of(y=y_column, ids=id_column, header=header)
    ix = _open_index(output) if add or remove else None
    gone = 0
    if ix is not None and remove is not None:
        from dish.io import readers

        before = len(ix)
        ix.remove(readers.read_ids(remove, columns))
        gone = before - len(ix)
    if codes is not None:
        ix = _put(ix, codes, _read(codes, ids, labels, columns), bits)
    assert ix is not None
    ix.save(output)
    print(f"{output}: {len(ix):,} codes of {ix.n_bits} bits" + (f", {gone:,} removed" if remove else ""))


def _open_index(path: Path) -> HammingIndex:
    from dish.index.hamming import HammingIndex
    from dish.web.journal import count_pending, journal_path

    journal = journal_path(path)
    if count_pending(journal):
        raise InputError(
            f"{journal} has changes of a server that are not in {path} yet: start the server once and stop it, or "
            "change items over HTTP"
        )
    return HammingIndex.load(path)


def _put(ix: HammingIndex | None, path: Path, coded: tuple[Any, Any, Any], bits: int | None) -> HammingIndex:
    """Add codes with their ids and labels to a new or an existing index."""
    from dish.index.hamming import HammingIndex
    from dish.io.code_provenance import note_of

    (B, ids, labels), note = coded, note_of(path)
    if ix is None:
        ix = HammingIndex(note.n_bits(B.shape[1]) if bits is None else bits, model=note.model)
        ix.add(B, ids, labels)
        return ix
    ix.check_model(note.model, str(path))
    if bits not in (None, ix.n_bits):
        raise InputError(f"--bits {bits}, but the index has codes of {ix.n_bits} bits")
    if ids is None:
        ix.add(B, None, labels)
    else:
        ix.upsert(B, ids, labels)
    return ix


@example("dish search ix.dish --codes q.npy --k 10")
def search(
    index: Annotated[Path, typer.Argument(metavar="INDEX", help="An index made by `dish index`.")],
    queries: QueriesPath,
    k: Nearest = 10,
    radius: Radius = None,
    json: AsJson = False,
) -> None:
    """Find the nearest codes of each query. The search is exact."""
    from dish.index.hamming import HammingIndex
    from dish.io.code_provenance import model_of

    ix, Q = HammingIndex.load(index), _read_codes(queries)
    ix.check_model(model_of(queries), str(queries))
    _show_hits(ix, Q, k, radius, json)


@example("dish store push codes.npy --dsn postgresql://me@localhost/db --table codes")
def push(
    codes: CodesPath,
    dsn: Dsn,
    table: TableName,
    ids: IdsPath = None,
    labels: LabelsPath = None,
    bits: Bits = None,
    batch: Annotated[int, typer.Option(help="Rows per transaction.")] = 10_000,
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted upload.")] = False,
    y_column: YColumn = None,
    id_column: IdColumn = None,
    header: Header = None,
) -> None:
    """Upload packed codes. The table is created if it does not exist."""
    from dish.io.code_provenance import note_of
    from dish.stores.postgres import PostgresStore

    columns = columns_of(y=y_column, ids=id_column, header=header)
    B, given, y = _read(codes, ids, labels, columns)
    kind = "string" if given is not None and given.dtype.kind in "UO" else "integer"
    note = note_of(codes)
    n_bits = note.n_bits(B.shape[1]) if bits is None else bits
    with PostgresStore(dsn, table, n_bits, ids=kind, model=note.model) as store:
        store.create()
        written = store.push(B, given, y, batch=batch, resume=resume)
        print(f"{table}: {written:,} rows written, {len(store):,} in total")


@example("dish store search --dsn … --table codes --codes q.npy --k 10")
def search_store(
    dsn: Dsn,
    table: TableName,
    queries: QueriesPath,
    k: Nearest = 10,
    radius: Radius = None,
    bits: Bits = None,
    strings: Annotated[bool, typer.Option("--string-ids", help="The table's ids are strings.")] = False,
    json: AsJson = False,
) -> None:
    """Find the nearest codes of each query. The search is exact."""
    from dish.io.code_provenance import note_of
    from dish.stores.postgres import PostgresStore

    Q, note = _read_codes(queries), note_of(queries)
    kind = "string" if strings else "integer"
    n_bits = note.n_bits(Q.shape[1]) if bits is None else bits
    with PostgresStore(dsn, table, n_bits, ids=kind, model=note.model) as store:
        _show_hits(store, Q, k, radius, json)


def _read(codes: Path, ids: Path | None, labels: Path | None, columns: ColumnNames) -> tuple[NDArray[Any], Any, Any]:
    """Codes, ids (or None) and labels (or None)."""
    from dish.io import readers

    y = None if labels is None else readers.read_labels(labels, columns.only_labels())
    return _read_codes(codes), None if ids is None else readers.read_ids(ids, columns), y


def _read_codes(path: Path) -> NDArray[Any]:
    from dish.io.readers import read_features

    codes = read_features(path)[0]
    if codes.dtype != "uint8":
        raise InputError(f"{path}: packed codes are uint8, as `dish encode` writes them; found {codes.dtype}")
    return codes


def _show_hits(where: Any, Q: NDArray[Any], k: int, radius: int | None, as_json: bool) -> None:
    """Print one line per query: ids with distances, and labels if there are any."""
    if radius is None:
        D, found = where.search(Q, k)
        hits = [list(zip(ids.tolist(), d.tolist(), strict=True)) for ids, d in zip(found, D, strict=True)]
    else:
        lims, D, found = where.radius_search(Q, radius)
        flat = list(zip(found.tolist(), D.tolist(), strict=True))
        hits = [flat[a:b] for a, b in pairwise(lims)]
    for i, line in enumerate(hits):
        labels = where.labels_of([one for one, _ in line]).tolist()
        if as_json:
            rows = [{"id": one, "distance": d, "label": y} for (one, d), y in zip(line, labels, strict=True)]
            print(js.dumps({"query": i, "hits": rows}))
        else:
            parts = [f"{one} ({d}{'' if y is None else f', {y}'})" for (one, d), y in zip(line, labels, strict=True)]
            print(f"query {i}: " + (", ".join(parts) or "nothing"))
