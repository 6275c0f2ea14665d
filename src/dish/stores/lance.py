"""Codes in LanceDB: two Lance tables in a folder, and a file that says which of their versions belong together."""

from __future__ import annotations

import json
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dish.codes import distances, n_bytes, to_words
from dish.errors import InputError, StoreError, UnsupportedError
from dish.ids_and_labels import Ids
from dish.install import pip_install
from dish.io.atomic import write_atomically
from dish.stores.rows import Filter, FoundCodes, FoundRows, Rows, TableInfo, id_array
from dish.stores.store import Bytes, Store, T

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

IN_A_LIST = 2_000  # values in one SQL condition
BATCH_ROWS = 1 << 16  # rows read at a time
MANY_FRAGMENTS = 16  # from here on, a push ends by compacting a table
KEEP = timedelta(hours=1)  # for so long, versions that are no longer needed may still be read
LOWEST = -(2**63)
CODE_COLUMNS = ["code_id", "count", "_distance"]


@dataclass(frozen=True)
class LanceCommit:
    """The content of ``TABLE.json``: what ``create`` recorded, and the state that the last writer left."""

    n_bits: int
    ids: str
    model: str | None
    created: str  # random: a table that was dropped and created again is another
    places: int = 0  # of the next row
    rows: int = 1  # version of the table of the rows
    codes: int = 1  # version of the table of the distinct codes


