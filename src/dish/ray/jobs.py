"""Encode files on several machines: one output file per block of input rows, resumable, every row exactly once.

The plan (``plan.json`` in the output folder) lists the blocks. Each is encoded by one task, which writes its file
under a temporary name and renames it. A block whose file exists is done. So it does not matter how often a task, a
worker or the whole job is started again, or whether two jobs run at once: block i is always the same rows and file.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dish import codes, errors
from dish.checks import check_integer
from dish.errors import ClusterError, DataFileError, DishError, InputError
from dish.io.atomic import StrPath, replacing, write_atomically
from dish.io.code_provenance import file_digest
from dish.io.modelfile import check_same_model
from dish.io.readers import check_matrix, check_none_missing, read_npy, reading, shard_files
from dish.progress import progress
from dish.ray.connection import connected_ray
from dish.ray.encode import EncodeBatch, load_once
from dish.ray.shards import PLAN

SUFFIXES = (".npy", ".parquet", ".lance")
BLOCK_ROWS = 1 << 18  # with 64 features of float32: 64 MB
MOST_TASKS = 1000
FREE_SECONDS = 5.0  # until Ray has noticed that an earlier job has ended
BLOCK = "dish.block"  # key of the metadata of a file of codes: which rows they are of


@dataclass(frozen=True)
class EncodingBlock:
    """A range of rows of one input file, and the name of the file of their codes."""

    input: str
    digest: str  # of the input's size and ends; of a Lance folder, its version
    start: int
    stop: int
    output: str


@dataclass(frozen=True)
class EncodingPlan:
    """What a job encodes: the blocks, the model, and the columns of vectors and of those that are carried along."""

    blocks: tuple[EncodingBlock, ...]
    model: str | None
    n_bits: int
    column: str | tuple[str, ...]
    carried: dict[str, str]  # name in the output → name in the input: "id", "label"

    @property
    def n(self) -> int:
        """Number of rows."""
        return sum(block.stop - block.start for block in self.blocks)

    def to_json(self) -> bytes:
        """Return the content of the plan's file, the same for equal plans."""
        return (json.dumps(asdict(self), indent=1, sort_keys=True) + "\n").encode()


def encode_files(
    model: StrPath,
    inputs: StrPath | Sequence[StrPath],
    output: StrPath,
    *,
    column: str | Sequence[str] = "vector",
    ids: str | None = None,
    labels: str | None = None,
    workers: int | None = None,
    block_rows: int = BLOCK_ROWS,
) -> int:
    """Write the codes of the rows of files to a folder, one Arrow file per block of rows; return the number of rows.

    Needs a connection to Ray (``dish.ray.cluster``). If it is interrupted, call it again with the same arguments:
    it encodes the blocks that are missing. A folder that holds codes of another model, or of other rows, is refused.

    A file of codes has the column "code" (fixed-size binary), and "id" and "label" if they are given. Code length
    and model are in the metadata of its schema. ``dish.ray.open_shards`` searches them.

    Parameters
    ----------
    model : path
        A model file made by ``dish fit``. It, ``inputs`` and ``output`` must have the same path on every machine.
    inputs : path or sequence of paths
        Files of rows in order: .npy (n, d), .parquet, or .lance folders; or one folder of such files of one kind.
    output : path
        A folder. It is created if it does not exist.
    column : str or sequence of str, default="vector"
        The column of vectors, or the columns of numbers, in .parquet and .lance files.
    ids, labels : str or None, default=None
        Columns of ids and labels in .parquet and .lance files, carried along as "id" and "label".
    workers : int or None, default=None
        Number of workers, with one CPU each. None: all free CPUs of the cluster.
    block_rows : int, default=262,144
        Most rows per block. Blocks do not extend across files. A larger row group of a .parquet file stays whole.
    """
    plan = make_plan(model, inputs, column=column, ids=ids, labels=labels, block_rows=block_rows)
    folder = Path(output).absolute()
    todo = prepare(plan, folder)
    ray = connected_ray("encode_files")
    workers = _check_workers(ray, workers, len(todo))
    with progress("encoding", plan.n) as step:
        step(plan.n - sum(block.stop - block.start for block in todo))
        for n in _run(str(Path(model).absolute()), plan, folder, todo, workers):
            step(n)
    left = [block.output for block in plan.blocks if not is_done(plan, block, folder)]
    if left:
        raise ClusterError(f"{len(left)} of {len(plan.blocks)} blocks are missing, first {left[0]}: run it again")
    return plan.n


