"""Write the files of one engine to a new folder, a block of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dish import codes
from dish.checks import check_option
from dish.errors import InputError
from dish.ids_and_labels import as_ids, as_labels
from dish.io.atomic import StrPath, replacing
from dish.io.rows import blocks_of
from dish.progress import progress
from dish.stores.engine_files.collection import EngineFiles, ExportedCollection, ExportedRows
from dish.stores.engine_files.elasticsearch import ElasticsearchFiles
from dish.stores.engine_files.milvus import MilvusFiles
from dish.stores.engine_files.opensearch import OpenSearchFiles
from dish.stores.engine_files.qdrant import QdrantFiles
from dish.stores.engine_files.vespa import VespaFiles
from dish.stores.engine_files.weaviate import WeaviateFiles

BATCH = 500  # rows in one request, for engines whose bulk file has requests
ENGINES: dict[str, type[EngineFiles]] = {
    "elasticsearch": ElasticsearchFiles,
    "opensearch": OpenSearchFiles,
    "vespa": VespaFiles,
    "milvus": MilvusFiles,
    "qdrant": QdrantFiles,
    "weaviate": WeaviateFiles,
}


def write_engine_files(
    folder: StrPath, engine: str, name: str, B: Any, n_bits: int, ids: Any = None, labels: Any = None
) -> EngineFiles:
    """Write a new folder with the bulk file, the definition of the collection, a query and a README.md.

    Parameters
    ----------
    folder : str or Path
        The folder, which must not exist or be empty. It appears when it is complete.
    engine : str
        "elasticsearch", "opensearch", "vespa", "milvus", "qdrant" or "weaviate".
    name : str
        Name of the collection: lower-case letters, digits and underscores.
    B : uint8 (n, ceil(n_bits / 8))
        Packed codes: an array, a memory map or shards. The query is for the first one.
    n_bits : int
        Code length.
    ids : sequence or None, default=None
        Distinct integers or strings; None: 0, 1, 2, …
    labels : sequence or None, default=None
        Integers or strings; None for a row without a label.
    """
    check_option("engine", engine, tuple(ENGINES))
    n, folder = B.shape[0], Path(folder)
    if n == 0:
        raise InputError("codes must have at least one row: the query is for the first one")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists already: name a new folder")
    given = None if ids is None else as_ids(ids, n)
    _check_distinct(given)
    id_type = int if given is None or given.dtype == np.int64 else str
    files = ENGINES[engine](ExportedCollection(name, n_bits, id_type, _label_type(labels, n)))
    with replacing(folder, folder=True) as temporary:
        first = codes.export(np.asarray(B[:1]), n_bits, files.form)[0]
        for file, text in {**files.definition(), **files.query(first), "README.md": _readme(files)}.items():
            temporary.joinpath(file).write_text(text, encoding="utf-8")
        with open(temporary / files.rows_file, "w", encoding="utf-8", newline="\n") as out:
            out.writelines(_pieces(files, B, given, labels))
    return files


def _check_distinct(ids: Any) -> None:
    """Raise InputError if an id occurs twice: the engines would keep only the last of its rows."""
    if ids is None:
        return
    seen: set[Any] = set()
    for one in ids.tolist():
        if one in seen:
            raise InputError(f"ids must be distinct, but {one!r} occurs twice")
        seen.add(one)


def _label_type(labels: Any, n: int) -> type | None:
    """int or str, the type of all labels; None if there are none."""
    if labels is None:
        return None
    kinds = {type(one) for one in as_labels(labels, n) or [] if one is not None}
    if len(kinds) > 1 or kinds - {int, str}:
        found = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InputError(f"labels must be all integers or all strings to be exported, got {found}")
    return next(iter(kinds), None)


def _pieces(files: EngineFiles, B: Any, ids: Any, labels: Any) -> Iterator[str]:
    """The text of the bulk file."""
    n_bits, (before, between, after), start = files.collection.n_bits, files.frame(), 0
    yield before
    with progress("exporting", B.shape[0]) as step:
        for block in blocks_of(B, BATCH):
            stop = start + len(block)
            some_ids = list(range(start, stop)) if ids is None else ids[start:stop].tolist()
            some_labels = None if labels is None else as_labels(labels[start:stop], len(block))
            data = codes.export(block, n_bits, files.form)
            yield between if start else ""
            yield from files.rows(ExportedRows(some_ids, data, some_labels or [None] * len(block)))
            step(len(block))
            start = stop
    yield after


def _readme(files: EngineFiles) -> str:
    """What the folder holds, whether it was tried, and how to use it."""
    collection = files.collection
    padding = collection.padded_bits - collection.n_bits
    codes_are = f"codes of {collection.n_bits} bits" + (
        f" (padded with {padding} zeros, which changes no distance)" if padding and files.form != "pm1" else ""
    )
    return f"""# {collection.name}: {codes_are} for {files.title}

**{files.tested}**

{files.steps()}
Rows at the same distance come in the order of the engine; which of them are cut off is its choice too.
"""
