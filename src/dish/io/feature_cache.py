"""A cache of the features of image files, in one SQLite file: interrupted work resumes where it stopped."""

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
NET = "efficientnet_lite0"  # the network that computes the features of photos

Features = NDArray[np.float32]


class Stamp(NamedTuple):
    """Size and modification time of a file: if they are equal, the file has not changed."""

    size: int
    changed: int  # nanoseconds

    @classmethod
    def of(cls, path: Path) -> Self:
        """The stamp of a file now."""
        about = path.stat()
        return cls(about.st_size, about.st_mtime_ns)


class FeatureCache:
    """Features by file name. ``maker`` identifies the network and its settings; rows of another one are deleted."""

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
                f"the feature cache {path} cannot be used ({error}): remove it, and the features are computed again"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._base.close()

    def stamps(self) -> dict[str, Stamp]:
        """The stamps of all files in the cache, by name."""
        return {name: Stamp(*rest) for name, *rest in self._base.execute("SELECT name, size, changed FROM rows")}

    def problems(self) -> dict[str, str]:
        """The files that could not be read, and the reasons."""
        return dict(self._base.execute("SELECT name, problem FROM rows WHERE problem IS NOT NULL"))

    def put(self, stamps: Mapping[str, Stamp], rows: Mapping[str, Features], problems: Mapping[str, str]) -> None:
        """Store the features of some files, or the reasons why they cannot be read. Committed on return."""
        made: list[Any] = [(n, *stamps[n], None, row.astype(np.float32).tobytes()) for n, row in rows.items()]
        bad: list[Any] = [(n, *stamps[n], problem, None) for n, problem in problems.items()]
        with self._base:
            self._base.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?, ?)", made + bad)

    def forget(self, names: Iterable[str]) -> None:
        """Delete the entries of some files."""
        with self._base:
            self._base.executemany("DELETE FROM rows WHERE name = ?", [(name,) for name in names])

    def read(self, names: Sequence[str]) -> Features:
        """The features (n, d) of files, in the given order. They must all be in the cache, without problems."""
        found = dict(self._base.execute("SELECT name, features FROM rows WHERE features IS NOT NULL"))
        rows = [np.frombuffer(found[name], np.float32) for name in names]
        return np.stack(rows) if rows else np.empty((0, 0), np.float32)
