"""A table of codes in SQL: its names quoted, its codes as bits, its radius queries, its values checked."""

from __future__ import annotations

import json
from itertools import combinations, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.checks import check_integer, check_option
from dish.errors import InputError
from dish.ids_and_labels import Ids, as_ids, as_labels, object_array
from dish.io.modelfile import check_fingerprint
from dish.stores.connection import load_psycopg

CHUNKS = 3  # of two codes at distance ≤ R, one of three chunks differs in at most R // 3 bits: none for R ≤ 2
CHUNK_BITS = 31  # at most: a chunk is an int


class Table:
    """The name, the code length and the kind of ids of a table, and statements about it."""

    def __init__(self, name: str, n_bits: int, ids: str) -> None:
        self.n_bits = check_integer("n_bits", n_bits, low=1)
        self.ids = check_option("ids", ids, ("integer", "string"))
        if not name or "\0" in name or len(name.encode()) > 48:
            raise InputError(f"table must be a name of 1 to 48 bytes, got {name!r}")
        self.name = name
        self.id_type = "text" if ids == "string" else "bigint"

    # --- statements ---

    def statement(self, text: str, **parts: Any) -> Any:
        """A statement with names and parts put in, quoted; a part that is a plain word of SQL is put in as it is."""
        _, sql = load_psycopg()
        plain = {name: sql.SQL(part) if isinstance(part, str) else part for name, part in parts.items()}
        return sql.SQL(text).format(
            table=self.identifier(), n_bits=sql.Literal(self.n_bits), id_type=sql.SQL(self.id_type), **plain
        )

    def identifier(self, what: str = "") -> Any:
        """The quoted name of the table, or of something of it. Statements have values: a per cent sign is doubled."""
        _, sql = load_psycopg()
        return sql.Identifier((f"{self.name}_{what}" if what else self.name).replace("%", "%%"))

    def bits(self, q: str) -> Any:
        """A code in SQL."""
        _, sql = load_psycopg()
        return sql.SQL("{}::bit({})").format(sql.Literal(q), sql.Literal(self.n_bits))

    def chunks(self) -> list[Any]:
        """The chunks of a code as whole numbers, in SQL."""
        _, sql = load_psycopg()
        return [
            sql.SQL("(substring(code from {} for {})::bit({})::int)").format(
                sql.Literal(start + 1), sql.Literal(width), sql.Literal(width)
            )
            for start, width in _chunk_places(self.n_bits)
        ]

    def radius_query(self, q: str, radius: int) -> tuple[Any, list[Any]]:
        """The query and its values: rows that share a chunk, or nearly, and are near as a whole."""
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
        """Refuse columns (names and types) that are not this table's."""
        if not columns:
            raise InputError(f"there is no table {self.name!r}: create() makes it")
        for name, kind in {"code": f"bit({self.n_bits})", "id": self.id_type}.items():
            if columns.get(name) != kind:
                raise InputError(
                    f"table {self.name!r} has {columns.get(name, 'nothing')} as {name}, where {kind} is needed"
                )

    def to_ids(self, ids: Any, n: int | None = None) -> list[Any]:
        """Ids as plain values of the table's kind."""
        given = as_ids(ids, n)
        if len(given) and (given.dtype == object) != (self.ids == "string"):
            raise InputError(f"ids must be of the kind {self.ids!r}, got {given.tolist()[0]!r}")
        own: list[Any] = given.tolist()
        for one in own if self.ids == "string" else []:
            if not _is_text(one):
                raise InputError(
                    f"ids must be text that PostgreSQL can hold (no NUL, no lone surrogate), got {one!r}"
                )
        return own

    def from_ids(self, ids: list[Any]) -> Ids:
        """Ids as the index has them."""
        return object_array(ids) if self.ids == "string" else np.array(ids, np.int64)

    def to_bits(self, B: NDArray[np.uint8]) -> list[str]:
        """Packed codes as strings of 0 and 1."""
        digits = np.unpackbits(B, axis=1, count=self.n_bits) + ord("0")
        return [bytes(line).decode() for line in digits]


def to_json(labels: Any, n: int) -> list[str | None]:
    """Labels as JSON texts; None for a row without one."""
    values = as_labels(labels, n)
    if values is None:
        return [None] * n
    for value in dict.fromkeys(values):
        if isinstance(value, str) and not _is_text(value):
            raise InputError(
                f"labels must be text that PostgreSQL can hold (no NUL, no lone surrogate), got {value!r}"
            )
        if isinstance(value, float) and not abs(value) < 2**53:  # it would come back as a whole number
            raise InputError(f"labels must be text, whole numbers or floats below 2^53 here, got {value!r}")
    return [None if value is None else json.dumps(value) for value in values]


def to_comment(model: str | None) -> str:
    """What the table's comment says of the model its codes are of."""
    return json.dumps({"dish": {"model": model}})


def from_comment(comment: str | None) -> str | None:
    """The model that a comment names; None for a comment that is not ours."""
    try:
        return check_fingerprint("model", json.loads(comment or "")["dish"]["model"])
    except (ValueError, KeyError, TypeError):
        return None


def _is_text(value: str) -> bool:
    return "\0" not in value and not any("\ud800" <= c <= "\udfff" for c in value)


def _chunk_places(n_bits: int) -> list[tuple[int, int]]:
    """(start, width) of the chunks: a third of the code each, or the first bits of a third."""
    bounds = np.linspace(0, n_bits, min(CHUNKS, n_bits) + 1).astype(int).tolist()
    return [(a, min(b - a, CHUNK_BITS)) for a, b in pairwise(bounds)]


def _neighbours(x: int, width: int, flips: int) -> list[int]:
    """All numbers of so many bits that differ from x in at most so many of them."""
    masks = (sum(1 << b for b in bits) for i in range(flips + 1) for bits in combinations(range(width), i))
    return [x ^ mask for mask in masks]
