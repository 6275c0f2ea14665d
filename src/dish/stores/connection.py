"""A connection to PostgreSQL that threads can share; database errors become one-line errors of ours."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from dish.errors import InputError, StoreError
from dish.install import pip_install

T = TypeVar("T")
ATTEMPTS = 5  # how often a transaction is tried that PostgreSQL ends to break a deadlock
CREATING = 0x64697368 << 32  # "dish": the advisory lock of stores that create tables


class Connection:
    """Runs the statements of one thread at a time.

    If the connection is lost, the current call raises ConnectionError and the next one reconnects.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._lock = threading.RLock()
        self._open: Any = self._connect()

    def _connect(self) -> Any:
        psycopg = load_psycopg()
        try:
            # unnamed statements: their plans know the values, so that LIMIT and distances can use an index
            return psycopg.connect(
                self._dsn, autocommit=True, prepare_threshold=None, cursor_factory=psycopg.RawCursor
            )
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
        psycopg = load_psycopg()
        with self._lock:
            if self._open.closed:
                if not self._dsn:
                    raise InputError("the store is closed: open a new one")
                self._open = self._connect()
            try:
                yield self._open
            except psycopg.errors.DeadlockDetected:
                raise  # handled by ``write``
            except psycopg.Error as error:
                if self._open.closed:
                    raise ConnectionError(
                        f"the connection to PostgreSQL was lost ({in_one_line(error)}); the next call reconnects"
                    ) from None
                raise StoreError(f"PostgreSQL refused: {in_one_line(error)}") from None

    @contextmanager
    def transaction(self, level: str = "READ_COMMITTED") -> Iterator[None]:
        """Commit all statements inside, or none of them; a nested transaction keeps the level of the outer one."""
        psycopg = load_psycopg()
        with self._exclusive() as connection:
            if connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
                connection.isolation_level = psycopg.IsolationLevel[level]
            with connection.transaction():
                yield

    def snapshot(self) -> AbstractContextManager[None]:
        """Let all statements inside read the same state of the database."""
        return self.transaction("REPEATABLE_READ")

    def execute(self, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
        """Run a statement with values for $1, $2, …; return its rows."""
        with self._exclusive() as connection:
            cursor = connection.execute(statement, values)
            found: list[Any] = cursor.fetchall() if cursor.description else []
            return found

    def write(self, work: Callable[[], T]) -> T:
        """Return ``work()``, run in a transaction; after a deadlock with another writer, try again."""
        psycopg = load_psycopg()
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with self.transaction():
                    return work()
            except psycopg.errors.DeadlockDetected as error:
                if attempt == ATTEMPTS:
                    message = f"{ATTEMPTS} attempts ended in deadlocks with other writers: {in_one_line(error)}"
                    raise StoreError(message) from None
                time.sleep(0.05 * attempt)
        raise AssertionError  # not reached

    def wait_to_create(self) -> None:
        """Wait until no other store creates a table; they wait until this transaction ends."""
        self.execute("SELECT pg_advisory_xact_lock($1::bigint)", (CREATING,))

    def copy(self, statement: str, rows: Iterable[Any]) -> None:
        """Run a COPY … FROM STDIN statement with these rows."""
        with self._exclusive() as connection, connection.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)


def in_one_line(error: Exception | str) -> str:
    """Return the text of an error without line breaks."""
    return " ".join(str(error).split())


def load_psycopg() -> Any:
    """Return the module psycopg, or raise ImportError that names the extra."""
    try:
        import psycopg
    except ImportError:
        raise ImportError(f"PostgreSQL needs psycopg: {pip_install('postgres')}") from None
    return psycopg
