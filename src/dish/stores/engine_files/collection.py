"""What is exported, and what the module of an engine has to say about it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from dish import codes
from dish.checks import check_integer
from dish.errors import InputError

NEAREST = 10  # rows that the query of an export asks for
NAME = "[a-z][a-z0-9_]*"  # allowed by every engine


@dataclass(frozen=True)
class ExportedCollection:
    """The name of a collection, the length of its codes, and the types of its ids and labels."""

    name: str
    n_bits: int
    ids: type = int  # or str
    labels: type | None = None  # int, str, or None if rows have no labels

    def __post_init__(self) -> None:
        check_integer("n_bits", self.n_bits, low=1)
        if not re.fullmatch(NAME, self.name):
            raise InputError(
                f"name must be lower-case letters, digits and underscores, beginning with a letter, got {self.name!r}"
            )

    @property
    def padded_bits(self) -> int:
        """The length of the codes with their unused bits: a multiple of 8."""
        return 8 * codes.n_bytes(self.n_bits)


@dataclass(frozen=True)
class ExportedRows:
    """Some rows: ids, codes in the form of the engine, and labels (None: no label)."""

    ids: list[Any]
    codes: Any
    labels: list[Any]

    def __iter__(self) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
        """(id, code, {"label": …}); the dictionary is empty if the row has no label."""
        for one, code, label in zip(self.ids, self.codes, self.labels, strict=True):
            yield one, code, {} if label is None else {"label": label}


class EngineFiles(ABC):
    """The files of one engine. Subclasses write them as its documentation says."""

    title: ClassVar[str]  # the engine's name
    form: ClassVar[str]  # of ``codes.export``
    rows_file: ClassVar[str]
    tested: ClassVar[str] = "These files follow the engine's documentation. They have not been run."

    def __init__(self, collection: ExportedCollection) -> None:
        self.collection = collection

    @abstractmethod
    def definition(self) -> dict[str, str]:
        """File name → text of what defines the collection."""

    @abstractmethod
    def rows(self, rows: ExportedRows) -> Iterator[str]:
        """Text of the bulk file for some rows, to be joined."""

    @abstractmethod
    def query(self, code: Any) -> dict[str, str]:
        """File name → text of a query for the rows nearest to a code in the form of the engine."""

    @abstractmethod
    def steps(self) -> str:
        """Markdown: how to load the files and run the query, and how the answer gives the distance."""

    def frame(self) -> tuple[str, str, str]:
        """Text before the rows, between the blocks of rows, and after them."""
        return "", "", ""
