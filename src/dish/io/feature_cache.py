"""Features of files, kept in one SQLite file: what is known stays known, whatever stops the work half-way."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dish.errors import DataFileError

TABLES = """
CREATE TABLE IF NOT EXISTS rows (name TEXT PRIMARY KEY, size INTEGER, changed INTEGER, problem TEXT, features BLOB);
CREATE TABLE IF NOT EXISTS about (maker TEXT);
"""
NET = "efficientnet_lite0"  # whose features of photos are kept

Features = NDArray[np.float32]


class Stamp(NamedTuple):
    """What tells whether a file has changed."""

    size: int
    changed: int  # nanoseconds

    @classmethod
    def of(cls, path: Path) -> Self:
        """Of a file as it is now."""
        about = path.stat()
        return cls(about.st_size, about.st_mtime_ns)


class FeatureCache:
    """Rows by the name of their file. ``maker`` says what computed them: another maker's rows are dropped."""

    def __init__(self, path: Path, maker: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        try:
            self._base = sqlite3.connect(path, timeout=5)
            self._base.executescript(TABLES)
            if [maker] != [row[0] for row in self._base.execute("SELECT maker FROM about")]:
                with self._base:
                    self._base.execute("DELETE FROM rows")
                    self._base.execute("DELETE FROM about")
                    self._base.execute("INSERT INTO about VALUES (?)", (maker,))
        except sqlite3.Error as error:
            raise DataFileError(
                f"{path} cannot be used ({error}): remove it, and the features are recomputed"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._base.close()

    def stamps(self) -> dict[str, Stamp]:
        """Every name that is known, with the stamp its file had."""
        return {name: Stamp(*rest) for name, *rest in self._base.execute("SELECT name, size, changed FROM rows")}

    def problems(self) -> dict[str, str]:
        """Files that could not be read, and why."""
        return dict(self._base.execute("SELECT name, problem FROM rows WHERE problem IS NOT NULL"))

    def put(self, stamps: Mapping[str, Stamp], rows: Mapping[str, Features], problems: Mapping[str, str]) -> None:
        """Keep features of some files, or what is wrong with them. On return they are on the disk."""
        made: list[Any] = [(n, *stamps[n], None, row.astype(np.float32).tobytes()) for n, row in rows.items()]
        bad: list[Any] = [(n, *stamps[n], problem, None) for n, problem in problems.items()]
        with self._base:
            self._base.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?, ?)", made + bad)

    def forget(self, names: Iterable[str]) -> None:
        """Drop files that are gone."""
        with self._base:
            self._base.executemany("DELETE FROM rows WHERE name = ?", [(name,) for name in names])

    def read(self, names: Sequence[str]) -> Features:
        """Features (n, d) of files that are known and sound, in this order."""
        found = dict(self._base.execute("SELECT name, features FROM rows WHERE features IS NOT NULL"))
        rows = [np.frombuffer(found[name], np.float32) for name in names]
        return np.stack(rows) if rows else np.empty((0, 0), np.float32)
