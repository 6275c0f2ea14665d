"""`dish index`, `dish search` and `dish store`: search codes in an index file or in a database."""

from __future__ import annotations

import json as js
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dish.cli.gaps import check_ids_given, complete_rows, kept_values, rows_of, rows_path
from dish.cli.options import (
    AsJson,
    Bits,
    CodesPath,
    DropMissing,
    Header,
    IdColumn,
    IdsPath,
    LabelCodes,
    LabelsPath,
    Nearest,
    QueriesPath,
    Radius,
    VectorIdsPath,
    VectorsPath,
    YColumn,
    check_writable,
    columns_of,
    example,
    existing_index,
)
from dish.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dish.index.hamming import HammingIndex
    from dish.index.index_file import IndexFile
    from dish.io.readers import ColumnNames

Address = Annotated[
    str,
    typer.Option(
        envvar="DISH_STORE",
        help="Address of the database: postgresql://user@host/database, duckdb:///file.db, sqlite:///file.db or "
        "lance://folder.",
    ),
]
QUERIES = 10_000  # searched at a time
NEAREST = 10  # rows per query, unless -k or --radius is given
TableName = Annotated[str, typer.Option("--table", help="Name of the table.")]


@example(
    "dish index codes.npy -o ix.dish --labels y.npy",
    "dish index new.npy -o ix.dish --add --ids new_ids.npy",
    "dish index new.npy -o ix.dish --add --labels new_y.npy --label-codes --model model.dish",
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
    add: Annotated[
        bool, typer.Option("--add", help="Add to an existing index; codes of existing ids are replaced.")
    ] = False,
    remove: Annotated[
        Path | None, typer.Option("--remove", help="Remove the ids in this file from an existing index.")
    ] = None,
    label_codes: LabelCodes = False,
    model: Annotated[
        Path | None, typer.Option("--model", help="With --label-codes: the model file that the codes are made with.")
    ] = None,
    discard: Annotated[
        bool,
        typer.Option("--discard-journal", help="Give up the changes in the journal of a killed server."),
    ] = False,
    y_column: YColumn = None,
    id_column: IdColumn = None,
    drop_missing: DropMissing = False,
    header: Header = None,
) -> None:
    """Build a search index of packed codes, or add codes to one, or remove ids from it.

    --label-codes is for rows whose labels are known: codes that `dish encode` made without labels get the bits of
    their --labels, as from `dish encode --label-codes`. Rows without a label, or with one that the model does not
    know, keep their codes. Queries are encoded without labels. --add without --labels leaves the labels of existing
    ids as they are; new items then have none. An index keeps rows without a label; every row needs an id.
    """
    check_writable(output, codes, ids, labels, remove, model)
    if label_codes != (model is not None) or (label_codes and labels is None):
        raise InputError("--label-codes needs --labels and --model, and --model is only for --label-codes")
    if discard:
        return _discard_journal(output, codes, remove)
    if codes is None and (remove is None or add or ids or labels):
        raise InputError("CODES are missing: give a file of packed codes (only --remove works without)")
    from dish.index.index_file import IndexFile

    removed = ""
    columns = columns_of(ids, labels, remove, y=y_column, ids=id_column, header=header, gaps=drop_missing)
    with closing(IndexFile(output)) as file:  # from here on, nobody else changes it
        file.check_settled()
        file.sign("`dish index`")
        ix = _open_index(file) if add or remove else None
        if ix is not None and remove is not None:
            removed = _remove(ix, remove, columns)
        if codes is not None:
            coded = read_coded(codes, ids, labels, columns)
            ix = _put(ix, codes, coded if model is None else _with_labels(codes, coded, model), bits)
        assert ix is not None
        file.write(ix.__getstate__())
    print(f"{output}: {len(ix):,} codes of {ix.n_bits} bits{removed}")


