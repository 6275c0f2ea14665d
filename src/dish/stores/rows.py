"""What goes into a store and comes out of it: rows, filters, hits, and what a table records about its codes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dish.errors import InputError
from dish.ids_and_labels import Ids, as_ids, as_labels
from dish.index.snapshot import check_label_filter
from dish.labels import object_array


@dataclass(frozen=True)
class TableInfo:
    """What a table records about its codes."""

    n_bits: int
    ids: str  # "integer" or "string"
    model: str | None  # fingerprint of the hasher that made the codes


class Rows(NamedTuple):
    """Rows to write."""

    ids: list[Any]
    codes: NDArray[np.uint8]  # packed (n, bytes)
    labels: list[str | None]  # as JSON, see ``to_json``

    def take(self, rows: list[int]) -> Rows:
        """Return some of the rows."""
        return Rows([self.ids[i] for i in rows], self.codes[rows], [self.labels[i] for i in rows])


class FoundCodes(NamedTuple):
    """Distinct codes that a query found."""

    code_ids: NDArray[np.int64]
    distances: NDArray[np.int32]  # distance from the query
    counts: NDArray[np.int64]  # rows with this code


class FoundRows(NamedTuple):
    """Rows that a query found, in order of distance, then of place."""

    ids: Ids
    distances: NDArray[np.int32]
    code_ids: NDArray[np.int64]
    places: NDArray[np.int64]  # order of insertion

    def take(self, order: NDArray[Any]) -> FoundRows:
        """Return some of the hits, in the given order."""
        return FoundRows(*(a[order] for a in self))


@dataclass(frozen=True)
class Filter:
    """The rows that a search is restricted to. A row must fulfil every condition that is not None."""

    ids: list[Any] | None  # of the table's type
    labels: list[str] | None  # as JSON
    no_label: bool  # with ``labels``: rows without a label match, too
    where: str | None  # SQL


def make_filter(kind: str, ids: Any, labels: Iterable[Any] | None, where: str | None) -> Filter | None:
    """Return the filter of a search over a table with ids of this kind; None if there is no condition."""
    if ids is None and labels is None and where is None:
        return None
    if where is not None and (not isinstance(where, str) or not where.strip()):
        raise InputError(f"where must be a condition in SQL or None, got {where!r}")
    given, wanted = None if ids is None else as_ids(ids), None if labels is None else check_label_filter(labels)
    return Filter(
        None if given is None else known_ids(given, kind),
        None if wanted is None else [text for text in to_json(wanted, len(wanted)) if text is not None],
        wanted is not None and None in wanted,
        where,
    )


def known_ids(given: Ids, kind: str) -> list[Any]:
    """Return the ids that a table with ids of this kind can hold; the others are unknown to it."""
    if len(given) and (given.dtype == object) != (kind == "string"):
        return []
    return [one for one in given.tolist() if kind == "integer" or _is_text(one)]


def new_ids(ids: ArrayLike, n: int, kind: str) -> list[Any]:
    """Validate the ids of n rows that are written to a table with ids of this kind."""
    given = as_ids(ids, n)
    if n and (given.dtype == object) != (kind == "string"):
        raise InputError(f"ids of this table must be of type {kind!r}, got {given.tolist()[0]!r}")
    values: list[Any] = given.tolist()
    for one in values if kind == "string" else []:
        if not _is_text(one):
            raise InputError(f"ids must be text that databases can store (no NUL, no lone surrogate), got {one!r}")
    if len(set(values)) < len(values):
        seen: set[Any] = set()
        repeated = next(one for one in values if one in seen or seen.add(one))  # type: ignore[func-returns-value]
        raise InputError(f"ids must be distinct, but {repeated!r} occurs twice")
    return values


def id_array(ids: list[Any], kind: str) -> Ids:
    """Return ids from a table as an array of int64 or of str objects."""
    return object_array(ids) if kind == "string" else np.array(ids, np.int64)


def to_json(labels: Any, n: int) -> list[str | None]:
    """Return n labels as JSON; None for a row without a label. Equal labels of one type have the same text."""
    values = as_labels(labels, n) or [None] * n
    texts = {(type(value), value): json.dumps(value or abs(value) if isinstance(value, float) else value)
             for value in values if value is not None}  # fmt: skip  # abs: −0.0 and 0.0 are one label
    return [None if value is None else texts[type(value), value] for value in values]


def from_json(texts: Iterable[str | None]) -> list[Any]:
    """Return the labels that ``to_json`` made into text."""
    return [None if text is None else json.loads(text) for text in texts]


def _is_text(value: str) -> bool:
    return "\0" not in value and not any("\ud800" <= c <= "\udfff" for c in value)
