"""Open a store by the address of its database."""

from __future__ import annotations

from pathlib import Path

from dish.errors import InputError
from dish.stores.duckdb import DuckDBStore
from dish.stores.lance import LanceStore
from dish.stores.postgres import PostgresStore
from dish.stores.sqlite import SQLiteStore
from dish.stores.store import Store

FILES: dict[str, type[DuckDBStore | SQLiteStore]] = {"duckdb": DuckDBStore, "sqlite": SQLiteStore}
ADDRESSES = "postgresql://user@host/database, duckdb:///file.db, sqlite:///file.db or lance://folder"


def open(address: str, table: str, *, n_bits: int = 64, ids: str = "integer", model: str | None = None) -> Store:
    """Return the store of a table of codes in a database; it is a context manager.

    Parameters
    ----------
    address : str
        ``postgresql://user@host/database``, ``duckdb:///file.db``, ``sqlite:///file.db`` or ``lance://folder``. The
        path of a file follows the third slash; an absolute one has four: ``sqlite:////data/codes.db``. The path of a
        folder follows the second slash: ``lance:///data/codes`` is absolute.
    table : str
        Name of the table; any characters are allowed. ``create`` makes it.
    n_bits : int, default=64
        Code length.
    ids : "integer" or "string", default="integer"
        Type of the ids.
    model : str or None, default=None
        ``fingerprint_`` of the hasher that made the codes. ``create`` records it with a new table, and every call
        raises ModelMismatchError if the table records another model. None: not checked.

    Examples
    --------
    >>> import numpy as np
    >>> from dish import stores
    >>> codes = np.array([[0b00000000], [0b00000011], [0b11111111]], np.uint8)
    >>> with stores.open("sqlite:///codes.db", "items", n_bits=8) as store:  # doctest: +SKIP
    ...     store.create()
    ...     store.push(codes, labels=["a", "b", "b"])
    ...     D, I = store.search(codes[:1], k=2, labels=["b"])
    """
    if not isinstance(address, str):
        raise InputError(f"address must be {ADDRESSES}, got {address!r}")
    scheme, separator, rest = address.partition("://")
    if scheme in ("postgresql", "postgres") and separator:
        return PostgresStore(address, table, n_bits, ids, model)
    if scheme in FILES and separator:
        return FILES[scheme](_file(address, rest), table, n_bits, ids, model)
    if scheme == "lance" and separator:
        return LanceStore(_folder(address, rest), table, n_bits, ids, model)
    given = f"{scheme}://…" if separator else repr(address)  # the rest may contain a password
    raise InputError(f"address must be {ADDRESSES}, got {given}")


def _file(address: str, rest: str) -> Path:
    """Return the path of a database file in an address."""
    path = Path(rest.removeprefix("/"))
    if not rest.startswith("/") or not path.name:
        raise InputError(f"address must be like duckdb:///file.db, with three slashes before a path, got {address!r}")
    if not path.parent.is_dir():
        raise InputError(
            f"{address}: there is no folder {path.parent}; an absolute path has four slashes, as in sqlite:////data/codes.db"
        )
    return path


def _folder(address: str, rest: str) -> Path:
    """Return the path of a database folder in an address."""
    path = Path(rest)
    if not path.name or not path.parent.is_dir():
        raise InputError(f"address must be like lance://folder, in a folder that exists, got {address!r}")
    return path
