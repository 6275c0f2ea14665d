"""Codes in databases: ``PostgresStore``, with the calls of ``HammingIndex``.

``postgres`` is the store, ``table`` builds its statements and converts its values, ``connection`` runs them.
"""

from dish.stores.postgres import PostgresStore

__all__ = ["PostgresStore"]
