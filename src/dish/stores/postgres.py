"""Codes in PostgreSQL: a ``bit(n)`` column, searched by pgvector's Hamming distance."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dish.checks import check_integer, check_option
from dish.codes import check_codes
from dish.errors import InputError, StoreError
from dish.ids_and_labels import Ids, label_array
from dish.io import modelfile
from dish.progress import progress
from dish.stores.connection import Connection, in_one_line, load_psycopg
from dish.stores.table import CodeTable, from_comment, to_comment, to_json

OLDEST = (0, 7)  # first version of pgvector with Hamming distance on bits
INDEX_OPTIONS = {"ivfflat": ("lists",), "hnsw": ("m", "ef_construction")}


class PostgresStore:
    """Packed codes in a table of PostgreSQL ≥ 13 with pgvector ≥ 0.7.

    The table has the columns ``id`` (primary key), ``code bit(n_bits)``, ``label jsonb`` and ``place`` (insertion
    order). Indexes over three chunks of the code serve radius searches. Threads can share a store: it has one
    connection, on which their transactions take turns. Several stores and processes can write to one table.

    Parameters
    ----------
    dsn : str
        libpq connection string: "postgresql://user@host/database" or "host=… dbname=…".
    table : str
        Name of the table; any characters are allowed.
    n_bits : int, default=64
        Code length.
    ids : "integer" or "string", default="integer"
        Type of the ids.
    model : str or None, default=None
        ``fingerprint_`` of the hasher that made the codes. ``create`` records it in the comment of a new table, and
        every call raises ModelMismatchError if the table records another model. None: not checked.
    """

    def __init__(
        self, dsn: str, table: str, n_bits: int = 64, ids: str = "integer", model: str | None = None
    ) -> None:
        load_psycopg()
        self._table = CodeTable(table, n_bits, ids)
        self.table, self.n_bits, self.ids = table, self._table.n_bits, ids
        self.model = modelfile.check_fingerprint("model", model)
        self._connection = Connection(dsn)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __len__(self) -> int:
        self._check_table()
        return int(self._rows("SELECT count(*) FROM {table}")[0][0])

    # --- the table ---

    def create(self) -> None:
        """Create the pgvector extension, the table and its chunk indexes if they do not exist."""
        self._connection.write(self._create)
        self._check_table()

    def _create(self, _: Any) -> None:
        self._connection.lock()  # concurrent IF NOT EXISTS statements can fail
        try:
            with self._connection.transaction():
                self._run("CREATE EXTENSION IF NOT EXISTS vector")
        except StoreError as error:
            if not self._version():
                raise StoreError(f"this PostgreSQL server has no pgvector: install it first ({error})") from None
        self._check_version()
        if not self._columns():
            self._create_table()

    def _create_table(self) -> None:
        _, sql = load_psycopg()
        self._run(
            "CREATE TABLE {table} (id {id_type} PRIMARY KEY, code bit({n_bits}) NOT NULL, label jsonb, "
            "place bigint GENERATED ALWAYS AS IDENTITY)"
        )
        for j, chunk in enumerate(self._table.chunks()):
            name = self._table.identifier(f"chunk{j}")
            self._run("CREATE INDEX {name} ON {table} (({chunk}))", name=name, chunk=chunk)
        if self.model is not None:
            self._run("COMMENT ON TABLE {table} IS {comment}", comment=sql.Literal(to_comment(self.model)))

    def drop(self) -> None:
        """Drop the table and all its rows."""
        self._connection.write(lambda _: self._run("DROP TABLE IF EXISTS {table}"))

    def build_index(self, kind: str, **options: int) -> None:
        """Build pgvector's approximate index, "ivfflat" (lists=) or "hnsw" (m=, ef_construction=).

        ``search(exact=False)`` then uses it. An existing index of this kind is replaced.
        """
        check_option("kind", kind, tuple(INDEX_OPTIONS))
        for name, value in options.items():
            check_option("option", name, INDEX_OPTIONS[kind])
            check_integer(name, value, low=1)
        if kind == "ivfflat":
            options = {"lists": max(1, int(len(self) ** 0.5)), **options}
        _, sql = load_psycopg()
        pairs = [sql.SQL("{} = {}").format(sql.Identifier(name), sql.Literal(int(v))) for name, v in options.items()]
        settings = sql.SQL("WITH ({})").format(sql.SQL(", ").join(pairs)) if pairs else sql.SQL("")
        self._check_table()
        name = self._table.identifier(kind)

        def write(_: Any) -> None:
            self._run("DROP INDEX IF EXISTS {name}", name=name)
            text = "CREATE INDEX {name} ON {table} USING {method} (code bit_hamming_ops) {settings}"
            self._run(text, name=name, method=sql.Identifier(kind), settings=settings)

        self._connection.write(write)

    @property
    def table_model(self) -> str | None:
        """``fingerprint_`` of the model recorded in the table's comment; None: unknown."""
        text = "SELECT obj_description(to_regclass(%s), 'pg_class')"
        return from_comment(self._rows(text, [self._quoted_name()])[0][0])

    # --- writing ---

    def push(
        self,
        codes: ArrayLike,
        ids: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        batch: int = 10_000,
        resume: bool = False,
    ) -> int:
        """Upload rows by COPY; return the number of rows written.

        Each batch is one transaction, so an interrupted upload leaves whole batches. ``resume=True`` skips the rows
        that an earlier call of the same upload, or another that runs now, has written. ``ids=None`` means 0, 1, 2, …
        ``labels`` hold one label per row; None, NaN or NaT: no label.
        """
        psycopg, _ = load_psycopg()
        statement = self._table.statement("COPY {table} (id, code, label) FROM STDIN")
        written = 0
        for given, bits, texts in self._batches(codes, ids, labels, batch):

            def write(
                _: Any, given: list[Any] = given, bits: list[str] = bits, texts: list[str | None] = texts
            ) -> int:
                # resume looks for rows and then adds what is missing: no other store may add them in between
                self._connection.lock(self._oid(), shared=not resume)
                new = self._missing(given, bits) if resume else range(len(given))
                self._connection.copy(statement, ((given[i], bits[i], texts[i]) for i in new))
                return len(new)

            try:
                written += self._connection.write(write)
            except psycopg.errors.UniqueViolation as error:
                raise InputError(
                    f"{written:,} rows were written, then: {in_one_line(error)}; use resume=True to continue an "
                    "upload, or upsert to replace rows"
                ) from None
            except ConnectionError as error:
                raise ConnectionError(
                    f"{error}; {written:,} rows were written, use resume=True to continue"
                ) from None
        self._run("ANALYZE {table}")  # the planner needs statistics to use the chunk indexes
        return written

    def upsert(self, codes: ArrayLike, ids: ArrayLike, labels: ArrayLike | None = None, batch: int = 10_000) -> None:
        """Write rows, replacing rows with the same ids; one transaction per batch.

        Batches of several stores take turns, because locking rows in different orders could deadlock.
        """
        _, sql = load_psycopg()
        incoming = sql.Identifier("dish_incoming")
        for rows in self._batches(codes, ids, labels, batch):

            def write(_: Any, rows: Any = rows) -> None:
                self._connection.lock(self._oid())
                self._run(
                    "CREATE TEMPORARY TABLE {incoming} (id {id_type}, code bit({n_bits}), label jsonb, "
                    "n bigint GENERATED ALWAYS AS IDENTITY) ON COMMIT DROP",
                    incoming=incoming,
                )
                into = self._table.statement("COPY {incoming} (id, code, label) FROM STDIN", incoming=incoming)
                self._connection.copy(into, zip(*rows, strict=True))
                self._run(
                    "INSERT INTO {table} (id, code, label) SELECT id, code, label FROM {incoming} ORDER BY n "
                    "ON CONFLICT (id) DO UPDATE SET code = excluded.code, label = excluded.label, place = DEFAULT",
                    incoming=incoming,
                )

            self._connection.write(write)

    def remove(self, ids: ArrayLike) -> int:
        """Remove rows by id, ignoring unknown ids; return the number of rows removed."""
        self._check_table()
        values = self._table.to_ids(ids)

        def write(_: Any) -> int:
            self._connection.lock(self._oid())
            statement = self._table.statement("DELETE FROM {table} WHERE id = ANY(%s)")
            return int(self._connection.execute(statement, [values]).rowcount)

        return int(self._connection.write(write))

    def _batches(
        self, codes: ArrayLike, ids: ArrayLike | None, labels: ArrayLike | None, batch: int
    ) -> Iterator[tuple[list[Any], list[str], list[str | None]]]:
        """Yield (ids, codes as bit strings, labels as JSON) of consecutive batches."""
        check_integer("batch", batch, low=1)
        B = check_codes(codes, self.n_bits)
        values = self._table.to_ids(np.arange(len(B)) if ids is None else ids, len(B))
        if len(set(values)) < len(values):
            raise InputError("ids must be distinct, but one occurs twice")
        texts = to_json(labels, len(B))
        self._check_table()
        with progress("uploading", len(B)) as step:
            for i in range(0, len(B), batch):
                some = slice(i, i + batch)
                yield values[some], self._table.to_bits(B[some]), texts[some]
                step(len(values[some]))

    def _missing(self, ids: list[Any], bits: list[str]) -> list[int]:
        """Return the indices of a batch's rows that are not in the table; raise if one is there with another code."""
        present = dict(self._rows("SELECT id, code::text FROM {table} WHERE id = ANY(%s)", [ids]))
        for one, code in zip(ids, bits, strict=True):
            if present.get(one, code) != code:
                raise InputError(f"id {one!r} is in the table with another code, so resume=True cannot continue")
        return [i for i, one in enumerate(ids) if one not in present]

    # --- searching ---

    def search(
        self,
        queries: ArrayLike,
        k: int = 10,
        exact: bool = True,
        probes: int | None = None,
        ef_search: int | None = None,
    ) -> tuple[NDArray[np.int32], Ids]:
        """Return the k nearest rows of every query as (D, I), both (n_queries, min(k, rows)).

        A scan finds them exactly, sorted by distance, then by insertion order. ``exact=False`` uses the index of
        ``build_index``: with ``probes`` lists of an ivfflat index, or ``ef_search`` candidates of an hnsw index.
        """
        check_integer("k", k, low=1)
        Q = self._table.to_bits(check_codes(queries, self.n_bits, "queries"))
        settings = {"ivfflat.probes": probes, "hnsw.ef_search": ef_search}
        with self._connection.snapshot():
            self._check_table()
            for name, value in settings.items():
                if value is not None:
                    self._rows("SELECT set_config(%s, %s, true)", [name, str(check_integer(name, value, low=1))])
            found = [self._nearest(q, k, exact) for q in Q]
            k = len(found[0]) if found else min(k, len(self))
        D = np.array([[d for _, d in rows] for rows in found], np.int32).reshape(len(Q), k)
        return D, self._table.from_ids([one for rows in found for one, _ in rows]).reshape(len(Q), k)

    def _nearest(self, q: str, k: int, exact: bool) -> list[Any]:
        code = self._table.bits(q)
        if not exact:
            with self._connection.transaction():
                self._run("SET LOCAL enable_seqscan = off")
                text = "SELECT id, (code <~> {q})::int, place FROM {table} ORDER BY code <~> {q} LIMIT %s"
                rows = self._rows(text, [k], q=code)
            if len(rows) == k:  # if the index yields fewer rows, scan
                return [row[:2] for row in sorted(rows, key=lambda row: row[1:])]
        with self._connection.transaction():
            self._run("SET LOCAL enable_seqscan = on")
            self._run("SET LOCAL enable_indexscan = off")  # do not use an approximate index
            text = "SELECT id, (code <~> {q})::int FROM {table} ORDER BY code <~> {q}, place LIMIT %s"
            return self._rows(text, [k], q=code)

    def radius_search(self, queries: ArrayLike, radius: int = 2) -> tuple[NDArray[np.int64], NDArray[np.int32], Ids]:
        """Return all rows at distance ≤ ``radius`` as (lims, D, I); query i has the entries lims[i] : lims[i + 1].

        Exact. Up to radius 5 the chunk indexes find the candidates; beyond, the table is scanned.
        """
        check_integer("radius", radius, low=0)
        Q = check_codes(queries, self.n_bits, "queries")
        with self._connection.snapshot():
            self._check_table()
            found = [self._connection.rows(*self._table.radius_query(q, radius)) for q in self._table.to_bits(Q)]
        lims = np.cumsum([0, *map(len, found)])
        D = np.array([d for rows in found for _, d in rows], np.int32)
        return lims, D, self._table.from_ids([one for rows in found for one, _ in rows])

    def labels_of(self, ids: ArrayLike) -> NDArray[Any]:
        """Return the labels of some ids; None for a row without a label (the array then has dtype object)."""
        values = self._table.to_ids(ids)
        self._check_table()
        labels = dict(self._rows("SELECT id, label FROM {table} WHERE id = ANY(%s)", [values]))
        for one in values:
            if one not in labels:
                raise KeyError(f"id {one!r} is not in the table")
        return label_array([labels[one] for one in values])

    # --- SQL and checks ---

    def _run(self, text: str, **parts: Any) -> None:
        self._connection.execute(self._table.statement(text, **parts))

    def _rows(self, text: str, values: list[Any] | None = None, **parts: Any) -> list[Any]:
        return self._connection.rows(self._table.statement(text, **parts), values)

    def _oid(self) -> int:
        """Return the oid of the table, which names its advisory lock."""
        return int(self._rows("SELECT to_regclass(%s)::oid::bigint", [self._quoted_name()])[0][0] or 0)

    def _quoted_name(self) -> str:
        return self._connection.quote(self._table.identifier())

    def _version(self) -> str:
        found = self._rows("SELECT extversion FROM pg_extension WHERE extname = 'vector'")
        return str(found[0][0]) if found else ""

    def _check_version(self) -> None:
        version = self._version()
        numbers = tuple(int(x) for x in re.findall(r"\d+", version)[:2])
        if numbers < OLDEST:
            oldest = ".".join(map(str, OLDEST))
            raise StoreError(f"the server's pgvector is {version or 'missing'}, but codes need {oldest} or newer")

    def _columns(self) -> dict[str, str]:
        """Return the table's columns (name → type); empty if there is no such table."""
        text = (
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"
        )
        return dict(self._rows(text, [self._quoted_name()]))

    def _check_table(self) -> None:
        self._table.check(self._columns())
        if self.model is not None:
            modelfile.check_same_model(self.table_model, self.model, f"table {self.table!r}", "the model given")
