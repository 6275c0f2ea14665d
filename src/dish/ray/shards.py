"""Shards: contiguous ranges of the rows of files, opened by path and searched read-only, in any process.

Files are consecutive: the position of a row is the number of rows before it, in its file and in the files before.
Codes are mapped from the files where the layout allows it. Replace such a file by renaming, as dish does: a program
that overwrites a mapped file ends its readers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dish import codes
from dish.checks import check_integer
from dish.codes import Bytes, check_unused_bits, to_words, word_layout
from dish.errors import DataFileError, InputError
from dish.ids_and_labels import Ids, as_ids, as_labels
from dish.index.accelerators import GroupedCodes
from dish.index.hamming import HammingIndex
from dish.index.label_table import LabelTable
from dish.index.merge import merge, merge_within
from dish.index.snapshot import NO_ROWS, Snapshot
from dish.index.warmup import compile_kernels
from dish.io import modelfile
from dish.io.atomic import StrPath
from dish.io.code_provenance import file_digest, note_of
from dish.io.readers import read_npy, shard_files
from dish.labels import object_array

SUFFIXES = (".dish", ".npy", ".arrow")
PLAN = "plan.json"  # in a folder of codes: the list of its files, which ``jobs`` writes


@dataclass(frozen=True)
class FileRange:
    """Rows ``start`` … ``stop`` − 1 of a file of codes; ``position`` is that of the first of them."""

    path: str
    digest: str  # of the file's size and ends, so that a shard opened later is of the same file
    start: int
    stop: int
    position: int


@dataclass(frozen=True)
class ShardPlan:
    """What each shard opens, and what is known about the codes."""

    shards: tuple[tuple[FileRange, ...], ...]
    n_bits: int
    model: str | None
    n: int


def plan_shards(
    paths: StrPath | Sequence[StrPath], shards: int | None = None, n_bits: int | None = None
) -> ShardPlan:
    """Divide the rows of files into contiguous shards of nearly equal size; None: one shard per file.

    ``paths`` are index files (.dish), packed codes (.npy) or codes with ids and labels (.arrow, as ``encode_files``
    writes them), or one folder of .arrow files.
    """
    files = [_CodeFile.open(path) for path in _files(paths)]
    model, bits = files[0].model, files[0].n_bits if n_bits is None else check_integer("n_bits", n_bits, low=1)
    for file in files:
        modelfile.check_same_model(model, file.model, str(files[0].path), f"the model of {file.path}")
        if codes.n_bytes(file.n_bits) != codes.n_bytes(bits) or (file.n_bits != bits and file.known_bits):
            raise InputError(f"{file.path} holds codes of {file.n_bits} bits, not of {bits}")
    ends = np.cumsum([0, *(file.n for file in files)])
    n = int(ends[-1])
    if not n:
        raise InputError("the files have no rows")
    count = len(files) if shards is None else check_integer("shards", shards, low=1, high=n)
    cuts = ends if shards is None else np.array([n * i // count for i in range(count + 1)])
    parts = []
    for low, high in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        ranges = []
        for file, first, last in zip(files, ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            a, b = max(low, first), min(high, last)
            if a < b:
                ranges.append(FileRange(str(file.path), file.digest, a - first, b - first, a))
        if ranges:  # an empty file makes no shard
            parts.append(tuple(ranges))
    return ShardPlan(tuple(parts), bits, model, n)


@dataclass(frozen=True)
class _CodeFile:
    """What the head of a file says."""

    path: Path
    digest: str
    n: int
    n_bits: int
    known_bits: bool  # whether the file says n_bits; else it is eight times its bytes
    model: str | None

    @classmethod
    def open(cls, path: Path) -> _CodeFile:
        digest = file_digest(path)
        if path.suffix == ".dish":
            index = _index(path)
            return cls(path, digest, len(index), index.n_bits, True, index.model)
        if path.suffix == ".npy":
            B, note = _npy_codes(path), note_of(path)
            return cls(path, digest, len(B), note.n_bits(B.shape[1]), note.bits is not None, note.model)
        table = _arrow_table(path)
        metadata = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
        bits = metadata.get(codes.ARROW_BITS)
        n_bits = int(bits) if bits else 8 * table.schema.field("code").type.byte_width
        model = modelfile.check_fingerprint("model", metadata.get(codes.ARROW_MODEL))
        return cls(path, digest, table.num_rows, n_bits, bits is not None, model)


def _files(paths: StrPath | Sequence[StrPath]) -> list[Path]:
    given = [Path(paths)] if isinstance(paths, str | os.PathLike) else [Path(one) for one in paths]
    if len(given) == 1 and given[0].is_dir():
        folder = given[0]
        given = shard_files(folder, ".arrow")
        if not given:
            raise InputError(f"{folder} holds no .arrow files of codes")
        _check_complete(folder, {path.name for path in given})
    for path in given:
        if path.suffix not in SUFFIXES:
            raise InputError(f"codes must be in {', '.join(SUFFIXES)} files, got {path}")
        if not path.exists():
            raise FileNotFoundError(f"there is no file {path}")
    if not given or len(set(given)) < len(given):
        raise InputError("give at least one file of codes, and each once: its rows would be found twice")
    return [path.absolute() for path in given]


def _check_complete(folder: Path, names: set[str]) -> None:
    """Raise DataFileError if the job that encodes into this folder has not written all of its files."""
    plan = folder / PLAN
    if not plan.exists():
        return
    try:
        wanted = [block["output"] for block in json.loads(plan.read_bytes())["blocks"]]
        missing = [name for name in wanted if name not in names]
    except (ValueError, KeyError, TypeError):
        raise DataFileError(f"{plan} is damaged: remove the folder and encode again") from None
    if missing:
        raise DataFileError(
            f"{folder}: {missing[0]} and {len(missing) - 1:,} other files of {PLAN} are missing: run the same "
            "`dish encode --ray` again to finish it"
        )


# --- opening ---


def open_range(rows: FileRange, n_bits: int) -> Snapshot:
    """Return the rows of a file as a snapshot that can be searched."""
    path = Path(rows.path)
    if file_digest(path) != rows.digest:
        raise DataFileError(f"{path} has changed since its shards were planned: open them again")
    if path.suffix == ".dish":
        return _index(path).snapshot().part(rows.start, rows.stop)
    make = partial(GroupedCodes.of, n_bits=n_bits)
    positions = np.arange(rows.position, rows.position + rows.stop - rows.start)
    if path.suffix == ".npy":
        return Snapshot.of(n_bits, make, _words(_npy_codes(path)[rows.start : rows.stop], n_bits), positions)
    table = _arrow_table(path).slice(rows.start, rows.stop - rows.start)
    labels, label_table = _labels(table)
    ids = as_ids(_values(table["id"])) if "id" in table.column_names else positions
    return Snapshot.of(n_bits, make, _words(_arrow_codes(table), n_bits), ids, labels, label_table)


def _index(path: Path) -> HammingIndex:
    index = HammingIndex.load(path, mmap=True)
    if index.mode != "exact":
        raise InputError(f"{path} is an approximate index; shards are exact: save it with mode='exact'")
    return index


def _npy_codes(path: Path) -> Bytes:
    B = read_npy(path, mmap_mode="r")
    if B.dtype != np.uint8 or B.ndim != 2:
        raise DataFileError(f"{path}: packed codes are uint8 (n, bytes), found {B.dtype} of shape {B.shape}")
    return B


def _arrow_table(path: Path) -> Any:
    import pyarrow as pa

    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except pa.ArrowException as error:
        raise DataFileError(f"{path} is not an Arrow file, or is damaged ({error})") from None
    kind = table.schema.field("code").type if "code" in table.column_names else None
    if kind is None or not pa.types.is_fixed_size_binary(kind) or table["code"].null_count:
        raise DataFileError(f"{path} has no column 'code' of fixed-size binary without nulls")
    return table


def _arrow_codes(table: Any) -> Bytes:
    """Return the codes of a table, not copied if they are in one piece."""
    column = table["code"].combine_chunks()
    width, start = column.type.byte_width, column.offset * column.type.byte_width
    return np.frombuffer(column.buffers()[1], np.uint8)[start : start + len(column) * width].reshape(-1, width)


def _words(B: Bytes, n_bits: int) -> NDArray[Any]:
    """Return codes as words, not copied if they have the width of words."""
    word, n_words = word_layout(n_bits)
    if B.shape[1] == n_words * np.dtype(word).itemsize and B.flags.c_contiguous:
        words = check_unused_bits(B, n_bits).view(np.ndarray).view(word)
        if words.flags.aligned:
            return words
    return to_words(np.asarray(B), n_bits)


def _values(column: Any) -> Any:
    """Return a column of ids: integers as an array, strings as a list."""
    import pyarrow as pa

    if column.null_count:
        raise InputError("the column 'id' must not have nulls")
    return column.to_numpy() if pa.types.is_integer(column.type) else column.to_pylist()


def _labels(table: Any) -> tuple[NDArray[np.int32] | None, LabelTable]:
    """Return indices of the labels into a table of labels, −1 for a row without one."""
    import pyarrow as pa

    labels = LabelTable()
    if "label" not in table.column_names:
        return None, labels
    column = table["label"].combine_chunks()
    if pa.types.is_nested(column.type):
        raise InputError(f"the column 'label' must hold numbers or strings, got {column.type}")
    encoded = column.dictionary_encode()
    distinct = as_labels(object_array(encoded.dictionary.to_pylist()), len(encoded.dictionary)) or []  # NaN: no label
    number = np.append(labels.indices_of(distinct), np.int32(-1))
    return number[encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)], labels


# --- searching ---


class Shard:
    """Ranges of files that one process searches. All results are in the order (distance, position)."""

    def __init__(self, ranges: Sequence[FileRange], n_bits: int) -> None:
        self.n_bits = n_bits
        self.parts = [open_range(one, n_bits) for one in ranges]

    def prepare(self) -> None:
        """Compile the kernels that searches need, or load them from the cache of this machine."""
        integers = any(part.ids_.dtype != object for part in self.parts)
        compile_kernels(self.n_bits, integer_ids=integers, n_rows=max(map(len, self.parts)))

    def search(
        self, queries: Bytes, k: int, ids: ArrayLike | None, labels: list[Any] | None
    ) -> tuple[NDArray[Any], Ids]:
        """Return the k nearest rows of every query as (D, I)."""
        return merge([part.search(queries, k, ids, labels=labels) for part in self.parts], len(queries), k)

    def within(
        self, queries: Bytes, radius: int, ids: ArrayLike | None, labels: list[Any] | None, limit: int | None
    ) -> Any:
        """Return (counts, lims, D, I) of the rows within the radius."""
        found = [part.within(queries, radius, ids, labels=labels, limit=limit) for part in self.parts]
        return merge_radius(found, len(queries), limit)

    def get(self, ids: Ids) -> tuple[NDArray[np.int64], Bytes, list[Any]]:
        """Return the places in ``ids`` of the ids that this shard has, with their codes and labels."""
        places, found, labels = [NO_ROWS], [], []
        for part in self.parts:
            here = np.flatnonzero(part.rows_of(ids) >= 0)
            places.append(here)
            found.append(part.get(ids[here]))
            labels += part.label_list(ids[here])
        return np.concatenate(places), np.concatenate(found), labels

    def id_ranges(self) -> list[tuple[Any, Any, bool]]:
        """Return the first and the last id of each range, and whether its ids are ascending integers."""
        ends = [part.ids[[0, -1]].tolist() for part in self.parts]
        return [(first, last, part.ascending) for (first, last), part in zip(ends, self.parts, strict=True)]

    def ids(self) -> Ids:
        """Return all ids, in order of position."""
        return np.concatenate([part.ids for part in self.parts])

    def sample_ids(self, n: int, seed: int) -> Ids:
        """Return up to n ids drawn at random."""
        all_ids = self.ids()
        return np.random.default_rng(seed).choice(all_ids, min(n, len(all_ids)), replace=False)


def merge_radius(parts: list[Any], n: int, limit: int | None) -> Any:
    """Merge (counts, lims, D, I) of consecutive ranges."""
    counts = np.sum([part[0] for part in parts], axis=0)
    found = [(np.diff(lims), D, ids) for _, lims, D, ids in parts]
    return counts, *merge_within(found, n, NO_ROWS, limit)