# --- the plan ---


def make_plan(
    model: StrPath,
    inputs: StrPath | Sequence[StrPath],
    *,
    column: str | Sequence[str] = "vector",
    ids: str | None = None,
    labels: str | None = None,
    block_rows: int = BLOCK_ROWS,
) -> EncodingPlan:
    """Return the plan of a job: the same for the same arguments and files."""
    check_integer("block_rows", block_rows, low=1)
    hasher, fingerprint = load_once(str(Path(model).absolute()))
    carried = {name: given for name, given in (("id", ids), ("label", labels)) if given is not None}
    if ids is not None and ids == labels:
        raise InputError(f"ids and labels must be different columns, got {ids!r} for both")
    blocks: list[tuple[str, str, int, int]] = []
    for path in input_files(inputs):
        if path.suffix == ".npy" and carried:
            raise InputError(f"{path} has no columns, so that ids and labels cannot be carried along: leave them out")
        blocks += [(str(path), _digest(path), *range_) for range_ in _ranges(path, block_rows)]
    if not blocks:
        raise DataFileError("the inputs have no rows")
    width = len(str(len(blocks)))
    named = tuple(EncodingBlock(*block, f"part-{i:0{width}}.arrow") for i, block in enumerate(blocks))
    names = column if isinstance(column, str) else tuple(column)
    return EncodingPlan(named, fingerprint, hasher.n_bits, names, carried)


def input_files(inputs: StrPath | Sequence[StrPath]) -> list[Path]:
    """Return the files of rows in order, as absolute paths."""
    given = [Path(inputs)] if isinstance(inputs, str | os.PathLike) else [Path(one) for one in inputs]
    if len(given) == 1 and given[0].is_dir() and given[0].suffix != ".lance":
        found = {suffix: files for suffix in SUFFIXES if (files := shard_files(given[0], suffix))}
        if len(found) != 1:
            kinds = " and ".join(found) or "none"
            raise DataFileError(f"{given[0]} must hold files of one kind, {', '.join(SUFFIXES)}; found {kinds}")
        check_none_missing([path.name for path in next(iter(found.values()))], given[0])
        (given,) = found.values()
    for path in given:
        if path.suffix not in SUFFIXES:
            raise InputError(f"inputs must be {', '.join(SUFFIXES)} files, or a folder of them; got {path}")
        if not path.exists():
            raise FileNotFoundError(f"there is no file {path}")
    if len(set(given)) < len(given):
        raise InputError("inputs must be distinct files: their rows would be encoded twice")
    return [path.absolute() for path in given]


def _digest(path: Path) -> str:
    return f"version {_lance(path).version}" if path.suffix == ".lance" else file_digest(path)


def _ranges(path: Path, most: int) -> list[tuple[int, int]]:
    """Return ranges of at most ``most`` rows that end where the file can be cut; a larger row group stays whole."""
    if path.suffix == ".parquet":
        with _parquet(path) as file:
            pieces = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    elif path.suffix == ".lance":
        pieces = [n for fragment in _lance(path).get_fragments() for n in _cut(fragment.count_rows(), most)]
    else:
        pieces = _cut(len(_npy(path)), most)
    ranges, start, stop = [], 0, 0
    for n in pieces:
        if stop > start and stop + n - start > most:
            ranges.append((start, stop))
            start = stop
        stop += n
    return [*ranges, (start, stop)] if stop > start else ranges


def _cut(n: int, most: int) -> list[int]:
    return [min(most, n - i) for i in range(0, n, most)]


# --- the output folder ---