def _open_index(file: IndexFile) -> HammingIndex:
    """Load an index to change it. Changes that are only in its journal are never left behind."""
    from dish.index.hamming import HammingIndex
    from dish.web.journal import count_pending, journal_path

    existing_index(file.path)
    if count_pending(file.path):
        raise InputError(
            f"{journal_path(file.path)} has changes of a server that are not in {file.path} yet: start the server "
            "once and stop it, or change items over HTTP"
        )
    return HammingIndex.load(file.path)


def _discard_journal(path: Path, *others: Path | None) -> None:
    """Delete the journal of an index, and write the index as one without a journal. No other change is possible."""
    if any(others):
        raise InputError("--discard-journal works alone: add or remove items afterwards")
    from dish.index.hamming import HammingIndex
    from dish.index.index_file import IndexFile
    from dish.web.journal import delete_journal

    with closing(IndexFile(path)) as file:
        ix = HammingIndex.load(file.path)
        found = delete_journal(file.path)
        file.write(ix.__getstate__())
    print(f"{path}: {len(ix):,} codes of {ix.n_bits} bits, {'journal deleted' if found else 'there was no journal'}")


def _remove(ix: HammingIndex, path: Path, columns: ColumnNames) -> str:
    """Remove the ids in a file and say how many were found."""
    from dish.io import readers

    ids = readers.read_ids(path, columns)
    strings = ids.dtype.kind in "UO"
    if len(ix) and len(ids) and strings != ix.snapshot().has_string_ids:
        kinds = ("integers", "strings")
        raise InputError(f"--remove: the ids in {path} are {kinds[strings]}, those of the index {kinds[not strings]}")
    gone = ix.remove(ids)
    unknown = len(set(ids.tolist())) - gone
    return f", {gone:,} removed" + (f", {unknown:,} not found" if unknown else "")


def _with_labels(path: Path, coded: tuple[Any, Any, Any], model: Path) -> tuple[Any, Any, Any]:
    """Codes of rows with known labels, their ids and labels. The codes must be of this model."""
    from dish.io.code_provenance import model_of
    from dish.io.modelfile import check_same_model
    from dish.registry import load

    hasher, (B, ids, labels) = load(model), coded
    check_same_model(model_of(path), hasher.fingerprint_, str(path), f"the model {model}")
    return hasher.with_labels(B, labels), ids, labels


def _put(ix: HammingIndex | None, path: Path, coded: tuple[Any, Any, Any], bits: int | None) -> HammingIndex:
    """Add codes with their ids and labels to a new or an existing index."""
    from dish.index.hamming import HammingIndex
    from dish.io.code_provenance import note_of

    (B, ids, labels), note = coded, note_of(path)
    if ix is None:
        ix = HammingIndex(note.n_bits(B.shape[1]) if bits is None else bits, model=note.model)
        ix.add(B, ids, labels)
        return ix
    ix.check_model(note.model, f"the model of {path}")
    if bits not in (None, ix.n_bits):
        raise InputError(f"--bits {bits}, but the index has codes of {ix.n_bits} bits")
    if ids is None:
        ix.add(B, None, labels)
    else:
        ix.upsert(B, ids, _labels_there(ix, ids) if labels is None else labels)
    return ix


def _labels_there(ix: HammingIndex, ids: NDArray[Any]) -> list[Any]:
    """Return the labels that the index has for some ids, None for new ones."""
    from dish.ids_and_labels import as_ids

    rows, given = ix.snapshot(), as_ids(ids)
    known = rows.rows_of(given) >= 0
    there = iter(rows.label_list(given[known]))
    return [next(there) if is_known else None for is_known in known.tolist()]


