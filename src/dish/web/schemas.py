"""What the routes take and give, as pydantic models: they check requests and describe the API."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Self

import numpy as np
from fastapi import UploadFile
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, create_model, model_validator

from dish.codes import n_bytes
from dish.errors import InputError
from dish.web.collection import Collection
from dish.web.middleware import Limits

DEFAULT_K = 10
FLOAT32 = float(np.finfo(np.float32).max)

Whole64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
AnyId = Whole64 | Annotated[str, Field(min_length=1, max_length=500)]
AnyLabel = Whole64 | Annotated[str, Field(max_length=500)]


class Strict(BaseModel):
    """JSON as it is declared: no unknown fields, no NaN, no numbers in quotes."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class SearchBody(Strict):
    """One query: a vector, the id of an item or a code; the k nearest or all within a radius."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [{"required": ["vector"]}, {"required": ["id"]}, {"required": ["code"]}],
            "not": {"required": ["k", "radius"]},
        }
    )

    vector: list[float] | None = Field(None, description="As many numbers as the model has features.")
    id: AnyId | None = Field(None, description="An item of the index.")
    code: str | None = Field(None, description="A packed code in hex, as answers give it.")
    k: int | None = Field(None, description=f"How many of the nearest ({DEFAULT_K} if no radius is given).")
    radius: int | None = Field(None, description="All at this Hamming distance or nearer.")

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        if sum(given is not None for given in (self.vector, self.id, self.code)) != 1:
            raise InputError("give one of vector, id and code")
        if self.k is not None and self.radius is not None:
            raise InputError("give either k or radius")
        return self


class EncodeBody(Strict):
    """Rows to encode."""

    vectors: list[list[float]] = Field(min_length=1)


class ItemsBody(Strict):
    """Items to add, or to replace where their ids are known."""

    ids: list[AnyId] = Field(min_length=1)
    vectors: list[list[float]] = Field(min_length=1)
    labels: list[AnyLabel | None] | None = None

    @model_validator(mode="after")
    def _as_many_of_each(self) -> Self:
        n = len(self.vectors)
        for name, values in (("ids", self.ids), ("labels", self.labels)):
            if values is not None and len(values) != n:
                raise InputError(f"{n} vectors came with {len(values)} {name}")
        return self


class PictureForm(BaseModel):
    """A picture to encode."""

    model_config = ConfigDict(extra="forbid")

    image: UploadFile


class PictureSearchForm(PictureForm):
    """A picture to search with; the k nearest or all within a radius."""

    k: int | None = None
    radius: int | None = None

    @model_validator(mode="after")
    def _k_or_radius(self) -> Self:
        if self.k is not None and self.radius is not None:
            raise InputError("give either k or radius")
        return self


class PictureItemForm(PictureForm):
    """A picture to add. ``id`` names it (by default the name of its file); a label may go with it."""

    id: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    label: Annotated[str, Field(min_length=1, max_length=500)] | None = None


class SearchAnswer(BaseModel):
    """The hits, nearest first, as columns."""

    ids: list[int | str]
    distances: list[int]
    labels: list[Any] = Field(description="null where an item has none.")
    codes: list[str] = Field(description="Packed codes of the hits, hex.")
    found: int = Field(description="Hits there are; more than are listed if the limit cut them off.")
    code: str = Field(description="The query's packed code, hex.")
    n_bits: int
    time_ms: dict[str, float] = Field(description="Of the stages; queries that came together share them.")


class EncodeAnswer(BaseModel):
    """Packed codes, hex."""

    codes: list[str]
    n_bits: int
    time_ms: dict[str, float]


class ItemsAnswer(BaseModel):
    """Sent once the items are on the disk."""

    saved: int
    size: int


class PictureItemAnswer(ItemsAnswer):
    """Sent once the picture is on the disk."""

    id: int | str = Field(description="What it is called; a name that was taken got a number.")


class RemovedAnswer(BaseModel):
    """Sent once the removal is on the disk."""

    removed: int
    size: int


class SampleAnswer(BaseModel):
    """Something to search with: an ``id`` of the index, or a ``picture`` to fetch and upload."""

    label: Any
    id: int | str | None
    picture: str | None


class InfoAnswer(BaseModel):
    """What is served."""

    title: str
    model: str
    n_bits: int
    size: int
    ids: str = Field(description="integer or string")
    takes: str
    n_features: int | None
    pictures: bool
    writable: bool
    duplicates: bool = Field(description="Whether /duplicates finds copies of pictures.")
    close_distance: float = Field(description="Of all pairs of items, one in twenty is at this distance or nearer.")
    max_k: int
    max_body: int = Field(description="Bytes of a request, at most.")
    version: str


class Problem(BaseModel):
    """Any answer that is not 200."""

    error: str


@dataclass(frozen=True)
class Bodies:
    """The models of one app: the same with the numbers of its collection in them."""

    search: Any
    encode: Any
    items: Any
    picture: Any
    picture_search: Any
    k: Any

    @classmethod
    def of(cls, collection: Collection, limits: Limits) -> Self:
        """Rows of the collection's length, k and radius within what is allowed."""
        d, bits = collection.n_features, collection.n_bits
        k = _whole(1, limits.max_k, f"k must be from 1 to {limits.max_k}")
        radius = _whole(0, bits, f"radius must be from 0 to the {bits} bits of a code")
        number = {"type": "number", "minimum": -FLOAT32, "maximum": FLOAT32}
        about = {"items": number, "minItems": d or 0, "maxItems": d or 0}
        row = Annotated[list[float], Field(json_schema_extra=about), AfterValidator(_row_of(d))]
        rows = Annotated[list[row], Field(min_length=1)]
        extent = {"k": (k | None, None), "radius": (radius | None, None)}
        return cls(
            search=_narrowed(SearchBody, vector=(row | None, None), code=(_code_of(bits) | None, None), **extent),
            encode=_narrowed(EncodeBody, vectors=(rows, ...)),
            items=_narrowed(ItemsBody, vectors=(rows, ...)),
            picture=PictureForm,
            picture_search=_narrowed(PictureSearchForm, **extent),
            k=k,
        )


