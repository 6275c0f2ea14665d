"""The same codes in databases, one contract: ``PostgresStore``.

``postgres`` is the store, ``table`` its statements and values, ``connection`` what threads share.
"""

from dish.stores.postgres import PostgresStore

__all__ = ["PostgresStore"]