@example(
    "dish search ix.dish --codes q.npy --k 10",
    "dish search ix.dish --codes q.npy --labels cat --labels dog",
    "dish search ix.dish --codes q.npy --rescore float --vectors x.npy --query-vectors q_x.npy",
    "dish search ix.dish --codes q.npy --rescore asymmetric --model m.dish --query-vectors q_x.npy",
)
def search(
    index: Annotated[
        Path, typer.Argument(metavar="INDEX", callback=existing_index, help="An index made by `dish index`.")
    ],
    queries: QueriesPath,
    k: Nearest = None,
    radius: Radius = None,
    json: AsJson = False,
    ids: Annotated[Path | None, typer.Option("--ids", help="Search only among the ids in this file.")] = None,
    labels: Annotated[
        list[str] | None, typer.Option("--labels", help="Search only among rows with this label; may be repeated.")
    ] = None,
    rescore: Annotated[
        str | None,
        typer.Option(help="Order a shortlist by the outputs of --model (asymmetric) or by float vectors (float)."),
    ] = None,
    shortlist: Annotated[
        int | None, typer.Option(help="Rows that --rescore orders. Default: 10 k, at least 100.")
    ] = None,
    query_vectors: Annotated[
        Path | None, typer.Option(help="With --rescore: float vectors of the queries, one per code.")
    ] = None,
    model: Annotated[Path | None, typer.Option(help="With --rescore asymmetric: the model of the codes.")] = None,
    vectors: VectorsPath = None,
    vector_ids: VectorIdsPath = None,
) -> None:
    """Find the nearest codes of each query, with or without filters. The search is exact."""
    from dish.cli.filtered import FilteredIndex, Queries, check_rescore, finer_queries, label_values
    from dish.index.hamming import HammingIndex
    from dish.io.code_provenance import model_of
    from dish.io.readers import read_ids

    check_rescore(rescore, radius, shortlist, model=model, vectors=vectors, query_vectors=query_vectors)
    ix, Q = HammingIndex.load(index), _read_queries(queries)
    ix.check_model(model_of(queries), f"the model of {queries}")
    if vectors is not None:
        ix.attach_vectors(vectors, None if vector_ids is None else read_ids(vector_ids))
    if model is not None:
        _check_outputs_of(model, ix)
    filters = {"ids": None if ids is None else read_ids(ids), "labels": labels and label_values(labels)}
    finer = None if query_vectors is None else finer_queries(query_vectors, model, len(Q))
    _show_hits(FilteredIndex(ix, filters, rescore, shortlist), Queries(Q, finer), k, radius, json)


def _check_outputs_of(model: Path, ix: HammingIndex) -> None:
    """Raise an error if the outputs of a model cannot be compared with the codes of an index."""
    from dish.alias import check_pair
    from dish.registry import load

    check_pair(load(model), ix)


@example(
    "dish store push codes.npy --address postgresql://me@localhost/db --table codes",
    "dish store push codes.npy --address sqlite:///codes.db --table codes --labels y.npy",
)
def push(
    codes: CodesPath,
    address: Address,
    table: TableName,
    ids: IdsPath = None,
    labels: LabelsPath = None,
    bits: Bits = None,
    batch: Annotated[int, typer.Option(help="Rows per transaction.")] = 10_000,
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted upload.")] = False,
    y_column: YColumn = None,
    id_column: IdColumn = None,
    drop_missing: DropMissing = False,
    header: Header = None,
) -> None:
    """Upload packed codes. The table is created if it does not exist."""
    from dish import stores
    from dish.io.code_provenance import note_of

    columns = columns_of(ids, labels, y=y_column, ids=id_column, header=header, gaps=drop_missing)
    B, given, y = read_coded(codes, ids, labels, columns)
    kind = "string" if given is not None and given.dtype.kind in "UO" else "integer"
    note = note_of(codes)
    n_bits = note.n_bits(B.shape[1]) if bits is None else bits
    with stores.open(address, table, n_bits=n_bits, ids=kind, model=note.model) as store:
        store.create()
        written = store.push(B, given, y, batch=batch, resume=resume)
        print(f"{table}: {written:,} rows written, {len(store):,} in total")


