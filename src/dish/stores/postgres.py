"""Codes in PostgreSQL: a ``bit(n)`` column, searched by pgvector's Hamming distance."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dish import codes
from dish.checks import check_integer
from dish.errors import InputError, StoreError
from dish.ids_and_labels import Ids
from dish.stores import chunks
from dish.stores.connection import Connection, load_psycopg
from dish.stores.rows import FoundCodes, FoundRows, Rows, TableInfo, id_array
from dish.stores.sql import SqlStore, to_codes
from dish.stores.store import Bytes, T

OLDEST = (0, 7)  # first version of pgvector with Hamming distance on bits
MOST_BITS = 20_000  # an entry of a b-tree holds at most 2,704 bytes
EF_SEARCH = 40, 1000  # pgvector's default and maximum
SETTINGS = {"probes": "ivfflat.probes", "ef_search": "hnsw.ef_search"}  # option of a search → pgvector's name
SIMILARITIES = {  # of the column {v} and the query $2, as ``HammingIndex`` defines them
    "cosine": "CASE WHEN {v} <=> $2::vector = 'NaN' THEN 0 ELSE 1 - ({v} <=> $2::vector) END",  # NaN: a vector is 0
    "dot": "-({v} <#> $2::vector)",
    "l2": "-({v} <-> $2::vector)",
}


class PostgresStore(SqlStore):
    """Packed codes in PostgreSQL ≥ 13 with pgvector ≥ 0.7.

    Indexes over three chunks of the codes serve radius searches; ``build_index`` makes pgvector's "ivfflat" (lists=)
    or "hnsw" (m=, ef_construction=), which ``search(exact=False)`` uses with ``probes=`` or ``ef_search=``. Threads
    can share a store: it has one connection, on which their transactions take turns. Several stores and processes can
    use one table.

    Parameters
    ----------
    dsn : str
        libpq connection string: "postgresql://user@host/database" or "host=… dbname=…".
    table, n_bits, ids, model
        As in ``dish.stores.open``.
    """

    INDEX_OPTIONS: ClassVar[dict[str, tuple[str, ...]]] = {"ivfflat": ("lists",), "hnsw": ("m", "ef_construction")}
    SEARCH_OPTIONS: ClassVar[tuple[str, ...]] = tuple(SETTINGS)

    def __init__(
        self, dsn: str, table: str, n_bits: int = 64, ids: str = "integer", model: str | None = None
    ) -> None:
        load_psycopg()
        super().__init__(table, check_integer("n_bits", n_bits, low=1, high=MOST_BITS), ids, model)
        self._connection = Connection(dsn)
        self._column = ""  # of float vectors, in SQL

    def close(self) -> None:
        """Close the connection. Every later call raises InputError."""
        self._connection.close()

    # --- the table ---

    def _create_tables(self, info: TableInfo) -> None:
        super()._create_tables(info)
        # room for new counts next to the old ones, so that counting does not touch the indexes of the codes
        self._execute(f"ALTER TABLE {self._codes} SET (fillfactor = 70)")
        for j, chunk in enumerate(self._chunks()):
            self._execute(f"CREATE INDEX {self._name(f'chunk{j}')} ON {self._codes} ({chunk})")

    def _create(self, info: TableInfo) -> None:
        def work() -> None:
            self._connection.wait_to_create()  # concurrent IF NOT EXISTS statements can fail
            try:
                with self._connection.transaction():
                    self._execute("CREATE EXTENSION IF NOT EXISTS vector")
            except StoreError as error:
                if not self._version():
                    raise StoreError(f"this PostgreSQL server has no pgvector: install it first ({error})") from None
            self._check_version()
            if not self._exists():
                self._create_tables(info)

        self._connection.write(work)

    def _exists(self) -> bool:
        return self._execute("SELECT to_regclass($1) IS NOT NULL", (self._name("info"),)) == [(True,)]

    def _version(self) -> str:
        found = self._execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'")
        return str(found[0][0]) if found else ""

    def _check_version(self) -> None:
        version = self._version()
        numbers = tuple(int(x) for x in re.findall(r"\d+", version)[:2])
        if numbers < OLDEST:
            oldest = ".".join(map(str, OLDEST))
            raise StoreError(f"the server's pgvector is {version or 'missing'}, but codes need {oldest} or newer")

    def _build_index(self, kind: str, options: dict[str, int]) -> None:
        def work() -> None:
            self._execute(f"DROP INDEX IF EXISTS {self._name(kind)}")
            given = options
            if kind == "ivfflat":
                n = self._execute(f"SELECT count(*) FROM {self._codes}")[0][0]
                given = {"lists": max(1, int(n**0.5)), **options}
            settings = ", ".join(f"{name} = {int(value)}" for name, value in given.items())
            settings = f" WITH ({settings})" if settings else ""
            self._execute(
                f"CREATE INDEX {self._name(kind)} ON {self._codes} USING {kind} (code bit_hamming_ops){settings}"
            )

        self._connection.write(work)

    # --- statements ---

    def _execute(self, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
        return self._connection.execute(statement, values)

    def _reading(self) -> AbstractContextManager[Any]:
        return self._connection.snapshot()

    def _transaction(self, work: Callable[[], T]) -> T:
        return self._connection.write(work)

    def _load(self, rows: Rows) -> None:
        self._execute("DROP TABLE IF EXISTS pg_temp.dish_incoming")
        self._execute(
            f"CREATE TEMPORARY TABLE dish_incoming (id {self.TYPES[self.ids]}, code {self._code_type()}, label text, "
            "n bigint) ON COMMIT DROP"
        )
        bits = codes.export(rows.codes, self.n_bits, "bits")
        incoming = zip(rows.ids, bits, rows.labels, range(len(bits)), strict=True)
        self._connection.copy("COPY dish_incoming FROM STDIN", incoming)

    def _pushed(self) -> None:
        for name in (self._name(), self._codes):
            self._execute(f"ANALYZE {name}")  # the planner needs statistics to use the indexes

    def _code_type(self) -> str:
        return f"bit({self.n_bits})"

    def _distance(self) -> str:
        return f"(code <~> $1::bit({self.n_bits}))::int"

    def _query(self, q: Bytes) -> tuple[Any, ...]:
        return tuple(codes.export(q[None], self.n_bits, "bits"))

    def _to_packed(self, found: list[Any]) -> Bytes:
        return codes.parse([code for (code,) in found], self.n_bits, "bits")

    def _list(self, values: list[Any], kind: str, i: int) -> tuple[str, Any]:
        return f"unnest(${i}::{self.TYPES[kind]}[]) AS list(value)", values

    # --- searching ---

    def _chunks(self) -> list[str]:
        """Return SQL expressions for the chunks of a code as integers."""
        return [
            f"(substring(code from {start + 1} for {width})::bit({width})::int)"
            for start, width in chunks.places(self.n_bits)
        ]

    def _codes_within(self, q: Bytes, radius: int) -> FoundCodes:
        values = self._query(q)
        near = chunks.candidates(values[0], radius)
        if near is None:
            return super()._codes_within(q, radius)
        return to_codes(self._execute(self._near_statement(), (*values, radius, *near)))

    def _near_statement(self) -> str:
        """Return the statement for the codes within a radius, with candidates from the indexes of the chunks."""
        shared = " OR ".join(f"{chunk} = ANY(${j}::int[])" for j, chunk in enumerate(self._chunks(), 3))
        return (
            f"SELECT code_id, {self._distance()} AS d, count FROM {self._codes} "
            f"WHERE {self._distance()} <= $2 AND ({shared})"
        )

    def _indexed_codes(self, q: Bytes, n: int, options: dict[str, int]) -> FoundCodes | None:
        default, most = EF_SEARCH
        settings: dict[str, Any] = {"enable_seqscan": "off", "hnsw.ef_search": min(max(default, n), most)}
        settings |= {SETTINGS[name]: value for name, value in options.items()}
        parts = (f"set_config('{name}', '{value}', true)" for name, value in settings.items())
        names = tuple(self._name(kind) for kind in self.INDEX_OPTIONS)
        found = self._execute(f"SELECT to_regclass($1), to_regclass($2), {', '.join(parts)}", names)
        if found[0][:2] == (None, None):
            return None
        nearer = f"code <~> $1::bit({self.n_bits})"
        text = f"SELECT code_id, ({nearer})::int, count FROM {self._codes} ORDER BY {nearer} LIMIT $2"
        return to_codes(self._execute(text, (*self._query(q), n)))

    # --- rescoring by a column of vectors ---

    def attach_vectors(self, vectors: Any, ids: ArrayLike | None = None, metric: str = "cosine") -> None:
        """Use these float vectors, outside the database, for ``search(…, rescore="float")``; see ``Store``."""
        super().attach_vectors(vectors, ids, metric)
        self._column = ""

    def attach_column(self, column: str, metric: str = "cosine") -> None:
        """Use a column of pgvector's type vector(d) in the table for ``search(…, rescore="float")``.

        The server then computes the similarities of the shortlist. ``metric`` is "cosine", "dot" or "l2".
        """
        name = '"' + column.replace('"', '""') + '"'
        text = (
            "SELECT format_type(atttypid, atttypmod), atttypmod FROM pg_attribute "
            "WHERE attrelid = to_regclass($1) AND attname = $2 AND NOT attisdropped"
        )
        with self._reading():
            self._check_table()
            kind, d = ([*self._execute(text, (self._name(), column)), ("no such column", -1)])[0]
        if not kind.endswith(f"vector({d})") or "halfvec" in kind:
            raise InputError(
                f"column {column!r} of table {self.table!r} must be of the type vector with a fixed dimension, such "
                f"as vector(384), got {kind}"
            )
        super().attach_vectors(np.empty((0, d), np.float32), None, metric)  # validates the metric and the queries
        self._column = name

    def _best_by_vectors(self, V: NDArray[np.float64], found: list[FoundRows], k: int) -> list[tuple[Any, Any]]:
        if not self._column:
            return super()._best_by_vectors(V, found, k)
        return [self._most_similar(v, hits, k) for v, hits in zip(V, found, strict=True)]

    def _most_similar(self, v: NDArray[np.float64], hits: FoundRows, k: int) -> tuple[NDArray[np.float32], Ids]:
        """Return the k hits whose vectors are most similar to v, computed by the server; ties in the given order."""
        assert self._vectors is not None
        similarity = SIMILARITIES[self._vectors.metric].format(v=f"r.{self._column}")
        rows = self._execute(
            f"SELECT h.id, ({similarity})::real AS s FROM unnest($1::{self.TYPES[self.ids]}[]) WITH ORDINALITY "
            f"AS h(id, n) JOIN {self._name()} r ON r.id = h.id ORDER BY s DESC NULLS FIRST, h.n LIMIT $3",
            (hits.ids.tolist(), str(v.tolist()), k),
        )
        if rows and rows[0][1] is None:
            raise InputError(
                f"id {rows[0][0]!r} has no vector in the column {self._column}, but rescore='float' needs one for "
                "every row of the shortlist"
            )
        return np.array([s for _, s in rows], np.float32), id_array([one for one, _ in rows], self.ids)