def prepare(plan: EncodingPlan, folder: Path) -> list[EncodingBlock]:
    """Write the plan to the folder, or compare it with the one that is there. Return the blocks that are missing."""
    folder.mkdir(exist_ok=True)
    place = folder / PLAN
    if not place.exists():
        if any(not one.name.startswith(".") for one in folder.iterdir()):
            raise InputError(f"{folder} is not empty, and has no {PLAN} of an earlier run: choose another folder")
        write_atomically(place, plan.to_json())
    there = place.read_bytes()
    if there != plan.to_json():
        try:
            known, wanted = json.loads(there), json.loads(plan.to_json())
            model, changed = known["model"], [name for name in wanted if known[name] != wanted[name]]
        except (ValueError, KeyError, TypeError):
            raise DataFileError(f"{place} is damaged: remove the folder and encode again") from None
        check_same_model(model, plan.model, f"the folder {folder}", "the model of this job")
        raise InputError(
            f"{folder} holds the output of a job with other {', '.join(changed)}: choose another folder, or give the "
            "same inputs and options to resume that job"
        )
    return [block for block in plan.blocks if not is_done(plan, block, folder)]


def is_done(plan: EncodingPlan, block: EncodingBlock, folder: Path) -> bool:
    """Return whether the file of a block is there; a file with other content than the plan's is an error."""
    import pyarrow as pa

    path = folder / block.output
    if not path.exists():
        return False
    try:
        with pa.memory_map(str(path)) as source:
            table = pa.ipc.open_file(source).read_all()
    except pa.ArrowException as error:
        raise DataFileError(f"{path} is damaged ({error}): remove it and run again") from None
    wanted = _metadata(plan, block)
    found = {key: value for key, value in (table.schema.metadata or {}).items() if key in wanted}
    if found != wanted or table.num_rows != block.stop - block.start:
        raise DataFileError(
            f"{path} holds codes of another model or of other rows: remove it, or choose another folder"
        )
    return True


def _metadata(plan: EncodingPlan, block: EncodingBlock) -> dict[bytes, bytes]:
    """Return what identifies the file of a block."""
    about = {codes.ARROW_BITS: str(plan.n_bits), BLOCK: json.dumps(asdict(block))}
    about |= {} if plan.model is None else {codes.ARROW_MODEL: plan.model}
    return {key.encode(): value.encode() for key, value in about.items()}


# --- the workers ---


class BlockEncoder:
    """Encodes blocks in a worker: called with a table of blocks, it returns a table of their numbers of rows."""

    def __init__(self, model_path: str, plan: EncodingPlan, folder: str) -> None:
        keep = list(plan.carried.values())
        self.encode = EncodeBatch(model_path, plan.column, keep, plan.model)
        self.plan, self.folder = plan, Path(folder)

    def __call__(self, batch: Any) -> Any:
        """Encode the blocks that have no file yet."""
        import pyarrow as pa

        blocks = [EncodingBlock(**row) for row in batch.to_pylist()]
        for block in blocks:
            if not is_done(self.plan, block, self.folder):  # else an earlier worker was killed just after writing it
                self._write(block)
        return pa.table({"rows": [block.stop - block.start for block in blocks]})

    def _write(self, block: EncodingBlock) -> None:
        import pyarrow as pa

        if _digest(Path(block.input)) != block.digest:
            raise DataFileError(f"{block.input} has changed since the job was started: choose another output folder")
        try:
            table = self.encode(_read(block, self.encode))
        except InputError as error:
            raise InputError(f"{block.input}, rows {block.start:,} to {block.stop - 1:,}: {error}") from None
        names = {given: name for name, given in self.plan.carried.items()}
        table = table.rename_columns([names.get(name, name) for name in table.column_names]).combine_chunks()
        table = table.replace_schema_metadata(_metadata(self.plan, block))
        with (
            replacing(self.folder / block.output) as temporary,
            pa.OSFile(str(temporary), "wb") as sink,
            pa.ipc.new_file(sink, table.schema) as writer,
        ):
            writer.write_table(table)


