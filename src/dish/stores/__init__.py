"""The same codes in databases, one contract: ``PostgresStore``."""

from dish.stores.postgres import PostgresStore

__all__ = ["PostgresStore"]
