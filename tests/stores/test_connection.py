"""Connections: bad addresses, lost connections, deadlocks, errors of the server."""

import sys
import threading
import time

import numpy as np
import pytest

from dish.errors import InputError, StoreError
from dish.stores import PostgresStore
from dish.stores.connection import ATTEMPTS, Connection, in_one_line, load_psycopg
from helpers.codes import make_codes
from helpers.threads import errors_of_threads

psycopg = pytest.importorskip("psycopg", reason="PostgresStore is NOT tested: psycopg is not installed")

pytestmark = pytest.mark.postgres


def test_an_unreachable_server_and_an_invalid_connection_string(tmp_path):
    with pytest.raises(ConnectionError, match="cannot reach PostgreSQL"):
        Connection(f"host={tmp_path} user=u password=secret")
    with pytest.raises(InputError, match="dsn is not a valid connection string"):
        Connection("not a dsn")


def test_errors_of_the_server_are_one_line(dsn):
    connection = Connection(dsn)
    with pytest.raises(StoreError, match=r"^PostgreSQL refused: [^\n]*$"):
        connection.execute("SELECT nothing FROM nowhere")
    assert connection.execute("SELECT $1::int + 1", (1,)) == [(2,)]  # the connection is still usable
    connection.close()


def test_a_failed_transaction_changes_nothing(dsn):
    connection = Connection(dsn)

    def fail():
        with connection.transaction():
            connection.execute("CREATE TABLE never (x int)")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert connection.execute("SELECT to_regclass('never')") == [(None,)]
    connection.close()


def test_psycopg_is_named_if_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ImportError, match=r"pip install 'dish-hash\[postgres\]'"):
        load_psycopg()


def test_in_one_line():
    assert in_one_line(ValueError("a\n  b")) == "a b"


def test_a_deadlock_with_another_client_is_tried_again(dsn, postgres):
    """The other client locks rows 2 and 1 in this order, the store rows 1 and 2."""
    B = make_codes("random", 3, 64)
    postgres.push(B)
    locked, blocked = threading.Event(), "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"

    def other():
        with psycopg.connect(dsn) as connection, psycopg.connect(dsn, autocommit=True) as watch:
            connection.execute("SET deadlock_timeout = '60s'")  # PostgreSQL must end the store's transaction
            connection.execute("UPDATE rows SET label = '1' WHERE id = 2")
            locked.set()
            while not watch.execute(blocked).fetchone()[0]:  # until the store waits for row 2
                time.sleep(0.005)
            connection.execute("UPDATE rows SET label = '1' WHERE id = 1")

    def ours():
        assert locked.wait(10)
        postgres.upsert(B[1:], [1, 2], labels=["a", "b"])

    assert errors_of_threads(other, ours) == []
    assert postgres.labels_of([1, 2]).tolist() == ["a", "b"]


def test_repeated_deadlocks_end_in_an_error(dsn, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    connection, calls = Connection(dsn), []

    def work():
        calls.append(1)
        raise psycopg.errors.DeadlockDetected("deadlock")

    with pytest.raises(StoreError, match="attempts ended in deadlocks"):
        connection.write(work)
    assert len(calls) == ATTEMPTS
    connection.close()


def end_connections(dsn):
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )


def test_a_lost_connection_is_one_error_and_then_reopened(dsn, postgres):
    B = make_codes("clustered", 30_000, 64)
    postgres.push(B[:5])
    end_connections(dsn)
    with pytest.raises(ConnectionError, match=r"connection to PostgreSQL was lost .* the next call reconnects"):
        len(postgres)
    assert len(postgres) == 5

    def interrupt():
        with PostgresStore(dsn, "rows", 64) as watcher:
            while len(watcher) == 5:
                time.sleep(0.01)
        end_connections(dsn)

    failed = errors_of_threads(interrupt, lambda: postgres.push(B[5:], np.arange(5, 30_000), batch=500))
    assert [type(error) for error in failed] == [ConnectionError]
    assert "rows were written, then: " in str(failed[0])
    written = len(postgres)
    assert (written - 5) % 500 == 0
    assert postgres.push(B[5:], np.arange(5, 30_000), resume=True) == 30_000 - written


def test_a_closed_store_stays_closed(dsn):
    with PostgresStore(dsn, "rows", 64) as closed:
        pass
    with pytest.raises(ValueError, match="the store is closed"):
        len(closed)
