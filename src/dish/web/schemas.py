"""Requests and responses of the routes as pydantic models. They validate requests and describe the API."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from fastapi import UploadFile
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Json, create_model, model_validator

from dish.codes import n_bytes
from dish.errors import InputError
from dish.web.collection import Collection
from dish.web.limits import Limits

DEFAULT_K = 10
ROOM, ROOM_FOR_VALUES = 64, 10_000  # elements of a body beyond those that it needs; parsing them takes 1 ms
MAX_NAMED = 100  # characters of a client's text that are repeated in an error
MAX_FLOAT32 = float(np.finfo(np.float32).max)

Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
AnyId = Int64 | Annotated[str, Field(min_length=1, max_length=500)]
Rescore = Literal["asymmetric", "float"]
RESCORE = (
    "Find a shortlist by codes, then order it: by the inner product of the query's real outputs and the codes "
    "(asymmetric), or by the cosine of float vectors (float)."
)
SHORTLIST = "Number of items that rescore orders; 10 k, and at least 100, if it is not given."
AnyLabel = Int64 | Annotated[str, Field(max_length=500)]  # of new items
LabelFilter = list[AnyLabel | bool | Annotated[float, Field(allow_inf_nan=False)] | None]  # an index may hold these


# --- requests ---


class StrictModel(BaseModel):
    """A JSON body with exactly the declared fields and types: no NaN, no numbers in quotes."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    most: ClassVar[dict[str, int]]  # the largest numbers of lists, fields, strings and values in a body

    @classmethod
    def too_large(cls, body: bytes) -> str:
        """Say what a body has too many of, "" if nothing. Takes 10 µs, and a few milliseconds per MB."""
        for what, n in count_json(body).items():
            if n > cls.most[what]:
                return f"the body has {n:,} {what}, this request may have at most {cls.most[what]:,}"
        return ""


def count_json(body: bytes) -> dict[str, int]:
    """Count lists, fields, strings and values in JSON by its punctuation, without parsing it."""
    if b"\\" in body:
        body = body.replace(rb"\\", b"__").replace(rb"\"", b"__")  # no quote inside a string is left
    text = np.frombuffer(body, np.uint8)
    quotes = text == ord('"')
    outside = (np.cumsum(quotes, dtype=np.uint8) & 1) == 0  # only the parity matters, so uint8 may overflow
    lists, objects, fields, commas = (int(np.count_nonzero((text == ord(mark)) & outside)) for mark in "[{:,")
    return {
        "lists": lists + objects,
        "fields": fields,
        "strings": int(np.count_nonzero(quotes)) // 2,
        "values": commas + 1,
    }


def _most(rows: int, length: int) -> dict[str, int]:
    """Return the largest counts for a body with this many rows of this many numbers.

    There is room for mistakes, such as a vector of lists or one that is too long, so that the answer can say what is
    wrong.
    """
    return {
        "lists": 2 * rows + length + ROOM,
        "fields": ROOM,
        "strings": 4 * rows + length + ROOM,
        "values": 2 * rows * (length + 2) + ROOM_FOR_VALUES,
    }