class LanceStore(Store):
    """Packed codes in a folder of Lance tables, through lancedb.

    ============ ================================ ==========================================================
    table        columns                          content
    ============ ================================ ==========================================================
    TABLE        id, code_id, label, place        the rows; ``label`` is JSON text or NULL, ``place`` the
                                                  order of insertion. Add columns by ``change_rows``.
    TABLE.codes  code_id, key, code, count        each distinct code, as hexadecimal digits and as a list of
                                                  bytes, and the number of its rows
    ============ ================================ ==========================================================

    Each write makes new versions of the tables, then replaces ``TABLE.json``, which names the versions that belong
    together. Readers only read these, so a killed writer leaves no trace; the next writer goes back to them, too.
    Therefore only change the tables through a store. Threads can share a store; writers of several processes take
    turns. The folder is on a local disk.

    Parameters
    ----------
    path : str or path
        The folder; it is made if it does not exist.
    table, n_bits, ids, model
        As in ``dish.stores.open``.
    """

    INDEX_OPTIONS: ClassVar[dict[str, tuple[str, ...]]] = {"ivfflat": ("lists",)}
    SEARCH_OPTIONS: ClassVar[tuple[str, ...]] = ("probes",)

    def __init__(
        self,
        path: str | os.PathLike[str],
        table: str,
        n_bits: int = 64,
        ids: str = "integer",
        model: str | None = None,
    ) -> None:
        super().__init__(table, n_bits, ids, model)
        self._lock = threading.RLock()
        self._open: Any = _connect(path)
        self._name = lance_name(table)
        self._file = Path(path) / f"{self._name}.json"
        self._commit: LanceCommit | None = None
        self._rows: Any = None  # tables of lancedb, at the versions of the commit
        self._codes: Any = None

    def close(self) -> None:
        """Close the store. Every later call raises InputError."""
        with self._lock:
            self._open = self._commit = self._rows = self._codes = None

    # --- states ---

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._lock:
            self._check_open()
            commit = self._read_commit()
            if commit != self._commit or commit is None:
                self._open_tables(commit)
            yield

    def _writing(self, work: Callable[[], T]) -> T:
        with self._changing():
            return work()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Let the block change the tables, alone; publish their new versions at its end."""
        with self._alone():
            commit = self._read_commit()
            if commit is None:
                raise StoreError(f"table {self.table!r} was dropped while a store wrote to it")
            self._open_tables(commit)
            with lance_errors():
                for table, version in ((self._rows, commit.rows), (self._codes, commit.codes)):
                    table.checkout_latest()
                    if table.version != version:  # a writer was killed, or raised an error
                        table.checkout(version)
                        table.restore()
            try:
                yield
                assert self._commit is not None
                self._publish(replace(self._commit, rows=self._rows.version, codes=self._codes.version))
            except BaseException:
                self._commit = None  # its tables are ahead of it
                raise

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other writers of this table out: threads, stores and processes."""
        with self._lock:
            self._check_open()
            handle = os.open(self._file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                yield
            finally:
                os.close(handle)

    def _check_open(self) -> None:
        if self._open is None:
            raise InputError("the store is closed: open a new one")

    def _read_commit(self) -> LanceCommit | None:
        try:
            return LanceCommit(**json.loads(self._file.read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise StoreError(f"{self._file} is damaged: {error}") from None

    def _publish(self, commit: LanceCommit) -> None:
        write_atomically(self._file, (json.dumps(asdict(commit)) + "\n").encode())
        self._commit = commit

    def _open_tables(self, commit: LanceCommit | None) -> None:
        """Open the tables at the versions of a commit."""
        self._commit = None
        if commit is not None:
            with lance_errors():
                self._rows, self._codes = (self._open.open_table(name) for name in self._names)
                self._rows.checkout(commit.rows)
                self._codes.checkout(commit.codes)
        self._commit = commit

    @contextmanager
    def change_rows(self) -> Iterator[Any]:
        """Yield the lancedb table of the rows, to add columns of your own and to fill them.

        The changes are visible when the block ends. Columns must allow NULL, which they hold in rows that are pushed
        later; ``where`` can use them.
        """
        with self._reading():
            self._check_table()
        with self._changing():
            yield self._rows

    # --- the table ---

    @property
    def _names(self) -> tuple[str, str]:
        return self._name, f"{self._name}.codes"

    def _info(self) -> TableInfo | None:
        commit = self._commit
        return None if commit is None else TableInfo(commit.n_bits, commit.ids, commit.model)

    def _create(self, info: TableInfo) -> None:
        with self._alone():
            if self._read_commit() is not None:
                return
            tables = dict(zip(self._names, _schemas(info), strict=True))
            with lance_errors():
                if self._file.with_suffix(".lance").exists():  # of a store that was killed here, or somebody else's
                    found = self._open.open_table(self._name)
                    if found.schema != tables[self._name] or found.count_rows():
                        raise InputError(f"the folder has a Lance table {self._name!r} that is not of dish")
                for name, schema in tables.items():
                    self._open.drop_table(name, ignore_missing=True)
                    self._open.create_table(name, schema=schema)
                rows, codes = (self._open.open_table(name).version for name in self._names)
            commit = LanceCommit(info.n_bits, info.ids, info.model, secrets.token_hex(8), rows=rows, codes=codes)
            self._publish(commit)
            self._commit = None  # the tables are not open

    def drop(self) -> None:
        """Drop the table and all its rows, if it exists."""
        with self._alone():
            if self._read_commit() is not None:
                self._file.unlink()
                with lance_errors():
                    for name in self._names:
                        self._open.drop_table(name, ignore_missing=True)
            self._commit = None

    # --- writing ---

    def _reserve(self, n: int) -> int:
        """Return the first of n new places."""
        assert self._commit is not None
        first = self._commit.places
        self._commit = replace(self._commit, places=first + n)
        return first

    def _insert(self, rows: Rows) -> None:
        first = self._reserve(len(rows.ids))
        self._add(self._as_table(rows, self._count_codes(rows.codes, first), first))

    def _add(self, table: Any) -> None:
        """Append rows; columns of the user are NULL."""
        import pyarrow as pa

        schema = self._rows.schema
        for field in schema:
            if field.name not in table.column_names:
                table = table.append_column(field, pa.nulls(len(table), field.type))
        with lance_errors():
            self._rows.add(table.select(schema.names))

    def _as_table(self, rows: Rows, code_ids: NDArray[np.int64], first: int) -> Any:
        import pyarrow as pa

        columns = [rows.ids, code_ids, rows.labels, np.arange(first, first + len(rows.ids))]
        schema = _schemas(TableInfo(self.n_bits, self.ids, None))[0]
        return pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)

    def _count_codes(self, codes: Bytes, first: int) -> NDArray[np.int64]:
        """Count the codes of new rows; return their code_ids. A new code gets the place of its first row."""
        distinct, rows, which, counts = np.unique(
            codes, axis=0, return_index=True, return_inverse=True, return_counts=True
        )
        keys = [code.tobytes().hex() for code in distinct]
        known = self._read(self._codes, ["key", "code_id", "count"], "key", keys)
        place = {key: i for i, key in enumerate(keys)}
        code_ids = first + rows
        for key, code_id, count in zip(*(known[name].to_pylist() for name in known.column_names), strict=True):
            code_ids[place[key]] = code_id
            counts[place[key]] += count
        self._merge_codes(code_ids, keys, distinct, counts)
        return code_ids[which.reshape(-1)]

    def _merge_codes(self, code_ids: NDArray[Any], keys: list[str], codes: Bytes, counts: NDArray[Any]) -> None:
        """Write distinct codes, new ones and ones whose count has changed."""
        import pyarrow as pa

        schema = _schemas(TableInfo(self.n_bits, self.ids, None))[1]
        lists = pa.FixedSizeListArray.from_arrays(np.ascontiguousarray(codes).reshape(-1), codes.shape[1])
        table = pa.table([pa.array(code_ids), pa.array(keys, pa.string()), lists, pa.array(counts)], schema=schema)
        with lance_errors():
            merge = self._codes.merge_insert("code_id").when_matched_update_all().when_not_matched_insert_all()
            merge.execute(table)

    def _upsert(self, rows: Rows) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        old = self._read(self._rows, ["id", "code_id"], "id", rows.ids)
        first = self._reserve(len(rows.ids))
        table = self._as_table(rows, self._count_codes(rows.codes, first), first)
        there = pc.is_in(table["id"], value_set=pa.array(old["id"].to_pylist(), table["id"].type))
        if len(old):
            with lance_errors():  # columns of the user keep their values
                self._rows.merge_insert("id").when_matched_update_all().execute(table.filter(there))
        if len(old) < len(table):
            self._add(table.filter(pc.invert(there)))
        self._release(old["code_id"].to_numpy())

    def _remove(self, ids: list[Any]) -> int:
        gone = self._read(self._rows, ["id", "code_id"], "id", ids)
        self._delete(self._rows, "id", gone["id"].to_pylist())
        self._release(gone["code_id"].to_numpy())
        return len(gone)

    def _release(self, code_ids: NDArray[np.int64]) -> None:
        """Discount rows of codes; delete the codes that have no row left."""
        released, n = np.unique(code_ids, return_counts=True)
        found = self._read(self._codes, ["code_id", "key", "code", "count"], "code_id", released.tolist())
        found = found.sort_by("code_id")
        counts = found["count"].to_numpy() - n
        keep = counts > 0
        if keep.any():
            keys = np.array(found["key"].to_pylist(), object)[keep].tolist()
            self._merge_codes(released[keep], keys, _bytes(found["code"], self.n_bits)[keep], counts[keep])
        self._delete(self._codes, "code_id", released[~keep].tolist())

    def _delete(self, table: Any, column: str, values: list[Any]) -> None:
        for condition in _conditions(column, values):
            with lance_errors():
                table.delete(condition)

    def _pushed(self) -> None:
        """Merge small fragments, of which each batch makes some."""
        with self._reading():
            many = [t.stats()["fragment_stats"]["num_fragments"] >= MANY_FRAGMENTS for t in (self._rows, self._codes)]

        def compact() -> None:
            for table, wanted in zip((self._rows, self._codes), many, strict=True):
                if wanted:
                    with lance_errors():
                        table.optimize(cleanup_older_than=KEEP)

        if any(many):
            self._writing(compact)

    def _build_index(self, kind: str, options: dict[str, int]) -> None:
        def build() -> None:
            from lancedb.index import BTree, IvfFlat

            with lance_errors():
                config = IvfFlat(distance_type="hamming", num_partitions=options.get("lists"))
                self._codes.create_index("code", config=config, replace=True)
                self._rows.create_index("code_id", config=BTree(), replace=True)  # finds the rows of a code

        self._writing(build)

    # --- reading ---

    def _read(self, table: Any, columns: list[str], column: str, values: list[Any]) -> Any:
        """Return the rows of a Lance table with one of these values in a column, as an Arrow table."""
        import pyarrow as pa

        schema = pa.schema([table.schema.field(name) for name in columns])
        batches = [batch for some in _conditions(column, values) for batch in self._scan(table, columns, some)]
        return pa.Table.from_batches(batches, schema)

    def _scan(self, table: Any, columns: list[str], where: str | None = None) -> Iterator[Any]:
        """Yield the rows of a Lance table that match a condition, as Arrow batches."""
        with lance_errors():
            query = table.search().select(columns)
            query = query if where is None else query.where(where)
            yield from query.to_batches(BATCH_ROWS)

    def _count(self, chosen: Filter | None) -> int:
        if chosen is None:
            with lance_errors():
                return int(self._rows.count_rows())
        return sum(len(batch) for batch in self._chosen(chosen))

    def _chosen(self, chosen: Filter) -> Iterator[Any]:
        """Yield (id, code_id, label, place) of the rows that match a filter, as Arrow batches."""
        import pyarrow as pa
        import pyarrow.compute as pc

        where = (
            None if chosen.where is None else f"(\n{chosen.where}\n)"
        )  # on lines of its own: it may end in a comment
        for batch in self._scan(self._rows, ["id", "code_id", "label", "place"], where):
            if chosen.ids is not None:
                batch = batch.filter(pc.is_in(batch["id"], value_set=pa.array(chosen.ids, batch["id"].type)))
            if chosen.labels is not None:
                known = pc.is_in(batch["label"], value_set=pa.array(chosen.labels, pa.string()))
                batch = batch.filter(pc.or_(known, pc.is_null(batch["label"])) if chosen.no_label else known)
            yield batch

    def _codes_of(self, ids: list[Any]) -> dict[Any, bytes]:
        found = self._read(self._rows, ["id", "code_id"], "id", ids)
        packed = self._packed(found["code_id"].to_numpy())
        return {one: code.tobytes() for one, code in zip(found["id"].to_pylist(), packed, strict=True)}

    def _labels_of(self, ids: list[Any]) -> dict[Any, str | None]:
        found = self._read(self._rows, ["id", "label"], "id", ids)
        return dict(zip(found["id"].to_pylist(), found["label"].to_pylist(), strict=True))

    def _packed(self, code_ids: NDArray[np.int64]) -> Bytes:
        distinct, which = np.unique(code_ids, return_inverse=True)
        found = self._read(self._codes, ["code_id", "code"], "code_id", distinct.tolist()).sort_by("code_id")
        return _bytes(found["code"], self.n_bits)[which]

    def _near(self, q: Bytes, n: int) -> Any:
        """A query for the n nearest distinct codes."""
        query = self._codes.search(q, vector_column_name="code").distance_type("hamming")
        return query.limit(n).select(CODE_COLUMNS)

    def _nearest_codes(self, q: Bytes, n: int) -> FoundCodes:
        with lance_errors():
            return _found(self._near(q, n).bypass_vector_index().to_arrow())

    def _codes_within(self, q: Bytes, radius: int) -> FoundCodes:
        with lance_errors():
            n = max(1, self._codes.count_rows())
            query = self._near(q, n).bypass_vector_index()
            return _found(query.distance_range(upper_bound=radius + 1).to_arrow())  # the bound is exclusive

    def _indexed_codes(self, q: Bytes, n: int, options: dict[str, int]) -> FoundCodes | None:
        with lance_errors():
            if not self._codes.list_indices():
                return None
            query = self._near(q, n)
            if "probes" in options:
                query = query.nprobes(options["probes"])
            return _found(query.to_arrow())

    def _postings(
        self, code_ids: NDArray[np.int64], first: int | None
    ) -> tuple[Ids, NDArray[np.int64], NDArray[np.int64]]:
        columns = ["id", "code_id", "place"]
        batches = (
            batch
            for some in _conditions("code_id", code_ids.tolist())
            for batch in self._scan(self._rows, columns, some)
        )
        found = self._best((self._hits_of(batch, None) for batch in batches), first)
        return found.ids, found.code_ids, found.places

    def _matching(self, q: Bytes, chosen: Filter, k: int | None, radius: int | None) -> FoundRows:
        by_code = self._all_distances(q)
        hits = (self._hits_of(batch, by_code) for batch in self._chosen(chosen))
        if radius is not None:
            hits = (found.take(found.distances <= radius) for found in hits)
        return self._best(hits, k)

    def _all_distances(self, q: Bytes) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return the code_ids of all distinct codes, in ascending order, and their distances."""
        word = to_words(q[None], self.n_bits)
        code_ids, D = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
        for batch in self._scan(self._codes, ["code_id", "code"]):
            code_ids.append(batch["code_id"].to_numpy())
            D.append(distances(word, to_words(_bytes(batch["code"], self.n_bits), self.n_bits))[0].astype(np.int32))
        order = np.argsort(np.concatenate(code_ids))
        return np.concatenate(code_ids)[order], np.concatenate(D)[order]

    def _hits_of(self, batch: Any, by_code: tuple[NDArray[np.int64], NDArray[np.int32]] | None) -> FoundRows:
        """Return a batch of rows with their distances; without ``by_code``, 0."""
        code_ids = batch["code_id"].to_numpy()
        D = np.zeros(len(batch), np.int32) if by_code is None else by_code[1][np.searchsorted(by_code[0], code_ids)]
        return FoundRows(id_array(batch["id"].to_pylist(), self.ids), D, code_ids, batch["place"].to_numpy())

    def _best(self, parts: Iterator[FoundRows], k: int | None) -> FoundRows:
        """Return the first k rows of many, or all, by distance, then by place; k + a batch of them in memory."""
        found, waiting, n = self._no_hits(), list[FoundRows](), 0
        for part in parts:
            waiting.append(part)
            n += len(part.ids)
            if k is not None and n > k + BATCH_ROWS:
                found, waiting, n = _sorted([found, *waiting], k), [], k
        return _sorted([found, *waiting], k)


def lance_name(table: str) -> str:
    """Return the name of a Lance table: characters that Lance does not allow become a dot and hexadecimal digits."""
    return re.sub(r"[^A-Za-z0-9_-]", lambda found: "".join(f".{byte:02x}" for byte in found[0].encode()), table)


@contextmanager
def lance_errors() -> Iterator[None]:
    """Turn the errors of lancedb into StoreError."""
    try:
        yield
    except (InputError, StoreError):
        raise
    except (ValueError, RuntimeError, OSError) as error:
        raise StoreError(f"LanceDB refused: {error}") from None
    except Exception as error:
        if type(error).__name__ != "RustPanic":  # it has no public module
            raise
        raise StoreError(f"LanceDB failed: {error}") from None


def _connect(path: str | os.PathLike[str]) -> Any:
    try:
        import lancedb
        import pyarrow  # noqa: F401  (rows are loaded through Arrow)
    except ImportError:
        raise ImportError(f"LanceDB needs lancedb and pyarrow: {pip_install('lance')}") from None
    if fcntl is None:
        raise UnsupportedError("LanceStore needs file locks, which this system lacks; use SQLite or PostgreSQL")
    if Path(path).exists() and not Path(path).is_dir():
        raise StoreError(f"cannot open the LanceDB folder {path}: it is a file")
    Path(path).mkdir(exist_ok=True)
    with lance_errors():
        return lancedb.connect(path)


def _schemas(info: TableInfo) -> tuple[Any, Any]:
    """The schemas of the rows and of the distinct codes."""
    import pyarrow as pa

    key = pa.string() if info.ids == "string" else pa.int64()
    rows = {"id": key, "code_id": pa.int64(), "label": pa.string(), "place": pa.int64()}
    code = pa.list_(pa.uint8(), n_bytes(info.n_bits))
    codes = {"code_id": pa.int64(), "key": pa.string(), "code": code, "count": pa.int64()}
    return pa.schema(rows), pa.schema(codes)


def _conditions(column: str, values: list[Any]) -> Iterator[str]:
    """Yield conditions in SQL that together say: the column has one of these values."""
    for i in range(0, len(values), IN_A_LIST):
        some = values[i : i + IN_A_LIST]
        yield f"{column} IN ({', '.join(map(_literal, some))})"


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value) if value > LOWEST else f"({value + 1} - 1)"  # Lance reads the lowest integer as a float


def _bytes(lists: Any, n_bits: int) -> Bytes:
    """Return an Arrow column of lists of bytes as packed codes."""
    column = lists.combine_chunks() if hasattr(lists, "combine_chunks") else lists
    found: Bytes = column.flatten().to_numpy(zero_copy_only=False).reshape(-1, n_bytes(n_bits))
    return found


def _found(table: Any) -> FoundCodes:
    """Return the answer to a vector search."""
    code_ids, counts, D = (table[name].to_numpy() for name in CODE_COLUMNS)
    return FoundCodes(code_ids, np.rint(D).astype(np.int32), counts)


def _sorted(parts: list[FoundRows], k: int | None) -> FoundRows:
    """Return the first k of these rows, or all, by distance, then by place."""
    found = FoundRows(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    return found.take(np.lexsort((found.places, found.distances))[:k])
