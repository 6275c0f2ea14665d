"""An alias: a small file that names the collection to serve, and the one before it.

A new model and index are built next to the old ones. ``Alias.set`` verifies them and then replaces the alias file in
one step, so that a reader sees the old collection or the new one. The old entry is kept for ``Alias.roll_back``.
"""

from __future__ import annotations

import json
import os
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from dish.codes import n_bytes
from dish.errors import DataFileError, InputError, ModelFileError
from dish.index.hamming import HammingIndex
from dish.index.index_file import IndexFile
from dish.io.atomic import StrPath, write_atomically
from dish.io.readers import read_ids
from dish.registry import load

if TYPE_CHECKING:
    from dish.hasher import Hasher

FORMAT, VERSION = "dish-alias", 1
MOST_BYTES = 1 << 20  # of an alias file; a larger file is something else
ANOTHER = "choose another file, or move this one away, and `dish alias set` writes a new one"
SAMPLE = 8  # items that must be found by their own codes


@dataclass(frozen=True)
class CollectionFiles:
    """The files of a collection: a model, an index of its codes, and optionally the float vectors of the items.

    ``vector_ids`` has the id of each vector; None: row i of ``vectors`` belongs to id i.
    """

    model: Path
    index: Path
    vectors: Path | None = None
    vector_ids: Path | None = None

    def __post_init__(self) -> None:
        if self.vector_ids is not None and self.vectors is None:
            raise InputError("vector ids are the ids of float vectors: give the vectors, too")

    def __str__(self) -> str:
        return " and ".join(str(path) for path in vars(self).values() if path is not None)


@dataclass(frozen=True)
class AliasEntry:
    """A collection that an alias names."""

    paths: dict[str, str]  # by the fields of ``CollectionFiles``; relative ones start at the folder of the alias
    since: str  # UTC, ISO 8601

    @classmethod
    def of(cls, files: CollectionFiles, folder: Path) -> Self:
        """Return a new entry of an alias in this folder. Absolute paths stay absolute."""
        given = {name: Path(path) for name, path in vars(files).items() if path is not None}
        paths = {name: path if path.is_absolute() else os.path.relpath(path, folder) for name, path in given.items()}
        return cls({name: Path(path).as_posix() for name, path in paths.items()}, utc_now())

    @classmethod
    def parse(cls, content: Any) -> Self | None:
        """Return an entry from its JSON."""
        if content is None:
            return None
        paths = dict(content)
        since = paths.pop("since")
        if not all(isinstance(value, str) for value in (*paths.values(), since)):
            raise TypeError("a path is not a string")
        CollectionFiles(**paths)  # raises if a field is missing or unknown
        return cls(paths, since)

    def files(self, folder: Path) -> CollectionFiles:
        """Return the paths of the files."""
        return CollectionFiles(**{name: Path(os.path.normpath(folder / path)) for name, path in self.paths.items()})


@dataclass(frozen=True)
class Verified:
    """What the files of a collection contain, as found when they were verified."""

    items: int
    n_bits: int
    kind: str  # class of the model
    model: str | None  # fingerprint of the model


