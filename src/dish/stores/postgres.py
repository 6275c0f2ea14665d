"""The same codes in a real database: PostgreSQL with pgvector's Hamming distance on ``bit(n)`` columns."""

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
from dish.stores.table import Table, from_comment, to_comment, to_json

OLDEST = (0, 7)  # the first pgvector with Hamming distance on bits
INDEX_OPTIONS = {"ivfflat": ("lists",), "hnsw": ("m", "ef_construction")}


class PostgresStore:
    """Packed codes in a table of PostgreSQL ≥ 13 with pgvector ≥ 0.7.

    The table has the columns ``id`` (primary key), ``code bit(n_bits)``, ``label jsonb`` and ``place``, the order of
    insertion. Indexes over three chunks of the code serve radius searches. Threads may share a store: it has one
    connection, and their transactions take turns. Several stores, also of several processes, may write to one table.

    Parameters
    ----------
    dsn : str
        Where the server is, as libpq has it: "postgresql://user@host/database" or "host=… dbname=…".
    table : str
        Its name, of any characters.
    n_bits : int
        Code length.
    ids : "integer" or "string"
        Kind of the ids.
    model : str or None
        ``fingerprint_`` of the hasher whose codes these are. ``create`` writes it into the comment of a new table;
        a table of another model is refused (ModelMismatchError). None: nothing is checked.
    """

    def __init__(
        self, dsn: str, table: str, n_bits: int = 64, ids: str = "integer", model: str | None = None
    ) -> None:
        load_psycopg()
        self._table = Table(table, n_bits, ids)
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
        """Make the extension, the table and the indexes of its chunks, whichever is not there yet."""
        self._connection.write(self._create)
        self._check_table()

    def _create(self, _: Any) -> None:
        self._connection.lock()  # IF NOT EXISTS alone collides with another store that is at it
        try:
            with self._connection.transaction():
                self._run("CREATE EXTENSION IF NOT EXISTS vector")
        except StoreError as error:
            if not self._version():
                raise RuntimeError(f"this PostgreSQL has no pgvector: install it first ({error})") from None
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
        """Drop the table with all that is in it."""
        self._connection.write(lambda _: self._run("DROP TABLE IF EXISTS {table}"))

    def build_index(self, kind: str, **options: int) -> None:
        """Build pgvector's approximate index, "ivfflat" (lists=) or "hnsw" (m=, ef_construction=).

        ``search(exact=False)`` then uses it. One that is there already is replaced.
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
        """``fingerprint_`` of the model that the table's codes are of, by its comment; None: unknown."""
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
        """Upload rows by COPY; the number of rows written.

        Each batch is one transaction: an upload that is killed leaves whole batches. With ``resume`` the rows of the
        same upload that are there already are skipped. ``ids``: None: 0, 1, 2, … ``labels``: one per row; None, NaN
        or NaT for a row without one.
        """
        psycopg, _ = load_psycopg()
        statement = self._table.statement("COPY {table} (id, code, label) FROM STDIN")
        written = 0
        for given, bits, texts in self._batches(codes, ids, labels, batch):

            def write(
                _: Any, given: list[Any] = given, bits: list[str] = bits, texts: list[str | None] = texts
            ) -> int:
                self._connection.lock(self._number(), shared=True)
                left = self._missing(given, bits) if resume else range(len(given))
                self._connection.copy(statement, ((given[i], bits[i], texts[i]) for i in left))
                return len(left)

            try:
                written += self._connection.write(write)
            except psycopg.errors.UniqueViolation as error:
                raise InputError(
                    f"{written:,} rows were written, then: {in_one_line(error)}; resume=True continues an upload, "
                    "upsert replaces rows"
                ) from None
            except ConnectionError as error:
                raise ConnectionError(f"{error}; {written:,} rows were written, resume=True continues") from None
        self._run("ANALYZE {table}")  # so that the planner knows what the chunks are worth
        return written

    def upsert(self, codes: ArrayLike, ids: ArrayLike, labels: ArrayLike | None = None, batch: int = 10_000) -> None:
        """Write rows, replacing those of ids that are there; one transaction per batch.

        Batches of several stores to one table take turns: rows in any order would lock each other out.
        """
        _, sql = load_psycopg()
        passing = sql.Identifier("dish_passing")
        for rows in self._batches(codes, ids, labels, batch):

            def write(_: Any, rows: Any = rows) -> None:
                self._connection.lock(self._number())
                self._run(
                    "CREATE TEMPORARY TABLE {passing} (id {id_type}, code bit({n_bits}), label jsonb, "
                    "n bigint GENERATED ALWAYS AS IDENTITY) ON COMMIT DROP",
                    passing=passing,
                )
                into = self._table.statement("COPY {passing} (id, code, label) FROM STDIN", passing=passing)
                self._connection.copy(into, zip(*rows, strict=True))
                self._run(
                    "INSERT INTO {table} (id, code, label) SELECT id, code, label FROM {passing} ORDER BY n "
                    "ON CONFLICT (id) DO UPDATE SET code = excluded.code, label = excluded.label, place = DEFAULT",
                    passing=passing,
                )

            self._connection.write(write)

    def remove(self, ids: ArrayLike) -> int:
        """Remove rows by id; ids that are not there are ignored. The number of rows removed."""
        self._check_table()
        own = self._table.to_ids(ids)

        def write(_: Any) -> int:
            self._connection.lock(self._number())
            statement = self._table.statement("DELETE FROM {table} WHERE id = ANY(%s)")
            return int(self._connection.execute(statement, [own]).rowcount)

        return int(self._connection.write(write))

    def _batches(
        self, codes: ArrayLike, ids: ArrayLike | None, labels: ArrayLike | None, batch: int
    ) -> Iterator[tuple[list[Any], list[str], list[str | None]]]:
        """(ids, codes as bits, labels as JSON) of one batch after another."""
        check_integer("batch", batch, low=1)
        B = check_codes(codes, self.n_bits)
        own = self._table.to_ids(np.arange(len(B)) if ids is None else ids, len(B))
        if len(set(own)) < len(own):
            raise InputError("ids must differ: one is given twice")
        texts = to_json(labels, len(B))
        self._check_table()
        with progress("uploading", len(B)) as step:
            for i in range(0, len(B), batch):
                some = slice(i, i + batch)
                yield own[some], self._table.to_bits(B[some]), texts[some]
                step(len(own[some]))

    def _missing(self, ids: list[Any], bits: list[str]) -> list[int]:
        """Which rows of a batch are not in the table; one that is there with another code is an error."""
        there = dict(self._rows("SELECT id, code::text FROM {table} WHERE id = ANY(%s)", [ids]))
        for one, code in zip(ids, bits, strict=True):
            if there.get(one, code) != code:
                raise InputError(f"id {one!r} is there with another code: this is not the upload that was begun")
        return [i for i, one in enumerate(ids) if one not in there]

    # --- searching ---

    def search(
        self,
        queries: ArrayLike,
        k: int = 10,
        exact: bool = True,
        probes: int | None = None,
        ef_search: int | None = None,
    ) -> tuple[NDArray[np.int32], Ids]:
        """The k nearest rows of every query: (D, I), both (n_queries, min(k, rows)).

        Exact, by a scan, in order of distance, then of insertion. ``exact=False`` uses the index of ``build_index``,
        with ``probes`` lists of an ivfflat or ``ef_search`` candidates of an hnsw index.
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
            if len(rows) == k:  # lists may hold fewer: then by a scan
                return [row[:2] for row in sorted(rows, key=lambda row: row[1:])]
        with self._connection.transaction():
            self._run("SET LOCAL enable_seqscan = on")
            self._run("SET LOCAL enable_indexscan = off")  # an approximate index would not be exact
            text = "SELECT id, (code <~> {q})::int FROM {table} ORDER BY code <~> {q}, place LIMIT %s"
            return self._rows(text, [k], q=code)

    def radius_search(self, queries: ArrayLike, radius: int = 2) -> tuple[NDArray[np.int64], NDArray[np.int32], Ids]:
        """All rows at distance ≤ ``radius``: (lims, D, I), those of query i at lims[i]:lims[i + 1]; exact.

        Up to radius 5 the indexes of the chunks find the candidates; beyond, the table is scanned.
        """
        check_integer("radius", radius, low=0)
        Q = check_codes(queries, self.n_bits, "queries")
        with self._connection.snapshot():
            self._check_table()
            asked = [self._table.radius_query(q, radius) for q in self._table.to_bits(Q)]
            found = [self._connection.rows(*one) for one in asked]
        lims = np.cumsum([0, *map(len, found)])
        D = np.array([d for rows in found for _, d in rows], np.int32)
        return lims, D, self._table.from_ids([one for rows in found for one, _ in rows])

    def labels_of(self, ids: ArrayLike) -> NDArray[Any]:
        """The labels of some ids; None for a row without one (the array is then one of objects)."""
        own = self._table.to_ids(ids)
        self._check_table()
        there = dict(self._rows("SELECT id, label FROM {table} WHERE id = ANY(%s)", [own]))
        for one in own:
            if one not in there:
                raise KeyError(f"id {one!r} is not in the table")
        return label_array([there[one] for one in own])

    # --- SQL and checks ---

    def _run(self, text: str, **parts: Any) -> None:
        self._connection.execute(self._table.statement(text, **parts))

    def _rows(self, text: str, values: list[Any] | None = None, **parts: Any) -> list[Any]:
        return self._connection.rows(self._table.statement(text, **parts), values)

    def _number(self) -> int:
        """The server's number of the table."""
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
            raise RuntimeError(f"pgvector is {version or 'missing'} here; {oldest} or newer is needed for bits")

    def _columns(self) -> dict[str, str]:
        """Names and types of the table's columns; nothing if there is no such table."""
        text = (
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"
        )
        return dict(self._rows(text, [self._quoted_name()]))

    def _check_table(self) -> None:
        self._table.check(self._columns())
        if self.model is not None:
            modelfile.check_same_model(self.table_model, self.model, f"table {self.table!r}", "the model given")
