"""Codes in an SQLite file: blobs, scanned by sqlite-vec's Hamming distance."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from dish.codes import n_bytes
from dish.errors import InputError, StoreError
from dish.install import pip_install
from dish.stores.rows import Rows
from dish.stores.sql import SqlStore
from dish.stores.store import Bytes, T

WAIT_MS = 60_000  # how long a writer waits for another


class SQLiteStore(SqlStore):
    """Packed codes in an SQLite file (WAL mode), through apsw and sqlite-vec.

    Threads can share a store: their calls take turns on its connection. Several stores and processes can use one
    file: readers do not wait, writers take turns.

    Parameters
    ----------
    path : str or path
        The file; it is made if it does not exist.
    table, n_bits, ids, model
        As in ``dish.stores.open``.
    """

    TYPES: ClassVar[dict[str, str]] = {"integer": "integer", "string": "text"}

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
        import apsw

        try:
            found: list[Any] = self._open.execute(statement, values).fetchall()
            return found
        except apsw.BusyError:
            raise StoreError(f"another program has been writing to the SQLite file for {WAIT_MS // 1000} s") from None
        except apsw.Error as error:
            raise StoreError(f"SQLite refused: {error}") from None

    @contextmanager
    def _begun(self, begin: str) -> Iterator[None]:
        with self._lock:
            if self._open is None:
                raise InputError("the store is closed: open a new one")
            self._execute(begin)
            try:
                yield
                self._execute("COMMIT")
            except BaseException:
                if self._open.in_transaction:
                    self._execute("ROLLBACK")
                raise

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._begun("BEGIN"):
            yield

    def _transaction(self, work: Callable[[], T]) -> T:
        with self._begun("BEGIN IMMEDIATE"):
            return work()

    def _exists(self) -> bool:
        return bool(self._execute("SELECT 1 FROM sqlite_master WHERE name = $1", (f"{self.table}_info",)))

    def _load(self, rows: Rows) -> None:
        self._execute("DROP TABLE IF EXISTS temp.dish_incoming")
        self._execute("CREATE TEMPORARY TABLE dish_incoming (id, code blob, label text, n integer)")
        codes = (code.tobytes() for code in rows.codes)
        incoming = zip(rows.ids, codes, rows.labels, range(len(rows.ids)), strict=True)
        self._open.executemany("INSERT INTO dish_incoming VALUES ($1, $2, $3, $4)", incoming)

    def _code_type(self) -> str:
        return "blob"

    def _distance(self) -> str:
        return "CAST(vec_distance_hamming(vec_bit(code), vec_bit($1)) AS integer)"

    def _query(self, q: Bytes) -> tuple[Any, ...]:
        return (q.tobytes(),)

    def _to_packed(self, found: list[Any]) -> Bytes:
        whole = b"".join(code for (code,) in found)
        return np.frombuffer(whole, np.uint8).reshape(-1, n_bytes(self.n_bits))

    def _list(self, values: list[Any], kind: str, i: int) -> tuple[str, Any]:
        return f"json_each(${i}) AS list", json.dumps(values)


def _connect(path: str) -> Any:
    try:
        import apsw
        import sqlite_vec
    except ImportError:
        raise ImportError(f"SQLite needs apsw and sqlite-vec: {pip_install('sqlite')}") from None
    try:
        connection = apsw.Connection(path)
        connection.set_busy_timeout(WAIT_MS)
        connection.enable_load_extension(True)
        connection.load_extension(sqlite_vec.loadable_path())
        connection.enable_load_extension(False)
        connection.execute("PRAGMA journal_mode = WAL")
    except apsw.Error as error:
        raise StoreError(f"cannot open the SQLite file {path}: {error}") from None
    return connection