class BlockWorker(BlockEncoder):
    """Returns the errors that dish raises on purpose as text: Ray Data would lose their class."""

    def __call__(self, batch: Any) -> Any:
        """Encode the blocks; return their numbers of rows, or the class and the message of an error."""
        import pyarrow as pa

        name = message = None
        try:
            rows = super().__call__(batch)["rows"].to_pylist()
        except DishError as error:
            rows, name, message = [0], type(error).__name__, str(error)
        n = len(rows)
        return pa.table(
            {
                "rows": rows,
                "error": pa.array([name] * n, pa.string()),
                "message": pa.array([message] * n, pa.string()),
            }
        )


def _read(block: EncodingBlock, encode: EncodeBatch) -> Any:
    """Return the rows of a block as a table with the columns that are needed."""
    import pyarrow as pa

    path, n = Path(block.input), block.stop - block.start
    names = [encode.column] if isinstance(encode.column, str) else list(encode.column)
    if path.suffix == ".npy":
        X = np.ascontiguousarray(_npy(path)[block.start : block.stop])
        return pa.table({names[0]: pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), X.shape[1])})
    wanted = list(dict.fromkeys([*names, *(encode.keep or ())]))
    if path.suffix == ".lance":
        return _lance(path).to_table(columns=wanted, offset=block.start, limit=n)
    with _parquet(path) as file:
        _check_names(path, file.schema_arrow.names, wanted)
        ends = np.cumsum([0, *(file.metadata.row_group(i).num_rows for i in range(file.num_row_groups))])
        first, last = np.searchsorted(ends, [block.start, block.stop])
        return file.read_row_groups(list(range(first, last)), columns=wanted)


def _check_names(path: Path, there: list[str], wanted: list[str]) -> None:
    missing = [name for name in wanted if name not in there]
    if missing:
        raise DataFileError(f"{path} has no column {missing[0]!r}; its columns are {', '.join(there)}")


def _npy(path: Path) -> Any:
    X = read_npy(path, mmap_mode="r")
    check_matrix(path, X)
    return X


def _parquet(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with reading(path, "parquet file", (pa.ArrowException,)):
        return pq.ParquetFile(path)


def _lance(path: Path) -> Any:
    try:
        import lance
    except ImportError:
        raise ImportError("reading a .lance folder needs pylance: pip install pylance") from None
    return lance.dataset(str(path))


# --- on Ray Data ---


def _check_workers(ray: Any, workers: int | None, n_blocks: int) -> int:
    """Return the number of workers. With fewer free CPUs than workers, Ray would wait for ever."""
    most = max(1, n_blocks)
    wanted = None if workers is None else min(check_integer("workers", workers, low=1), most)
    end = time.monotonic() + FREE_SECONDS
    while True:
        free = int(ray.available_resources().get("CPU", 0))
        if free >= (wanted or 1) or not n_blocks:
            return wanted or min(free, most)
        if time.monotonic() > end:
            n = wanted or 1
            raise ClusterError(
                f"{n} workers need {n} free CPUs, and the cluster has {free}: use fewer workers, stop other work on "
                "the cluster, or add machines"
            )
        time.sleep(0.1)


def _run(model_path: str, plan: EncodingPlan, folder: Path, todo: list[EncodingBlock], workers: int) -> Iterator[int]:
    """Encode blocks in actors, each of which loads the model once; yield the numbers of rows."""
    if not todo:
        return
    from ray.data import ActorPoolStrategy, from_items

    blocks = from_items([asdict(block) for block in todo], override_num_blocks=min(len(todo), MOST_TASKS))
    blocks.context.enable_progress_bars = False
    encoded = blocks.map_batches(
        BlockWorker,
        fn_constructor_args=(model_path, replace(plan, blocks=()), str(folder)),
        batch_size=1,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(size=workers),
        num_cpus=1,
    )
    for batch in encoded.iter_batches(batch_size=None, batch_format="pyarrow"):
        for row in batch.to_pylist():
            if row["error"] is not None:
                raise getattr(errors, row["error"])(row["message"])
            yield row["rows"]
