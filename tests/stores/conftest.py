"""An empty table in the test database."""

import pytest

from dish.stores import PostgresStore


@pytest.fixture
def store(dsn):
    with PostgresStore(dsn, "rows", 64) as store:
        store.create()
        yield store
        store.drop()