class SearchRequest(StrictModel):
    """A search from a vector, an item's id or a code: the k nearest items, or all within a radius."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [{"required": ["vector"]}, {"required": ["id"]}, {"required": ["code"]}],
            "not": {"anyOf": [{"required": ["k", "radius"]}, {"required": ["radius", "rescore"]}]},
        }
    )

    vector: Any = Field(None, description="One number per feature of the model.")
    id: AnyId | None = Field(None, description="The id of an item in the index.")
    code: str | None = Field(None, description="A packed code in hexadecimal, as in responses.")
    k: int | None = Field(None, description=f"Number of nearest items ({DEFAULT_K} if no radius is given).")
    radius: int | None = Field(None, description="Largest Hamming distance of a hit.")
    ids: list[AnyId] | None = Field(None, description="Search only among these ids.")
    labels: LabelFilter | None = Field(
        None, description="Search only among items with one of these labels; null: items without a label."
    )
    rescore: Rescore | None = Field(None, description=RESCORE)
    shortlist: int | None = Field(None, description=SHORTLIST)

    @model_validator(mode="after")
    def _check_choices(self) -> Self:
        if sum(given is not None for given in (self.vector, self.id, self.code)) != 1:
            raise InputError("give exactly one of vector, id and code")
        _check_range(self)
        return self


class CodeFilters(StrictModel):
    """The filters of a search for many codes: JSON lists in the query string."""

    ids: Json[list[AnyId]] | None = None
    labels: Json[LabelFilter] | None = None


class EncodeRequest(StrictModel):
    """Vectors to encode."""

    vectors: list[Any] = Field(min_length=1)


class ItemsRequest(StrictModel):
    """Items to add. Items whose ids exist are replaced. A label that is a class of the model decides the code."""

    ids: list[AnyId] = Field(min_length=1)
    vectors: list[Any] = Field(min_length=1)
    labels: list[AnyLabel | None] | None = None

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        n = len(self.vectors)
        for name, values in (("ids", self.ids), ("labels", self.labels)):
            if values is not None and len(values) != n:
                raise InputError(f"{name} must have one entry per vector: got {len(values)} for {n} vectors")
        return self


class RemovalRequest(StrictModel):
    """Items to remove. Ids are compared with their type: "7" is not 7."""

    ids: list[AnyId] = Field(min_length=1)


class ImageForm(BaseModel):
    """A picture to encode."""

    model_config = ConfigDict(extra="forbid")

    image: UploadFile


class ImageSearchForm(ImageForm):
    """A search from a picture: the k nearest items, or all within a radius. Ids and labels are JSON lists."""

    k: int | None = None
    radius: int | None = None
    ids: Json[list[AnyId]] | None = None
    labels: Json[LabelFilter] | None = None
    rescore: Rescore | None = Field(None, description=RESCORE)
    shortlist: int | None = Field(None, description=SHORTLIST)

    @model_validator(mode="after")
    def _check_choices(self) -> Self:
        _check_range(self)
        return self


class ImageItemForm(ImageForm):
    """A picture to add. The default ``id`` is the name of its file."""

    id: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    label: Annotated[str, Field(min_length=1, max_length=500)] | None = None


def _check_range(body: SearchRequest | ImageSearchForm) -> None:
    if body.k is not None and body.radius is not None:
        raise InputError("give either k or radius, not both")
    if body.rescore is not None and body.radius is not None:
        raise InputError("rescore orders the k best items: give k instead of radius")
    if body.rescore is None and body.shortlist is not None:
        raise InputError("shortlist is the number of items that rescore orders: give rescore, too")


# --- responses ---


class SearchResponse(BaseModel):
    """The hits, nearest first, as columns."""

    ids: list[int | str]
    distances: list[int]
    labels: list[Any] = Field(description="null for an item without a label.")
    codes: list[str] = Field(description="Packed codes of the hits in hexadecimal.")
    scores: list[float] | None = Field(description="Larger is better; null without rescore.")
    found: int = Field(description="Number of hits, including those beyond the limit of the response.")
    code: str = Field(description="Packed code of the query in hexadecimal.")
    n_bits: int
    time_ms: dict[str, float] = Field(description="Milliseconds by stage. Queries processed together share them.")


class EncodeResponse(BaseModel):
    """Packed codes in hexadecimal."""

    codes: list[str]
    n_bits: int
    time_ms: dict[str, float]


class ItemsResponse(BaseModel):
    """Sent once the items are on disk."""

    saved: int
    size: int
    label_codes: int = Field(description="Number of items with the code of their label, a class of the model.")


class ImageItemResponse(ItemsResponse):
    """Sent once the picture is on disk."""

    id: int | str = Field(description="The id of the new item. A number is appended to a name that was taken.")


class RemovedResponse(BaseModel):
    """Sent once the removal is on disk."""

    removed: int
    size: int


class RemovalResponse(RemovedResponse):
    """Sent once the removals are on disk: all of them, or none."""

    not_found: list[int | str] = Field(description="Ids of the request that the index did not have.")


class SampleResponse(BaseModel):
    """An example to search with: an ``id`` of the index, or a ``picture`` to download and upload again."""

    label: Any
    id: int | str | None
    picture: str | None


class InfoResponse(BaseModel):
    """What the server serves."""

    title: str
    model: str = Field(description="Class of the model.")
    fingerprint: str | None = Field(description="Identifies the model; null if it is unknown.")
    n_bits: int
    size: int
    ids: str = Field(description="integer or string")
    takes: str
    n_features: int | None
    pictures: bool
    writable: bool
    duplicates: bool = Field(description="Whether /duplicates finds copies of pictures.")
    close_distance: float = Field(description="5 % of all pairs of items are at this distance or closer.")
    max_k: int
    max_body: int = Field(description="Largest request in bytes.")
    alias: str | None = Field(description="Name of the alias file that is served.")
    generation: int = Field(description="1 at the start; each switch to another collection adds 1.")
    since: str = Field(description="When this generation was switched to, UTC.")
    version: str


class ReloadResponse(BaseModel):
    """The collection that is served now."""

    switched: bool = Field(description="False for a writable index that is served already.")
    alias: str | None
    generation: int
    fingerprint: str | None
    n_bits: int
    size: int


class ErrorResponse(BaseModel):
    """Every response other than 200."""

    error: str


# --- request models of one collection ---


@dataclass(frozen=True)
class RequestModels:
    """The request models of one app, with the limits of its collection."""

    search: type[SearchRequest]
    encode: type[EncodeRequest]
    items: type[ItemsRequest]
    removal: type[RemovalRequest]
    image_search: type[ImageSearchForm]
    code_filters: type[CodeFilters]
    k: Any

    @classmethod
    def for_collection(cls, collection: Collection, limits: Limits) -> RequestModels:
        """Restrict vectors to the collection's number of features, and k and radius to their limits."""
        return _request_models(collection.n_features, collection.n_bits, limits)


