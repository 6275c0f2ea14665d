"""One connection to PostgreSQL that threads may share, and errors in one line."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dish.errors import InputError, StoreError

ATTEMPTS = 5  # of a transaction that the server ends to break a deadlock
LOCKS = 0x64697368 << 32  # "dish": our advisory locks are this number and a table's


class Connection:
    """Statements by one thread at a time. A connection that was lost is an error once, and opened again after it."""

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
            raise InputError(f"dsn is not one: {error}") from None

    def close(self) -> None:
        """Close it for good."""
        with self._lock:
            self._open.close()
            self._dsn = ""

    @contextmanager
    def _alone(self) -> Iterator[Any]:
        """The connection for this thread alone; errors of the server become ours."""
        psycopg, _ = load_psycopg()
        with self._lock:
            if self._open.closed:
                if not self._dsn:
                    raise InputError("the store is closed: open another")
                self._open = self._connect()
            try:
                yield self._open
            except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
                raise  # ``push`` and ``write`` know what to do
            except psycopg.Error as error:
                if self._open.closed:
                    raise ConnectionError(
                        f"the connection to PostgreSQL was lost ({in_one_line(error)}); the next call opens it again"
                    ) from None
                raise StoreError(f"PostgreSQL refused: {in_one_line(error)}") from None

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """What is done inside is done whole or not at all. May be nested."""
        with self._alone() as connection, connection.transaction():
            yield connection

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """All that is read inside is of one moment."""
        with self.transaction() as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            yield

    def execute(self, statement: Any, values: list[Any] | None = None) -> Any:
        """Run a statement: its cursor."""
        with self._alone() as connection:
            return connection.execute(statement, values or [])

    def rows(self, statement: Any, values: list[Any] | None = None) -> list[Any]:
        """Run a statement: the rows it returns."""
        found: list[Any] = self.execute(statement, values).fetchall()
        return found

    def write(self, work: Callable[[Any], Any]) -> Any:
        """``work(connection)`` in a transaction; again, after a pause, if it met a deadlock with another writer."""
        psycopg, _ = load_psycopg()
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with self.transaction() as connection:
                    return work(connection)
            except psycopg.errors.DeadlockDetected as error:
                if attempt == ATTEMPTS:
                    message = f"{ATTEMPTS} attempts met a deadlock with other writers: {in_one_line(error)}"
                    raise StoreError(message) from None
                time.sleep(0.05 * attempt)

    def quote(self, identifier: Any) -> str:
        """A quoted name as text; it has its per cent signs doubled, for statements with values."""
        with self._alone() as connection:
            text: str = identifier.as_string(connection)
            return text.replace("%%", "%")

    def lock(self, table: int = 0, shared: bool = False) -> None:
        """Hold the lock of a table (by its number) until the transaction ends; other stores wait for it."""
        kind = "_shared" if shared else ""
        self.execute(f"SELECT pg_advisory_xact_lock{kind}(%s::bigint)", [LOCKS + table])

    def copy(self, statement: Any, rows: Any) -> None:
        """COPY rows into a table."""
        with self._alone() as connection:
            text = statement.as_string(connection).replace("%%", "%")  # COPY takes no values
            with connection.cursor() as cursor, cursor.copy(text) as copy:
                for row in rows:
                    copy.write_row(row)


def in_one_line(error: Exception) -> str:
    """The text of an error without its line breaks."""
    return " ".join(str(error).split())


def load_psycopg() -> tuple[Any, Any]:
    """The modules psycopg and psycopg.sql."""
    try:
        import psycopg
        import psycopg.sql
    except ImportError:
        raise ImportError("PostgreSQL needs psycopg: pip install 'dish-hash[postgres]'") from None
    return psycopg, psycopg.sql