class Alias:
    """An alias file. Every method reads the file again.

    Parameters
    ----------
    path : str or path
        The alias file, such as ``products.alias``. The first ``set`` creates it.

    Examples
    --------
    >>> from dish.alias import Alias, CollectionFiles
    >>> alias = Alias("products.alias")
    >>> alias.set(CollectionFiles("m2.dish", "ix2.dish"))  # doctest: +SKIP
    >>> alias.roll_back()  # doctest: +SKIP
    """

    def __init__(self, path: StrPath) -> None:
        self.path = Path(path)
        self.folder = Path(os.path.realpath(path)).parent

    @property
    def files(self) -> CollectionFiles:
        """The files of the collection to serve."""
        return self.entries()[0].files(self.folder)

    def entries(self) -> tuple[AliasEntry, AliasEntry | None]:
        """Return the current entry, and the one before it, if there is one."""
        if not self.path.exists():
            raise FileNotFoundError(f"there is no alias {self.path}: `dish alias set` makes one")
        if not self.path.is_file() or self.path.stat().st_size > MOST_BYTES:
            raise DataFileError(f"{self.path} is not an alias: {ANOTHER}")
        try:
            content = json.loads(self.path.read_bytes())
            if content["format"] != FORMAT or not isinstance(content["version"], int):
                raise ValueError("its format is another one")
            if content["version"] > VERSION:
                raise ValueError(f"it has version {content['version']}, but this dish reads up to {VERSION}")
            now, before = (AliasEntry.parse(content[name]) for name in ("current", "previous"))
            if now is None:
                raise ValueError("it names no collection")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataFileError(f"{self.path} is not an alias, or is damaged ({error!r}): {ANOTHER}") from None
        return now, before

    def set(self, files: CollectionFiles) -> Verified:
        """Verify a collection, then let the alias name it. If it is refused, the alias stays as it is.

        The entry before it is kept. An alias that names these files already is not written.
        """
        now = self.entries()[0] if self.path.exists() else None
        with closing(IndexFile(files.index)) as file:  # raises if a server writes to it
            file.check_settled()
        verified = verify(files)
        entry = AliasEntry.of(files, self.folder)
        if now is None or now.paths != entry.paths:
            self._write(entry, now)
        return verified

    def roll_back(self) -> Verified:
        """Verify the collection before this one, then let the alias name it again. A second call undoes the first."""
        now, before = self.entries()
        if before is None:
            raise InputError(f"{self.path} names no earlier collection: it was set only once")
        verified = verify(before.files(self.folder))
        self._write(replace(before, since=utc_now()), now)
        return verified

    def _write(self, now: AliasEntry, before: AliasEntry | None) -> None:
        entries = {"current": now, "previous": before}
        content = {name: None if one is None else {**one.paths, "since": one.since} for name, one in entries.items()}
        text = json.dumps({"format": FORMAT, "version": VERSION, **content}, indent=1)
        write_atomically(self.path, f"{text}\n".encode())


def utc_now() -> str:
    """Return the time, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def verify(files: CollectionFiles) -> Verified:
    """Load the files of a collection with their checksums, and check that they belong together and answer searches.

    Raises the error that says what is wrong. Nothing is written.
    """
    hasher, index = load(files.model).without_names(), HammingIndex.load(files.index)
    check_pair(hasher, index)
    if files.vectors is not None:
        attach_vectors(index, hasher, files.vectors, files.vector_ids)
    check_answers(hasher, index, files)
    return Verified(len(index), index.n_bits, type(hasher).__name__, getattr(hasher, "fingerprint_", None))


def check_pair(hasher: Hasher, index: HammingIndex) -> None:
    """Raise an error if the codes of an index cannot be those of a model."""
    if index.n_bits != hasher.n_bits:
        raise InputError(f"the model's codes have {hasher.n_bits} bits, those of the index {index.n_bits}")
    index.check_model(getattr(hasher, "fingerprint_", None))


def attach_vectors(index: HammingIndex, hasher: Hasher, vectors: Path, vector_ids: Path | None) -> None:
    """Map the float vectors of an index's items, which must be as long as the vectors that the model encodes."""
    index.attach_vectors(vectors, None if vector_ids is None else read_ids(vector_ids))
    attached = index.snapshot().vectors
    assert attached is not None
    width = None if getattr(hasher, "takes_images", False) else int(hasher.n_features_in_)
    if attached.rows.shape[1] != width:
        takes = "pictures" if width is None else f"vectors of {width} numbers"
        raise InputError(f"{vectors} has vectors of {attached.rows.shape[1]} numbers, but the model takes {takes}")
    missing = attached.rows_of(index.ids) < 0
    if missing.any():
        raise InputError(f"{vectors} has no vector of the item {index.ids[missing].tolist()[0]!r}")


def check_answers(hasher: Hasher, index: HammingIndex, files: CollectionFiles) -> None:
    """Raise an error unless the model encodes a row, and some items of the index are found by their own codes."""
    if not getattr(hasher, "takes_images", False):
        code = hasher.transform(np.zeros((1, int(hasher.n_features_in_)), np.float32))
        if code.shape != (1, n_bytes(index.n_bits)):
            raise ModelFileError(f"{files.model} encodes a row as {code.shape}, not as a code of {index.n_bits} bits")
    snapshot = index.snapshot()
    if not len(snapshot):
        return
    ids = snapshot.sample_ids(SAMPLE, np.random.default_rng(0))
    codes = snapshot.get(ids)
    by_code = snapshot.search(codes, k=1)[0]
    among = [snapshot.search(codes[i : i + 1], 1, ids[i : i + 1])[0] for i in range(len(ids))]
    for D in (by_code, *among):
        if D.shape[1] != 1 or D.any():
            raise ModelFileError(f"{files.index} does not find items by their own codes: build it again")
