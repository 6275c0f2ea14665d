"""The SQL of a table of codes: quoted names, codes as bit strings, radius queries, conversion of ids and labels."""

from __future__ import annotations

import json
from itertools import combinations, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.checks import check_integer, check_option
from dish.errors import InputError
from dish.ids_and_labels import Ids, as_ids, as_labels
from dish.io.modelfile import check_fingerprint
from dish.labels import object_array
from dish.stores.connection import load_psycopg

CHUNKS = 3  # if codes differ in at most R bits, one of three chunks differs in at most R // 3; so none for R ≤ 2
CHUNK_BITS = 31  # most bits per chunk: a chunk is an int


class CodeTable:
    """The name, code length and id type of a table, and the statements about it."""

    def __init__(self, name: str, n_bits: int, ids: str) -> None:
        self.n_bits = check_integer("n_bits", n_bits, low=1)
        self.ids = check_option("ids", ids, ("integer", "string"))
        if not name or "\0" in name or len(name.encode()) > 48:
            raise InputError(f"table must be a name of 1 to 48 bytes without NUL, got {name!r}")
        self.name = name
        self.id_type = "text" if ids == "string" else "bigint"

    # --- statements ---

    def statement(self, text: str, **parts: Any) -> Any:
        """Return a statement with the table's names and the given parts filled in; a part that is a str is SQL."""
        _, sql = load_psycopg()
        plain = {name: sql.SQL(part) if isinstance(part, str) else part for name, part in parts.items()}
        return sql.SQL(text).format(
            table=self.identifier(), n_bits=sql.Literal(self.n_bits), id_type=sql.SQL(self.id_type), **plain
        )

    def identifier(self, what: str = "") -> Any:
        """Return the quoted name of the table, or of one of its indexes; percent signs are doubled for psycopg."""
        _, sql = load_psycopg()
        return sql.Identifier((f"{self.name}_{what}" if what else self.name).replace("%", "%%"))

    def bits(self, q: str) -> Any:
        """Return a code, given as a string of 0 and 1, in SQL."""
        _, sql = load_psycopg()
        return sql.SQL("{}::bit({})").format(sql.Literal(q), sql.Literal(self.n_bits))

    def chunks(self) -> list[Any]:
        """Return SQL expressions for the chunks of a code as integers."""
        _, sql = load_psycopg()
        return [
            sql.SQL("(substring(code from {} for {})::bit({})::int)").format(
                sql.Literal(start + 1), sql.Literal(width), sql.Literal(width)
            )
            for start, width in _chunk_places(self.n_bits)
        ]

    def radius_query(self, q: str, radius: int) -> tuple[Any, list[Any]]:
        """Return the query for all rows within the radius of q, and its values.

        Up to radius 5 the candidates are the rows with a chunk equal, or nearly equal, to the chunk of q.
        """
        _, sql = load_psycopg()
        near = self.statement("code <~> {q} <= %s", q=self.bits(q))
        values: list[Any] = [radius]
        places = _chunk_places(self.n_bits)
        flips = radius // len(places)
        if flips < 2:
            shared = []
            for chunk, (start, width) in zip(self.chunks(), places, strict=True):
                shared.append(self.statement("{chunk} = ANY(%s::int[])", chunk=chunk))
                values.append(_neighbours(int(q[start : start + width], 2), width, flips))
            near = sql.SQL("{} AND ({})").format(near, sql.SQL(" OR ").join(shared))
        text = "SELECT id, (code <~> {q})::int AS d FROM {table} WHERE {near} ORDER BY d, place"
        return self.statement(text, q=self.bits(q), near=near), values

    # --- values ---

    def check(self, columns: dict[str, str]) -> None:
        """Raise InputError if the columns (name → type) do not fit this table."""
        if not columns:
            raise InputError(f"there is no table {self.name!r}: call create() first")
        for name, kind in {"code": f"bit({self.n_bits})", "id": self.id_type}.items():
            if columns.get(name) != kind:
                raise InputError(
                    f"column {name} of table {self.name!r} must be {kind}, got {columns.get(name, 'no such column')}"
                )

    def to_ids(self, ids: Any, n: int | None = None) -> list[Any]:
        """Validate ids and return them as plain values of the table's id type."""
        given = as_ids(ids, n)
        if len(given) and (given.dtype == object) != (self.ids == "string"):
            raise InputError(f"ids of this table must be of type {self.ids!r}, got {given.tolist()[0]!r}")
        values: list[Any] = given.tolist()
        for one in values if self.ids == "string" else []:
            if not _is_storable(one):
                raise InputError(
                    f"ids must be text that PostgreSQL can store (no NUL, no lone surrogate), got {one!r}"
                )
        return values

    def from_ids(self, ids: list[Any]) -> Ids:
        """Return ids from the table as an array of int64 or of str objects."""
        return object_array(ids) if self.ids == "string" else np.array(ids, np.int64)

    def to_bits(self, B: NDArray[np.uint8]) -> list[str]:
        """Return packed codes as strings of 0 and 1."""
        digits = np.unpackbits(B, axis=1, count=self.n_bits) + ord("0")
        return [bytes(line).decode() for line in digits]


def to_json(labels: Any, n: int) -> list[str | None]:
    """Return n labels as JSON texts; None for a row without a label."""
    values = as_labels(labels, n)
    if values is None:
        return [None] * n
    for value in dict.fromkeys(values):
        if isinstance(value, str) and not _is_storable(value):
            raise InputError(
                f"labels must be text that PostgreSQL can store (no NUL, no lone surrogate), got {value!r}"
            )
        if isinstance(value, float) and not abs(value) < 2**53:  # jsonb would return it as an integer
            raise InputError(f"labels in PostgreSQL must be text, integers or floats below 2^53, got {value!r}")
    return [None if value is None else json.dumps(value) for value in values]


def to_comment(model: str | None) -> str:
    """Return the table comment that records the model of the codes."""
    return json.dumps({"dish": {"model": model}})


def from_comment(comment: str | None) -> str | None:
    """Return the model recorded in a table comment; None if the comment is not ours."""
    try:
        return check_fingerprint("model", json.loads(comment or "")["dish"]["model"])
    except (ValueError, KeyError, TypeError):
        return None


def _is_storable(value: str) -> bool:
    return "\0" not in value and not any("\ud800" <= c <= "\udfff" for c in value)


def _chunk_places(n_bits: int) -> list[tuple[int, int]]:
    """Return (start, width) of each chunk: a third of the code, or its first bits if it is too long."""
    bounds = np.linspace(0, n_bits, min(CHUNKS, n_bits) + 1).astype(int).tolist()
    return [(a, min(b - a, CHUNK_BITS)) for a, b in pairwise(bounds)]


def _neighbours(x: int, width: int, flips: int) -> list[int]:
    """Return all integers of ``width`` bits within Hamming distance ``flips`` of x."""
    masks = (sum(1 << b for b in bits) for i in range(flips + 1) for bits in combinations(range(width), i))
    return [x ^ mask for mask in masks]
