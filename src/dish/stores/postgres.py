"""The same codes in a real database: PostgreSQL with pgvector's Hamming distance on ``bit(n)`` columns."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dish.checks import check_integer, check_option
from dish.codes import check_codes
from dish.items import Ids, as_ids, as_labels
from dish.progress import progress

if TYPE_CHECKING:
    from psycopg import sql

OLDEST = (0, 7)  # the first pgvector with Hamming distance on bits
CHUNKS = 3  # of two codes at distance ≤ R, one of three chunks differs in at most R // 3 bits: none for R ≤ 2
CHUNK_BITS = 31  # at most: a chunk is an int
INDEX_OPTIONS = {"ivfflat": ("lists",), "hnsw": ("m", "ef_construction")}


class PostgresStore:
    """Packed codes in a table of PostgreSQL ≥ 13 with pgvector ≥ 0.7.

    The table has the columns ``id`` (primary key), ``code bit(n_bits)``, ``label jsonb`` and ``place``, the order of
    insertion. Indexes over three chunks of the code serve radius searches.

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
    """

    def __init__(self, dsn: str, table: str, n_bits: int = 64, ids: str = "integer") -> None:
        psycopg, _ = _psycopg()
        self.n_bits = check_integer("n_bits", n_bits, low=1)
        self.ids = check_option("ids", ids, ("integer", "string"))
        if not table or "\0" in table or len(table.encode()) > 48:
            raise ValueError(f"table must be a name of 1 to 48 bytes, got {table!r}")
        self.table = table
        self._name = _identifier(table)
        try:
            self._connection = psycopg.connect(dsn, autocommit=True)
        except psycopg.OperationalError as error:
            raise ConnectionError(f"cannot reach PostgreSQL: {' '.join(str(error).split())}") from None
        except psycopg.ProgrammingError as error:
            raise ValueError(f"dsn is not one: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __len__(self) -> int:
        self._check_table()
        return int(self._all("SELECT count(*) FROM {table}")[0][0])

    # --- the table ---

    def create(self) -> None:
        """Make the extension, the table and the indexes of its chunks, whichever is not there yet."""
        psycopg, _ = _psycopg()
        try:
            with self._connection.transaction():
                self._run("CREATE EXTENSION IF NOT EXISTS vector")
        except psycopg.Error as error:
            if not self._version():
                raise RuntimeError(f"this PostgreSQL has no pgvector: install it first ({_line(error)})") from None
        self._check_version()
        if self._columns():
            self._check_table()
            return
        with self._connection.transaction():
            self._run(
                "CREATE TABLE {table} (id {kind} PRIMARY KEY, code bit({n_bits}) NOT NULL, label jsonb, "
                "place bigint GENERATED ALWAYS AS IDENTITY)",
                kind=self._sql("text" if self.ids == "string" else "bigint"),
            )
            for j, chunk in enumerate(self._chunks()):
                self._run(
                    "CREATE INDEX {name} ON {table} (({chunk}))", name=self._index_name(f"chunk{j}"), chunk=chunk
                )

    def drop(self) -> None:
        """Drop the table with all that is in it."""
        self._run("DROP TABLE IF EXISTS {table}")

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
        _, sql = _psycopg()
        pairs = [sql.SQL("{} = {}").format(sql.Identifier(name), sql.Literal(int(v))) for name, v in options.items()]
        settings = sql.SQL("WITH ({})").format(sql.SQL(", ").join(pairs)) if pairs else sql.SQL("")
        self._check_table()
        with self._connection.transaction():
            self._run("DROP INDEX IF EXISTS {name}", name=self._index_name(kind))
            self._run(
                "CREATE INDEX {name} ON {table} USING {method} (code bit_hamming_ops) {settings}",
                name=self._index_name(kind),
                method=sql.Identifier(kind),
                settings=settings,
            )

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
        same upload that are there already are skipped. ``ids``: None: 0, 1, 2, …
        """
        psycopg, _ = _psycopg()
        written = 0
        for given, bits, texts in self._batches(codes, ids, labels, batch, "uploading"):
            left = self._missing(given, bits) if resume else range(len(given))
            try:
                with self._connection.transaction():
                    self._copy(self._name, ((given[i], bits[i], texts[i]) for i in left))
            except psycopg.errors.UniqueViolation as error:
                raise ValueError(
                    f"{written:,} rows were written, then: {_line(error)}; resume=True continues an upload, upsert "
                    "replaces rows"
                ) from None
            written += len(left)
        self._run("ANALYZE {table}")  # so that the planner knows what the chunks are worth
        return written

    def upsert(self, codes: ArrayLike, ids: ArrayLike, labels: ArrayLike | None = None, batch: int = 10_000) -> None:
        """Write rows, replacing those of ids that are there; one transaction a batch."""
        passing = _identifier("dish_passing")
        for given, bits, texts in self._batches(codes, ids, labels, batch, "uploading"):
            with self._connection.transaction():
                self._run(
                    "CREATE TEMPORARY TABLE {passing} (id {kind}, code bit({n_bits}), label jsonb, "
                    "n bigint GENERATED ALWAYS AS IDENTITY) ON COMMIT DROP",
                    passing=passing,
                    kind=self._sql("text" if self.ids == "string" else "bigint"),
                )
                self._copy(passing, zip(given, bits, texts, strict=True))
                self._run(
                    "INSERT INTO {table} (id, code, label) SELECT id, code, label FROM {passing} ORDER BY n "
                    "ON CONFLICT (id) DO UPDATE SET code = excluded.code, label = excluded.label, place = DEFAULT",
                    passing=passing,
                )

    def remove(self, ids: ArrayLike) -> int:
        """Remove rows by id; ids that are not there are ignored. The number of rows removed."""
        self._check_table()
        with self._connection.cursor() as cursor:
            cursor.execute(self._text("DELETE FROM {table} WHERE id = ANY(%s)"), [self._own(ids)])
            return int(cursor.rowcount)

    def _batches(
        self, codes: ArrayLike, ids: ArrayLike | None, labels: ArrayLike | None, batch: int, title: str
    ) -> Iterator[tuple[list[Any], list[str], list[str | None]]]:
        """(ids, codes as bits, labels as JSON) of a batch after another."""
        check_integer("batch", batch, low=1)
        B = check_codes(codes, self.n_bits)
        own = self._own(np.arange(len(B)) if ids is None else ids, len(B))
        if len(set(own)) < len(own):
            raise ValueError("ids must differ: one is given twice")
        values = as_labels(labels, len(B))
        self._check_table()
        with progress(title, len(B)) as step:
            for i in range(0, len(B), batch):
                some = slice(i, i + batch)
                texts: list[str | None] = [None] * len(own[some])
                if values is not None:
                    texts = [json.dumps(value) for value in values[some]]
                yield own[some], self._as_bits(B[some]), texts
                step(len(own[some]))

    def _copy(self, table: sql.Identifier, rows: Any) -> None:
        statement = self._text("COPY {into} (id, code, label) FROM STDIN", into=table)
        plain = statement.as_string(self._connection).replace("%%", "%")  # COPY takes no values
        with self._connection.cursor() as cursor, cursor.copy(plain) as copy:
            for row in rows:
                copy.write_row(row)

    def _missing(self, ids: list[Any], bits: list[str]) -> list[int]:
        """Which rows of a batch are not in the table; one that is there with another code is an error."""
        there = dict(self._all("SELECT id, code::text FROM {table} WHERE id = ANY(%s)", [ids]))
        for one, code in zip(ids, bits, strict=True):
            if there.get(one, code) != code:
                raise ValueError(f"id {one!r} is there with another code: this is not the upload that was begun")
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
        Q = self._as_bits(check_codes(queries, self.n_bits, "queries"))
        with self._snapshot():
            k = min(k, len(self))
            for name, value in (("ivfflat.probes", probes), ("hnsw.ef_search", ef_search)):
                if value is not None:
                    self._all("SELECT set_config(%s, %s, true)", [name, str(check_integer(name, value, low=1))])
            found = [self._nearest(q, k, exact) for q in Q]
        D = np.array([[d for _, d in rows] for rows in found], np.int32).reshape(len(Q), k)
        return D, self._as_array([one for rows in found for one, _ in rows]).reshape(len(Q), k)

    def _nearest(self, q: str, k: int, exact: bool) -> list[Any]:
        if not exact:
            with self._connection.transaction():
                self._run("SET LOCAL enable_seqscan = off")
                rows = self._all(
                    "SELECT id, (code <~> {q})::int, place FROM {table} ORDER BY code <~> {q} LIMIT %s",
                    [k],
                    q=self._bits(q),
                )
            if len(rows) == k:  # lists may hold fewer: then by a scan
                return [row[:2] for row in sorted(rows, key=lambda row: row[1:])]
        with self._connection.transaction():
            self._run("SET LOCAL enable_seqscan = on")
            self._run("SET LOCAL enable_indexscan = off")  # an approximate index would not be exact
            return self._all(
                "SELECT id, (code <~> {q})::int FROM {table} ORDER BY code <~> {q}, place LIMIT %s",
                [k],
                q=self._bits(q),
            )

    def radius_search(self, queries: ArrayLike, radius: int = 2) -> tuple[NDArray[np.int64], NDArray[np.int32], Ids]:
        """All rows at distance ≤ ``radius``: (lims, D, I), those of query i at lims[i]:lims[i + 1]; exact.

        Up to radius 5 the indexes of the chunks find the candidates; beyond, the table is scanned.
        """
        check_integer("radius", radius, low=0)
        Q = check_codes(queries, self.n_bits, "queries")
        with self._snapshot():
            self._check_table()
            found = [self._all(*self._radius_query(q, radius)) for q in self._as_bits(Q)]
        lims = np.cumsum([0, *map(len, found)])
        D = np.array([d for rows in found for _, d in rows], np.int32)
        return lims, D, self._as_array([one for rows in found for one, _ in rows])

    def _radius_query(self, q: str, radius: int) -> tuple[Any, list[Any]]:
        """The query and its values: rows that share a chunk, or nearly, and are near as a whole."""
        _, sql = _psycopg()
        near = self._text("code <~> {q} <= %s", q=self._bits(q))
        values: list[Any] = [radius]
        places = _chunk_places(self.n_bits)
        flips = radius // len(places)
        if flips < 2:
            shared = []
            for chunk, (start, width) in zip(self._chunks(), places, strict=True):
                shared.append(self._text("{chunk} = ANY(%s::int[])", chunk=chunk))
                values.append(_neighbours(int(q[start : start + width], 2), width, flips))
            near = sql.SQL("{} AND ({})").format(near, sql.SQL(" OR ").join(shared))
        statement = self._text(
            "SELECT id, (code <~> {q})::int AS d FROM {table} WHERE {near} ORDER BY d, place",
            q=self._bits(q),
            near=near,
        )
        return statement, values

    def labels_of(self, ids: ArrayLike) -> NDArray[Any]:
        """The labels of some ids; None stands for a row without one (the array is then one of objects)."""
        own = self._own(ids)
        self._check_table()
        there = dict(self._all("SELECT id, label FROM {table} WHERE id = ANY(%s)", [own]))
        for one in own:
            if one not in there:
                raise KeyError(f"id {one!r} is not in the table")
        found = [there[one] for one in own]
        return np.array(found, object if None in found else None)

    # --- SQL ---

    def _text(self, text: str, **parts: Any) -> Any:
        """A statement with its names and parts put in, quoted."""
        _, sql = _psycopg()
        return sql.SQL(text).format(table=self._name, n_bits=sql.Literal(self.n_bits), **parts)

    def _sql(self, text: str) -> Any:
        _, sql = _psycopg()
        return sql.SQL(text)

    def _run(self, text: str, **parts: Any) -> None:
        self._connection.execute(self._text(text, **parts), [])

    def _all(self, text: Any, values: list[Any] | None = None, **parts: Any) -> list[Any]:
        statement = self._text(text, **parts) if isinstance(text, str) else text
        return self._connection.execute(statement, values or []).fetchall()

    def _index_name(self, what: str) -> sql.Identifier:
        return _identifier(f"{self.table}_{what}")

    def _bits(self, q: str) -> Any:
        _, sql = _psycopg()
        return sql.SQL("{}::bit({})").format(sql.Literal(q), sql.Literal(self.n_bits))

    def _chunks(self) -> list[Any]:
        """The chunks of a code as whole numbers, in SQL."""
        _, sql = _psycopg()
        return [
            sql.SQL("(substring(code from {} for {})::bit({})::int)").format(
                sql.Literal(start + 1), sql.Literal(width), sql.Literal(width)
            )
            for start, width in _chunk_places(self.n_bits)
        ]

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """All that is read inside is of one moment."""
        with self._connection.transaction():
            self._run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            yield

    # --- checks ---

    def _version(self) -> str:
        found = self._all("SELECT extversion FROM pg_extension WHERE extname = 'vector'")
        return str(found[0][0]) if found else ""

    def _check_version(self) -> None:
        version = self._version()
        numbers = tuple(int(x) for x in re.findall(r"\d+", version)[:2])
        if numbers < OLDEST:
            oldest = ".".join(map(str, OLDEST))
            raise RuntimeError(f"pgvector is {version or 'missing'} here; {oldest} or newer is needed for bits")

    def _columns(self) -> dict[str, str]:
        """Names and types of the table's columns; nothing if there is no such table."""
        return dict(
            self._all(
                "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
                "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
                [self._name.as_string(self._connection).replace("%%", "%")],
            )
        )

    def _check_table(self) -> None:
        columns = self._columns()
        if not columns:
            raise ValueError(f"there is no table {self.table!r}: create() makes it")
        wanted = {"code": f"bit({self.n_bits})", "id": "text" if self.ids == "string" else "bigint"}
        for name, kind in wanted.items():
            if columns.get(name) != kind:
                raise ValueError(
                    f"table {self.table!r} has {columns.get(name, 'nothing')} as {name}, where {kind} is needed"
                )

    def _own(self, ids: Any, n: int | None = None) -> list[Any]:
        """Ids as plain values of the table's kind."""
        given = as_ids(ids, n)
        if len(given) and (given.dtype == object) != (self.ids == "string"):
            raise ValueError(f"ids must be of the kind {self.ids!r}, got {given.tolist()[0]!r}")
        own: list[Any] = given.tolist()
        if self.ids == "string" and any("\0" in one for one in own):
            raise ValueError("ids must not contain the character NUL: PostgreSQL cannot hold it")
        return own

    def _as_array(self, ids: list[Any]) -> Ids:
        return np.array(ids, object if self.ids == "string" else np.int64)

    def _as_bits(self, B: NDArray[np.uint8]) -> list[str]:
        """Packed codes as strings of 0 and 1."""
        digits = np.unpackbits(B, axis=1, count=self.n_bits) + ord("0")
        return [bytes(line).decode() for line in digits]


def _chunk_places(n_bits: int) -> list[tuple[int, int]]:
    """(start, width) of the chunks: a third of the code each, or the first bits of a third."""
    bounds = np.linspace(0, n_bits, min(CHUNKS, n_bits) + 1).astype(int).tolist()
    return [(a, min(b - a, CHUNK_BITS)) for a, b in pairwise(bounds)]


def _neighbours(x: int, width: int, flips: int) -> list[int]:
    """All numbers of so many bits that differ from x in at most so many of them."""
    masks = (sum(1 << b for b in bits) for i in range(flips + 1) for bits in combinations(range(width), i))
    return [x ^ mask for mask in masks]


def _identifier(name: str) -> Any:
    """A quoted name. Statements here are run with values, if only none: a per cent sign must be written twice."""
    _, sql = _psycopg()
    return sql.Identifier(name.replace("%", "%%"))


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _psycopg() -> tuple[Any, Any]:
    try:
        import psycopg
        import psycopg.sql
    except ImportError:
        raise ImportError("PostgreSQL needs psycopg: pip install 'dish-hash[postgres]'") from None
    return psycopg, psycopg.sql
