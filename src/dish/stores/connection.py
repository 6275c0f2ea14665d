"""A connection to PostgreSQL that threads can share; database errors become one-line errors of ours."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dish.errors import InputError, StoreError

ATTEMPTS = 5  # how often a transaction is tried that PostgreSQL ends to break a deadlock
LOCKS = 0x64697368 << 32  # "dish"; the advisory lock of a table is this number plus the table's oid


class Connection:
    """Runs the statements of one thread at a time.

    If the connection is lost, the current call raises ConnectionError and the next one reconnects.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._lock = threading.RLock()
        self._open: Any = self._connect()

    def _connect(self) -> Any:
        psycopg, _ = load_psycopg()
        try:
            return psycopg.connect(self._dsn, autocommit=True)
        except psycopg.OperationalError as error:
            raise ConnectionError(f"cannot reach PostgreSQL: {in_one_line(error)}") from None
        except psycopg.ProgrammingError as error:
            raise InputError(f"dsn is not a valid connection string: {error}") from None

    def close(self) -> None:
        """Close the connection for good."""
        with self._lock:
            self._open.close()
            self._dsn = ""

    @contextmanager
    def _exclusive(self) -> Iterator[Any]:
        """Yield the connection for this thread alone, and translate database errors."""
        psycopg, _ = load_psycopg()
        with self._lock:
            if self._open.closed:
                if not self._dsn:
                    raise InputError("the store is closed: open a new one")
                self._open = self._connect()
            try:
                yield self._open
            except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
                raise  # handled by ``push`` and ``write``
            except psycopg.Error as error:
                if self._open.closed:
                    raise ConnectionError(
                        f"the connection to PostgreSQL was lost ({in_one_line(error)}); the next call reconnects"
                    ) from None
                raise StoreError(f"PostgreSQL refused: {in_one_line(error)}") from None

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Commit all statements inside, or none of them. Transactions may be nested."""
        with self._exclusive() as connection, connection.transaction():
            yield connection

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Let all statements inside read the same state of the database."""
        with self.transaction() as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            yield

    def execute(self, statement: Any, values: list[Any] | None = None) -> Any:
        """Run a statement and return its cursor."""
        with self._exclusive() as connection:
            return connection.execute(statement, values or [])

    def rows(self, statement: Any, values: list[Any] | None = None) -> list[Any]:
        """Run a statement and return its rows."""
        found: list[Any] = self.execute(statement, values).fetchall()
        return found

    def write(self, work: Callable[[Any], Any]) -> Any:
        """Return ``work(connection)``, run in a transaction; after a deadlock with another writer, try again."""
        psycopg, _ = load_psycopg()
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with self.transaction() as connection:
                    return work(connection)
            except psycopg.errors.DeadlockDetected as error:
                if attempt == ATTEMPTS:
                    message = f"{ATTEMPTS} attempts ended in deadlocks with other writers: {in_one_line(error)}"
                    raise StoreError(message) from None
                time.sleep(0.05 * attempt)

    def quote(self, identifier: Any) -> str:
        """Return a quoted name as text; its percent signs, doubled for statements with values, become single."""
        with self._exclusive() as connection:
            text: str = identifier.as_string(connection)
            return text.replace("%%", "%")

    def lock(self, table: int = 0, shared: bool = False) -> None:
        """Hold the advisory lock of a table (by oid) until the transaction ends; other stores wait for it."""
        kind = "_shared" if shared else ""
        self.execute(f"SELECT pg_advisory_xact_lock{kind}(%s::bigint)", [LOCKS + table])

    def copy(self, statement: Any, rows: Any) -> None:
        """Run a COPY … FROM STDIN statement with these rows."""
        with self._exclusive() as connection:
            text = statement.as_string(connection).replace("%%", "%")  # COPY has no values
            with connection.cursor() as cursor, cursor.copy(text) as copy:
                for row in rows:
                    copy.write_row(row)


def in_one_line(error: Exception) -> str:
    """Return the text of an error without line breaks."""
    return " ".join(str(error).split())


def load_psycopg() -> tuple[Any, Any]:
    """Return the modules psycopg and psycopg.sql, or raise ImportError that names the extra."""
    try:
        import psycopg
        import psycopg.sql
    except ImportError:
        raise ImportError("PostgreSQL needs psycopg: pip install 'dish-hash[postgres]'") from None
    return psycopg, psycopg.sql
