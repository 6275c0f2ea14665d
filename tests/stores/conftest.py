"""Stores of every engine, each in an empty database or folder."""

import pytest

from dish import stores
from helpers.stores import address_of

ENGINES = [
    "sqlite",
    "duckdb",
    pytest.param("postgresql", marks=pytest.mark.postgres),
    pytest.param("lance", marks=pytest.mark.engines),
]


@pytest.fixture(params=ENGINES)
def address(request, tmp_path):
    """The address of a database without our tables, for every engine."""
    return address_of(request.param, request, tmp_path)


@pytest.fixture
def open_store(address):
    """A function that opens a table of the database; tables that exist at the end are dropped."""
    opened = []

    def make(table="rows", n_bits=64, **options):
        opened.append(stores.open(address, table, n_bits=n_bits, **options))
        return opened[-1]

    yield make
    for store in opened:
        store.close()
    for table in {store.table for store in opened}:
        with stores.open(address, table) as store:
            store.drop()


@pytest.fixture
def store(open_store):
    """An empty table of 64-bit codes."""
    store = open_store()
    store.create()
    return store


@pytest.fixture
def postgres(request, dsn):
    """An empty table of 64-bit codes in PostgreSQL."""
    from dish.stores import PostgresStore

    with PostgresStore(dsn, "rows", 64) as store:
        store.create()
        yield store
        store.drop()
