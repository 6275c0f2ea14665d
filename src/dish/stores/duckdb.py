"""Codes in a DuckDB file: columns of 64-bit words, scanned by ``bit_count(xor(…))``."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

import numpy as np

from dish import codes
from dish.errors import InputError, StoreError
from dish.install import pip_install
from dish.stores.connection import in_one_line
from dish.stores.rows import Rows
from dish.stores.sql import SqlStore
from dish.stores.store import Bytes, T

WAIT_S = 60.0  # how long a writer tries again after conflicts with others


class DuckDBStore(SqlStore):
    """Packed codes in a DuckDB file, which one process at a time can open.

    Threads can share a store: their calls take turns on its connection. Several stores of one process can use one
    file.

    Parameters
    ----------
    path : str or path
        The file; it is made if it does not exist.
    table, n_bits, ids, model
        As in ``dish.stores.open``.
    """

    UNIQUE: ClassVar[bool] = False  # the tables are scanned; indexes of DuckDB would only take memory

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
        self._open: Any = _connect(os.fspath(path))

    def close(self) -> None:
        """Close the connection. Every later call raises InputError."""
        with self._lock:
            if self._open is not None:
                self._open.close()
            self._open = None

    def _execute(self, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
        import duckdb

        try:
            found: list[Any] = self._open.execute(statement, values).fetchall()
            return found
        except duckdb.TransactionException:
            raise  # handled by ``_transaction``
        except duckdb.Error as error:
            message = str(error).split("\n\nLINE ")[0]  # the rest quotes our statement
            raise StoreError(f"DuckDB refused: {in_one_line(message)}") from None

    @contextmanager
    def _reading(self) -> Iterator[None]:
        import duckdb

        with self._lock:
            if self._open is None:
                raise InputError("the store is closed: open a new one")
            self._open.begin()
            try:
                yield
                self._open.commit()
            except BaseException:
                with suppress(duckdb.TransactionException):  # a failed commit has ended the transaction
                    self._open.rollback()
                raise

    def _transaction(self, work: Callable[[], T]) -> T:
        import duckdb

        end = time.monotonic() + WAIT_S
        while True:
            try:
                with self._reading():
                    return work()
            except duckdb.TransactionException as error:  # another store has written since this one began
                if time.monotonic() > end:
                    raise StoreError(f"DuckDB: conflicts with other writers for {WAIT_S:.0f} s: {error}") from None
                time.sleep(0.02 * random.random())

    def _exists(self) -> bool:
        found = self._execute("SELECT 1 FROM duckdb_tables() WHERE table_name = $1", (f"{self.table}_info",))
        return bool(found)

    def _load(self, rows: Rows) -> None:
        import pyarrow as pa

        kind = pa.string() if self.ids == "string" else pa.int64()
        words = codes.export(rows.codes, self.n_bits, "words64").T
        self._open.register(
            "dish_incoming",
            pa.table(
                {
                    "id": pa.array(rows.ids, kind),
                    **{
                        name: np.ascontiguousarray(column)
                        for name, column in zip(self._code_columns(), words, strict=True)
                    },
                    "label": pa.array(rows.labels, pa.string()),
                    "n": np.arange(len(rows.ids)),
                }
            ),
        )

    def _code_columns(self) -> tuple[str, ...]:
        return tuple(f"word{i}" for i in range(-(-self.n_bits // 64)))

    def _code_type(self) -> str:
        return "ubigint"

    def _distance(self) -> str:
        parts = (f"bit_count(xor({name}, ${i}::ubigint))::integer" for i, name in enumerate(self._code_columns(), 1))
        return f"({' + '.join(parts)})"

    def _query(self, q: Bytes) -> tuple[Any, ...]:
        return tuple(codes.export(q[None], self.n_bits, "words64")[0].tolist())

    def _to_packed(self, found: list[Any]) -> Bytes:
        return codes.parse(np.array(found, np.uint64).reshape(-1, len(self._code_columns())), self.n_bits, "words64")

    def _list(self, values: list[Any], kind: str, i: int) -> tuple[str, Any]:
        return f"(SELECT unnest(${i}::{self.TYPES[kind]}[]) AS value) AS list", values


def _connect(path: str) -> Any:
    try:
        import duckdb
        import pyarrow  # noqa: F401  (rows are loaded through Arrow)
    except ImportError:
        raise ImportError(f"DuckDB needs duckdb and pyarrow: {pip_install('duckdb')}") from None
    try:
        return duckdb.connect(path)
    except duckdb.IOException as error:
        if "lock" in str(error).lower():
            raise StoreError(
                f"another process has opened {path}: DuckDB lets one process at a time open a file. Share one store "
                "between the threads of a process, or use SQLite or PostgreSQL for several processes"
            ) from None
        raise StoreError(f"cannot open the DuckDB file {path}: {in_one_line(error)}") from None