@example("dish store search --address duckdb:///codes.db --table codes --codes q.npy --k 10")
def search_store(
    address: Address,
    table: TableName,
    queries: QueriesPath,
    k: Nearest = None,
    radius: Radius = None,
    bits: Bits = None,
    strings: Annotated[bool, typer.Option("--string-ids", help="The table's ids are strings.")] = False,
    json: AsJson = False,
) -> None:
    """Find the nearest codes of each query. The search is exact."""
    from dish import stores
    from dish.io.code_provenance import note_of

    Q, note = _read_queries(queries), note_of(queries)
    kind = "string" if strings else "integer"
    n_bits = note.n_bits(Q.shape[1]) if bits is None else bits
    with stores.open(address, table, n_bits=n_bits, ids=kind, model=note.model) as store:
        _show_hits(store, Q, k, radius, json)


def read_coded(
    codes: Path, ids: Path | None, labels: Path | None, columns: ColumnNames
) -> tuple[NDArray[Any], Any, Any]:
    """Codes, ids (or None) and labels (or None); with ``columns.gaps``, only those with an id."""
    from dish.io import gaps, readers

    B = read_codes(codes)
    check_ids_given(codes, len(B), ids)
    y = None if labels is None else readers.read_labels(labels, columns.only_labels())
    if ids is None:
        return B, None, y
    given = readers.read_ids(ids, columns)
    kept = complete_rows(columns.gaps, columns, (gaps.ID, ids, gaps.without_id(given)))
    if kept is None or len(given) != len(B):
        return B, given, y
    return B[kept], kept_values(given, kept), None if y is None else kept_values(y, kept)


def read_codes(path: Path) -> NDArray[Any]:
    """Packed codes of a file, which stay in it, or an error if it holds something else."""
    from dish.io.readers import read_features

    codes = read_features(path)[0]
    if codes.dtype != "uint8":
        raise InputError(f"{path}: packed codes are uint8, as `dish encode` writes them; found {codes.dtype}")
    return codes


def _read_queries(path: Path) -> NDArray[Any]:
    """Packed codes of queries. If rows were left out when they were encoded, a note says which query is which row."""
    Q = read_codes(path)
    if rows_of(path, len(Q)) is not None:
        typer.echo(
            f"dish: note: rows were left out of {path}: query i is the row at place i of {rows_path(path)}", err=True
        )
    return Q


def _show_hits(where: Any, Q: Any, k: int | None, radius: int | None, as_json: bool) -> None:
    """Print one line per query: ids with distances (or scores), and labels if there are any."""
    from dish.checks import check_integer

    measure = "score" if getattr(where, "rescore", None) else "distance"
    if k is not None:
        check_integer("k", k, low=1)
    for start in range(0, len(Q), QUERIES):  # long lists of queries show results early, and stop soon on Ctrl-C
        some = Q[start : start + QUERIES]
        for i, line in enumerate(_hits(where, some, k, radius), start):
            labels = where.labels_of([one for one, _ in line]).tolist()
            found = [(one, d, y) for (one, d), y in zip(line, labels, strict=True)]
            if as_json:
                rows = [{"id": one, measure: d, "label": y} for one, d, y in found]
                print(js.dumps({"query": i, "hits": rows}))
            else:
                parts = [f"{one} ({d:.6g}{'' if y is None else f', {y}'})" for one, d, y in found]
                print(f"query {i}: " + (", ".join(parts) or "nothing"))


def _hits(where: Any, Q: Any, k: int | None, radius: int | None) -> list[list[tuple[Any, Any]]]:
    """Ids and distances of the rows that each query finds, nearest first."""
    if radius is None:
        D, found = where.search(Q, NEAREST if k is None else k)
        return [list(zip(ids.tolist(), d.tolist(), strict=True)) for ids, d in zip(found, D, strict=True)]
    lims, D, found = where.radius_search(Q, radius)
    flat = list(zip(found.tolist(), D.tolist(), strict=True))
    return [flat[a:b][:k] for a, b in pairwise(lims)]