def _narrowed(model: type[BaseModel], **fields: Any) -> type[BaseModel]:
    """The model with some fields of a narrower type, under its own name."""
    return create_model(model.__name__, __base__=model, __doc__=model.__doc__, **fields)


def _whole(low: int, high: int, says: str) -> Any:
    def check(value: int) -> int:
        if not low <= value <= high:
            raise InputError(says)
        return value

    return Annotated[int, Field(json_schema_extra={"minimum": low, "maximum": high}), AfterValidator(check)]


def _code_of(bits: int) -> Any:
    """A code of that many bits in hex: whole bytes, and no bit beyond the last."""
    digits, spare = 2 * n_bytes(bits), -bits % 8

    def check(code: str) -> str:
        if not re.fullmatch(f"[0-9a-f]{{{digits}}}", code) or int(code[-2:], 16) % (1 << spare):
            raise InputError(f"code must be the {digits} hexadecimal digits of {bits} bits")
        return code

    pattern = f"^[0-9a-f]{{{digits}}}$"
    return Annotated[str, Field(json_schema_extra={"pattern": pattern}), AfterValidator(check)]


def _row_of(d: int | None) -> Callable[[list[float]], list[float]]:
    def check(row: list[float]) -> list[float]:
        if d is None:
            raise InputError("this model takes pictures, not vectors: upload one as multipart/form-data")
        if len(row) != d:
            raise InputError(f"a vector must have {d} numbers, got {len(row)}")
        if max(map(abs, row)) > FLOAT32:
            raise InputError("a vector holds a number beyond what float32 can hold")
        return row

    return check


def explain(errors: Any) -> str:
    """The first thing that is wrong with a request, in one line."""
    first = errors[0]
    reason = first.get("ctx", {}).get("error", "")
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    if isinstance(reason, ValueError):  # one of the sentences above: it names what is wrong itself
        return f"{reason}{more}"
    where = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
    what = f"{first['msg']}: {reason}" if reason else first["msg"]
    return f"{where}: {what}{more}" if where else f"{what}{more}"