@lru_cache(maxsize=8)  # FastAPI and pydantic keep models in caches: new ones for each reload would add up
def _request_models(d: int | None, bits: int, limits: Limits) -> RequestModels:
    """Return the request models for vectors of d numbers and codes of this many bits."""
    k = _int_between(1, limits.max_k, f"k must be between 1 and {limits.max_k}")
    radius = _int_between(0, bits, f"radius must be between 0 and {bits}, the number of bits of a code")
    number = {"type": "number", "minimum": -MAX_FLOAT32, "maximum": MAX_FLOAT32}
    schema = {"items": number, "minItems": d or 0, "maxItems": d or 0}
    row = Annotated[list[float], Field(fail_fast=True, json_schema_extra=schema), AfterValidator(_row_check(d))]
    most = limits.max_rows
    rows = Annotated[list[row], Field(fail_fast=True, min_length=1, max_length=most)]
    ids = Annotated[list[AnyId], Field(fail_fast=True, min_length=1, max_length=most)]
    labels = Annotated[list[AnyLabel | None], Field(fail_fast=True, max_length=most)]
    some_labels = Annotated[LabelFilter, Field(fail_fast=True, max_length=most)]
    some_ids = Annotated[list[AnyId], Field(fail_fast=True, max_length=most)]
    range_ = {"k": (k | None, None), "radius": (radius | None, None)}
    search_most = _most(1, d or 0)
    search_most |= {what: search_most[what] + 2 * most for what in ("strings", "values")}  # ids and labels
    return RequestModels(
        search=_narrow(
            SearchRequest,
            search_most,
            vector=(row | None, None),
            code=(_hex_code(bits) | None, None),
            ids=(some_ids | None, None),
            labels=(some_labels | None, None),
            **range_,
        ),
        encode=_narrow(EncodeRequest, _most(most, d or 0), vectors=(rows, ...)),
        items=_narrow(
            ItemsRequest, _most(most, d or 0), ids=(ids, ...), vectors=(rows, ...), labels=(labels | None, None)
        ),
        removal=_narrow(RemovalRequest, _most(most, 0), ids=(ids, ...)),
        image_search=_narrow(ImageSearchForm, **range_),
        code_filters=_narrow(CodeFilters, ids=(Json[some_ids] | None, None), labels=(Json[some_labels] | None, None)),
        k=k,
    )


def _narrow(model: Any, most: dict[str, int] | None = None, /, **fields: Any) -> Any:
    """Return the model with narrower types for some fields, and the largest counts for its body."""
    narrow = create_model(model.__name__, __base__=model, __doc__=model.__doc__, **fields)
    narrow.most = most
    return narrow


def _int_between(low: int, high: int, message: str) -> Any:
    def check(value: int) -> int:
        if not low <= value <= high:
            raise InputError(message)
        return value

    return Annotated[int, Field(json_schema_extra={"minimum": low, "maximum": high}), AfterValidator(check)]


def _hex_code(bits: int) -> Any:
    """Return the type of a code in hexadecimal. The padding bits of the last byte must be zero."""
    digits, padding = 2 * n_bytes(bits), -bits % 8

    def check(code: str) -> str:
        if not re.fullmatch(f"[0-9a-f]{{{digits}}}", code) or int(code[-2:], 16) % (1 << padding):
            raise InputError(f"code must have {digits} lower-case hexadecimal digits for its {bits} bits")
        return code

    pattern = f"^[0-9a-f]{{{digits}}}$"
    return Annotated[str, Field(json_schema_extra={"pattern": pattern}), AfterValidator(check)]


def _row_check(d: int | None) -> Callable[[list[float]], NDArray[np.float32]]:
    def check(row: list[float]) -> NDArray[np.float32]:
        if d is None:
            raise InputError("this model takes pictures, not vectors: upload one as multipart/form-data")
        if len(row) != d:
            raise InputError(f"a vector must have {d} numbers, got {len(row)}")
        values = np.array(row)
        if np.abs(values).max() > MAX_FLOAT32:
            raise InputError("a vector has a number that float32 cannot hold")
        return values.astype(np.float32)  # an eighth of the list's memory

    return check


def describe_errors(errors: Any, fields: Iterable[str] = ()) -> str:
    """Return the first validation error in one line, and the number of others. ``fields`` are those of the body."""
    first = errors[0]
    if first["type"] == "too_long":
        return f"{first['loc'][0]}: at most {first['ctx']['max_length']:,} rows per request"
    reason = first.get("ctx", {}).get("error", "")
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    if isinstance(reason, ValueError):  # raised by a validator above: its message is complete
        return f"{reason}{more}"
    where = ".".join(_cut(str(part)) for part in first["loc"] if part not in ("body", "query", "path"))
    what = f"{first['msg']}: {reason}" if reason else first["msg"]
    if first["type"] == "extra_forbidden":
        what = "unknown field" + (f"; this request takes {', '.join(fields)}" if len(first["loc"]) == 1 else "")
    return f"{where}: {what}{more}" if where else f"{what}{more}"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_NAMED else f"{text[:MAX_NAMED]}…"
