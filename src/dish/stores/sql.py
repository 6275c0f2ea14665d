"""SqlStore: the primitives of a store in SQL that PostgreSQL, DuckDB and SQLite share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dish.errors import StoreError
from dish.ids_and_labels import Ids
from dish.stores.rows import Filter, FoundCodes, FoundRows, Rows, TableInfo, id_array
from dish.stores.store import Bytes, Store, T


class SqlStore(Store):
    """A store in three tables of an SQL database.

    =============== ====================================== =======================================================
    table           columns                                content
    =============== ====================================== =======================================================
    ``TABLE``       ``id``, ``code_id``, ``label``,        the rows; ``label`` is JSON text or NULL, ``place`` the
                    ``place``                              order of insertion. You may add columns and indexes.
    ``TABLE_codes`` ``code_id``, the code, ``count``       each distinct code, and the number of its rows
    ``TABLE_info``  ``n_bits``, ``ids``, ``model``,        one row: what ``create`` recorded; ``places`` is the
                    ``places``                             place of the next row
    =============== ====================================== =======================================================

    Writers update ``places`` first, so that they take turns from then on until they commit. Only a store may change
    the columns that it made: ``count`` must be the number of rows.
    """

    TYPES: ClassVar[dict[str, str]] = {"integer": "bigint", "string": "text"}  # type of ids
    UNIQUE: ClassVar[bool] = True  # whether ids and codes have indexes

    # --- what an engine adds ---

    @abstractmethod
    def _execute(self, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
        """Run a statement with values for $1, $2, …; return its rows."""

    @abstractmethod
    def _transaction(self, work: Callable[[], T]) -> T:
        """Return ``work()``, run in a transaction; run it again after a conflict with another writer."""

    @abstractmethod
    def _load(self, rows: Rows) -> None:
        """Make the table ``dish_incoming`` (id, the code, label, n) of rows; n is 0, 1, 2, …"""

    @abstractmethod
    def _exists(self) -> bool:
        """Return whether the table with the name of ``_name("info")`` exists."""

    def _code_columns(self) -> tuple[str, ...]:
        """Return the names of the columns of a code."""
        return ("code",)

    @abstractmethod
    def _code_type(self) -> str:
        """Return the type of the columns of a code."""

    @abstractmethod
    def _distance(self) -> str:
        """Return the Hamming distance, as an integer, between a code and the values of ``_query``: $1, $2, …"""

    @abstractmethod
    def _query(self, q: Bytes) -> tuple[Any, ...]:
        """Return a packed query as values for ``_distance``."""

    @abstractmethod
    def _to_packed(self, found: list[Any]) -> Bytes:
        """Return codes (tuples of the columns of a code) as packed codes."""

    @abstractmethod
    def _list(self, values: list[Any], kind: str, i: int) -> tuple[str, Any]:
        """Return a table with the column ``value`` that holds the values, in SQL, and the value for $i."""

    # --- names ---

    def _name(self, what: str = "") -> str:
        """Return the quoted name of the table of the rows, of the distinct codes, or of the info."""
        name = f"{self.table}_{what}" if what else self.table
        return '"' + name.replace('"', '""') + '"'

    @property
    def _codes(self) -> str:
        return self._name("codes")

    def _columns(self, prefix: str = "") -> str:
        return ", ".join(prefix + column for column in self._code_columns())

    def _same_code(self, a: str, b: str) -> str:
        return " AND ".join(f"{a}.{column} = {b}.{column}" for column in self._code_columns())

    # --- the table ---

    def _create(self, info: TableInfo) -> None:
        self._transaction(lambda: None if self._exists() else self._create_tables(info))

    def _create_tables(self, info: TableInfo) -> None:
        key, unique = (" PRIMARY KEY", " UNIQUE") if self.UNIQUE else ("", "")
        code = ", ".join(f"{column} {self._code_type()} NOT NULL" for column in self._code_columns())
        name, codes = self._name(), self._codes
        self._execute(f"CREATE TABLE {self._name('info')} (n_bits integer, ids text, model text, places bigint)")
        self._execute(
            f"CREATE TABLE {codes} (code_id {self.TYPES['integer']}{key}, {code}{unique}, count bigint NOT NULL)"
        )
        self._execute(
            f"CREATE TABLE {name} (id {self.TYPES[info.ids]}{key}, code_id bigint NOT NULL, label text, "
            "place bigint NOT NULL)"
        )
        if self.UNIQUE:
            self._execute(f"CREATE INDEX {self._name('postings')} ON {name} (code_id, place)")
        values = (info.n_bits, info.ids, info.model)
        self._execute(f"INSERT INTO {self._name('info')} VALUES ($1, $2, $3, 0)", values)

    def _info(self) -> TableInfo | None:
        if not self._exists():
            return None
        found = self._execute(f"SELECT n_bits, ids, model FROM {self._name('info')}")
        return TableInfo(*found[0])

    def drop(self) -> None:
        """Drop the table and all its rows, if it exists."""

        def work() -> None:
            for what in ("info", "codes", ""):  # in the order in which writers lock them
                self._execute(f"DROP TABLE IF EXISTS {self._name(what)}")

        self._transaction(work)

    # --- writing ---

    def _writing(self, work: Callable[[], T]) -> T:
        def alone() -> T:
            self._reserve(0)
            return work()

        return self._transaction(alone)

    def _reserve(self, n: int) -> int:
        """Return the first of n new places; other writers of this table wait until this one commits."""
        found = self._execute(f"UPDATE {self._name('info')} SET places = places + $1 RETURNING places", (n,))
        if not found:
            raise StoreError(f"table {self.table!r} was dropped while a store wrote to it")
        return int(found[0][0]) - n

    def _insert(self, rows: Rows) -> None:
        self._load(rows)
        first = self._reserve(len(rows.ids))
        self._add_codes(first)
        self._execute(
            f"INSERT INTO {self._name()} (id, code_id, label, place) SELECT i.id, c.code_id, i.label, $1 + i.n "
            f"FROM dish_incoming i JOIN {self._codes} c ON {self._same_code('c', 'i')}",
            (first,),
        )

    def _add_codes(self, first: int) -> None:
        """Count the incoming codes; a new code gets the place of its first row as code_id."""
        counted = f"(SELECT {self._columns()}, count(*) AS n FROM dish_incoming GROUP BY {self._columns()}) AS i"
        self._execute(
            f"UPDATE {self._codes} SET count = count + i.n FROM {counted} WHERE {self._same_code(self._codes, 'i')}"
        )
        self._execute(
            f"INSERT INTO {self._codes} (code_id, {self._columns()}, count) "
            f"SELECT $1 + min(i.n), {self._columns('i.')}, count(*) FROM dish_incoming i WHERE NOT EXISTS "
            f"(SELECT 1 FROM {self._codes} c WHERE {self._same_code('c', 'i')}) GROUP BY {self._columns('i.')}",
            (first,),
        )

    def _upsert(self, rows: Rows) -> None:
        self._load(rows)
        first = self._reserve(len(rows.ids))
        replaced = [
            found
            for (found,) in self._execute(
                f"SELECT code_id FROM {self._name()} WHERE id IN (SELECT id FROM dish_incoming)"
            )
        ]
        self._add_codes(first)
        new = f"dish_incoming i JOIN {self._codes} c ON {self._same_code('c', 'i')}"
        self._execute(  # an update: columns that the user added keep their values
            f"UPDATE {self._name()} SET code_id = n.code_id, label = n.label, place = $1 + n.n FROM "
            f"(SELECT i.id, c.code_id, i.label, i.n FROM {new}) AS n WHERE n.id = {self._name()}.id",
            (first,),
        )
        self._execute(
            f"INSERT INTO {self._name()} (id, code_id, label, place) SELECT i.id, c.code_id, i.label, $1 + i.n "
            f"FROM {new} WHERE i.id NOT IN (SELECT id FROM {self._name()})",
            (first,),
        )
        self._release(replaced)

    def _remove(self, ids: list[Any]) -> int:
        given, value = self._list(ids, self.ids, 1)
        gone = self._execute(
            f"DELETE FROM {self._name()} WHERE id IN (SELECT value FROM {given}) RETURNING code_id", (value,)
        )
        self._release([code_id for (code_id,) in gone])
        return len(gone)

    def _release(self, code_ids: list[int]) -> None:
        """Discount rows of codes; delete the codes that have no row left."""
        if code_ids:
            given, value = self._list(code_ids, "integer", 1)
            self._execute(
                f"UPDATE {self._codes} SET count = count - i.n FROM (SELECT value, count(*) AS n FROM {given} "
                f"GROUP BY value) AS i WHERE code_id = i.value",
                (value,),
            )
            self._execute(
                f"DELETE FROM {self._codes} WHERE count = 0 AND code_id IN (SELECT value FROM {given})", (value,)
            )

    # --- reading ---

    def _count(self, chosen: Filter | None) -> int:
        condition, values = self._condition(chosen, 1)
        return int(self._execute(f"SELECT count(*) FROM {self._name()} WHERE {condition}", values)[0][0])

    def _codes_of(self, ids: list[Any]) -> dict[Any, bytes]:
        given, value = self._list(ids, self.ids, 1)
        found = self._execute(
            f"SELECT r.id, {self._columns('c.')} FROM {self._name()} r JOIN {self._codes} c ON c.code_id = r.code_id "
            f"WHERE r.id IN (SELECT value FROM {given})",
            (value,),
        )
        packed = self._to_packed([row[1:] for row in found])
        return {row[0]: code.tobytes() for row, code in zip(found, packed, strict=True)}

    def _labels_of(self, ids: list[Any]) -> dict[Any, str | None]:
        given, value = self._list(ids, self.ids, 1)
        return dict(
            self._execute(f"SELECT id, label FROM {self._name()} WHERE id IN (SELECT value FROM {given})", (value,))
        )

    def _packed(self, code_ids: NDArray[np.int64]) -> Bytes:
        given, value = self._list(code_ids.tolist(), "integer", 1)
        found = self._execute(
            f"SELECT code_id, {self._columns()} FROM {self._codes} WHERE code_id IN (SELECT value FROM {given})",
            (value,),
        )
        order = np.argsort([row[0] for row in found])
        packed = self._to_packed([row[1:] for row in found])[order]
        return packed[np.searchsorted(np.sort([row[0] for row in found]), code_ids)]

    def _nearest_codes(self, q: Bytes, n: int) -> FoundCodes:
        values = self._query(q)
        found = self._execute(
            f"SELECT code_id, {self._distance()} AS d, count FROM {self._codes} ORDER BY d LIMIT ${len(values) + 1}",
            (*values, n),
        )
        return to_codes(found)

    def _codes_within(self, q: Bytes, radius: int) -> FoundCodes:
        values = self._query(q)
        found = self._execute(
            f"SELECT code_id, {self._distance()} AS d, count FROM {self._codes} "
            f"WHERE {self._distance()} <= ${len(values) + 1}",
            (*values, radius),
        )
        return to_codes(found)

    def _postings(
        self, code_ids: NDArray[np.int64], first: int | None
    ) -> tuple[Ids, NDArray[np.int64], NDArray[np.int64]]:
        given, value = self._list(code_ids.tolist(), "integer", 1)
        statement = f"SELECT id, code_id, place FROM {self._name()} WHERE code_id IN (SELECT value FROM {given})"
        if first is None:
            found = self._execute(statement, (value,))
        else:
            found = self._execute(f"{statement} ORDER BY place LIMIT $2", (value, first))
        ids, found_ids, places = zip(*found, strict=True) if found else ((), (), ())
        return id_array(list(ids), self.ids), np.array(found_ids, np.int64), np.array(places, np.int64)

    def _matching(self, q: Bytes, chosen: Filter, k: int | None, radius: int | None) -> FoundRows:
        values = self._query(q)
        condition, more = self._condition(chosen, len(values) + 1)
        values += more
        cut = ""
        if radius is not None:
            cut, values = f" WHERE d <= ${len(values) + 1}", (*values, radius)
        limit = ""
        if k is not None:
            limit, values = f" LIMIT ${len(values) + 1}", (*values, k)
        found = self._execute(
            f"SELECT id, d, code_id, place FROM (SELECT r.id, {self._distance()} AS d, r.code_id, r.place FROM "
            f"(SELECT id, code_id, place FROM {self._name()} WHERE {condition}) AS r "
            f"JOIN {self._codes} AS c ON c.code_id = r.code_id) AS h{cut} ORDER BY d, place{limit}",
            values,
        )
        if not found:
            return self._no_hits()
        ids, D, code_ids, places = zip(*found, strict=True)
        return FoundRows(
            id_array(list(ids), self.ids),
            np.array(D, np.int32),
            np.array(code_ids, np.int64),
            np.array(places, np.int64),
        )

    def _condition(self, chosen: Filter | None, i: int) -> tuple[str, tuple[Any, ...]]:
        """Return a filter in SQL, over the columns of the rows, and its values: $i, …"""
        parts, values = ["TRUE"], []
        if chosen is not None and chosen.ids is not None:
            given, value = self._list(chosen.ids, self.ids, i)
            parts.append(f"id IN (SELECT value FROM {given})")
            values.append(value)
        if chosen is not None and chosen.labels is not None:
            given, value = self._list(chosen.labels, "string", i + len(values))
            missing = " OR label IS NULL" if chosen.no_label else ""
            parts.append(f"(label IN (SELECT value FROM {given}){missing})")
            values.append(value)
        if chosen is not None and chosen.where is not None:
            parts.append(f"(\n{chosen.where}\n)")  # on lines of its own: it may end in a comment
        return " AND ".join(parts), tuple(values)


def to_codes(found: list[Any]) -> FoundCodes:
    """Return rows (code_id, distance, count) as arrays."""
    columns = np.array(found, np.int64).reshape(-1, 3)
    return FoundCodes(columns[:, 0], columns[:, 1].astype(np.int32), columns[:, 2])
