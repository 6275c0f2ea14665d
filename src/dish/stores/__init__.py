"""Codes in databases, with the calls and the results of ``HammingIndex``.

``address`` opens a store by its address. ``store`` is the contract and what does not depend on the engine. ``sql`` is
what SQL databases share. Engines: ``postgres`` (with ``connection`` and ``chunks``), ``duckdb``, ``sqlite`` and
``lance``. ``rows`` has what goes in and comes out. ``engine_files`` writes files for engines without a store.
"""

from dish.stores.address import open
from dish.stores.duckdb import DuckDBStore
from dish.stores.lance import LanceStore
from dish.stores.postgres import PostgresStore
from dish.stores.sqlite import SQLiteStore
from dish.stores.store import Store

__all__ = ["DuckDBStore", "LanceStore", "PostgresStore", "SQLiteStore", "Store", "open"]
