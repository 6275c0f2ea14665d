"""The routes: search, encode, items, pictures, health, metrics, and the page."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import anyio
import numpy as np
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException

from dish import __version__
from dish.web.collection import Codes, Collection, Stopwatch
from dish.web.errors import Refused
from dish.web.guard import Guard, Limits
from dish.web.meters import Meters

STATIC = Path(__file__).parent / "static"
TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
TYPES |= {".js": "text/javascript; charset=utf-8"}
DEFAULT_K = 10
SAMPLES = 100  # at most, at a time

T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)

Whole64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
AnyId = Whole64 | Annotated[str, Field(min_length=1, max_length=500)]
AnyLabel = Whole64 | Annotated[str, Field(max_length=500)]


class Strict(BaseModel):
    """JSON as it is declared: no unknown fields, no NaN, no numbers in quotes."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class SearchBody(Strict):
    """One query: a vector or the id of an item; the k nearest or all within a radius."""

    vector: list[float] | None = Field(None, description="As many numbers as the model has features.")
    id: AnyId | None = Field(None, description="An item of the index.")
    k: int | None = Field(None, ge=1, description=f"How many of the nearest ({DEFAULT_K} if no radius is given).")
    radius: int | None = Field(None, ge=0, description="All at this Hamming distance or nearer.")


class EncodeBody(Strict):
    """Rows to encode."""

    vectors: list[list[float]] = Field(min_length=1)


class ItemsBody(Strict):
    """Items to add, or to replace where their ids are known."""

    ids: list[AnyId] = Field(min_length=1)
    vectors: list[list[float]] = Field(min_length=1)
    labels: list[AnyLabel] | None = None


class SearchAnswer(BaseModel):
    """The hits, nearest first, as columns."""

    ids: list[int | str]
    distances: list[int]
    labels: list[Any]
    codes: list[str] = Field(description="Packed codes of the hits, hex.")
    found: int = Field(description="Hits there are; more than are listed if the limit cut them off.")
    code: str = Field(description="The query's packed code, hex.")
    n_bits: int
    time_ms: dict[str, float]


class EncodeAnswer(BaseModel):
    """Packed codes, hex."""

    codes: list[str]
    n_bits: int
    time_ms: dict[str, float]


class ItemsAnswer(BaseModel):
    """Sent once the items are on the disk."""

    saved: int
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
    max_k: int
    version: str


class Problem(BaseModel):
    """Any answer that is not 200."""

    error: str


def create_app(collection: Collection, limits: Limits | None = None) -> FastAPI:
    """The service over one collection."""
    limits = limits or Limits()
    meters = Meters()
    bodies = Bodies(collection, limits)
    limiter = anyio.CapacityLimiter(max(2, os.cpu_count() or 2))

    async def in_thread(function: Callable[..., T], *args: Any) -> T:
        """Heavy work, away from the event loop: /health answers meanwhile."""
        return await anyio.to_thread.run_sync(partial(function, *args), limiter=limiter)

    app = FastAPI(
        title="dish",
        version=__version__,
        description="Search by binary codes.",
        docs_url=None,  # FastAPI's page loads its parts from elsewhere; /docs below does not
        redoc_url=None,
        responses={code: {"model": Problem} for code in (400, 401, 403, 408, 413, 422, 503)},
    )
    app.add_middleware(Guard, limits=limits, meters=meters)
    _add_error_handlers(app)
    _add_page(app)

    @app.post("/search", response_model=SearchAnswer, openapi_extra=bodies.search(), responses=_NO_ITEM)
    async def search(request: Request) -> Response:
        """Nearest items of a vector, of an item, or of an uploaded picture."""
        body = await _read_body(request)
        return JSONResponse(await in_thread(_search, collection, limits, body))

    @app.post("/encode", response_model=EncodeAnswer, openapi_extra=bodies.encode(), responses=_NO_KIND)
    async def encode(request: Request) -> Response:
        """Codes of vectors, or of an uploaded picture."""
        body = await _read_body(request)
        return JSONResponse(await in_thread(_encode, collection, limits, body))

    @app.post("/items", response_model=ItemsAnswer, openapi_extra=bodies.items(), responses=_NO_KIND)
    async def items(request: Request) -> Response:
        """Add or replace items; answered when they are safe on the disk. Needs --writable."""
        body = await _read_body(request)
        return JSONResponse(await in_thread(_save_items, collection, limits, body))

    @app.get("/samples", response_model=list[SampleAnswer])
    async def samples(n: Annotated[int, Query(ge=1, le=SAMPLES)] = 24) -> Response:
        """A few things to search with, drawn at random."""
        drawn = await in_thread(collection.draw, n)
        return JSONResponse([vars(sample) for sample in drawn])

    @app.get("/images/{key:path}", responses={200: {"content": {"image/*": {}}}, 404: {"model": Problem}})
    async def image(key: str) -> Response:
        """The picture of an item."""
        found = None if collection.pictures is None else await in_thread(collection.pictures.read, key)
        if found is None:
            raise Refused(404, "no picture has that id")
        content, kind = found
        return Response(content, media_type=kind, headers={"cache-control": "private, max-age=3600"})

    @app.get("/info", response_model=InfoAnswer)
    async def info() -> Response:
        """What is served: the model, the size of the index, what it takes."""
        answer = InfoAnswer(
            title=collection.title,
            model=type(collection.hasher).__name__,
            n_bits=collection.n_bits,
            size=len(collection),
            ids=collection.kind_of_ids(),
            takes=collection.takes,
            n_features=collection.n_features,
            pictures=collection.pictures is not None,
            writable=collection.journal is not None,
            max_k=limits.max_k,
            version=__version__,
        )
        return JSONResponse(answer.model_dump())

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Whether the server answers."""
        return {"status": "ok", "size": len(collection)}

    @app.get("/metrics", responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Counters in Prometheus' text format."""
        gauges = {"dish_index_rows": ("Items in the index.", float(len(collection)))}
        if collection.journal is not None:
            gauges["dish_journal_bytes"] = ("Bytes not yet in the index file.", float(collection.journal.size))
        return Response(meters.text(gauges), media_type="text/plain; version=0.0.4; charset=utf-8")

    return app


# --- what the routes do, in a thread ---

Body = tuple[str, bytes, dict[str, str]]  # kind ("json" or "picture"), content, other fields of the form


def _search(collection: Collection, limits: Limits, body: Body) -> dict[str, Any]:
    watch = Stopwatch()
    kind, content, fields = body
    if kind == "json":
        asked = _parse(SearchBody, content)
    else:
        extent = {name: _whole(name, fields.pop(name)) for name in ("k", "radius") if name in fields}
        _check_fields(fields)
        asked = _parse(SearchBody, json.dumps(extent).encode())
    k, radius = _extent(asked, collection, limits)
    with watch.stage("encode"):
        code = _query_code(collection, limits, asked, content if kind == "picture" else None)
    with watch.stage("search"):
        hits = collection.search(code, k=k, radius=radius, limit=limits.max_k)
    about = {"code": code[0].tobytes().hex(), "n_bits": collection.n_bits, "time_ms": watch.ms}
    return vars(hits) | about


def _query_code(collection: Collection, limits: Limits, asked: SearchBody, picture: bytes | None) -> Codes:
    if picture is not None:
        return collection.encode_picture(picture, limits.max_pixels)
    if (asked.vector is None) == (asked.id is None):
        raise Refused(422, "give either vector or id")
    if asked.vector is not None:
        return collection.encode([asked.vector])
    assert asked.id is not None
    return collection.code_of(asked.id)


def _extent(asked: SearchBody, collection: Collection, limits: Limits) -> tuple[int | None, int | None]:
    """k or radius, within what is allowed."""
    if asked.k is not None and asked.radius is not None:
        raise Refused(422, "give either k or radius")
    if asked.radius is not None:
        if asked.radius > collection.n_bits:
            raise Refused(422, f"radius must be from 0 to the {collection.n_bits} bits of a code")
        return None, asked.radius
    k = DEFAULT_K if asked.k is None else asked.k
    if not 1 <= k <= limits.max_k:
        raise Refused(422, f"k must be from 1 to {limits.max_k}")
    return k, None


def _encode(collection: Collection, limits: Limits, body: Body) -> dict[str, Any]:
    watch = Stopwatch()
    kind, content, fields = body
    with watch.stage("encode"):
        if kind == "json":
            vectors = _parse(EncodeBody, content).vectors
            _check_rows(len(vectors), limits)
            codes = collection.encode(vectors)
        else:
            _check_fields(fields)
            codes = collection.encode_picture(content, limits.max_pixels)
    return {"codes": [c.tobytes().hex() for c in codes], "n_bits": collection.n_bits, "time_ms": watch.ms}


def _save_items(collection: Collection, limits: Limits, body: Body) -> dict[str, Any]:
    kind, content, _ = body
    if kind != "json":
        raise Refused(415, "items are sent as JSON")
    asked = _parse(ItemsBody, content)
    _check_rows(len(asked.ids), limits)
    n = len(asked.vectors)
    for name, values in (("ids", asked.ids), ("labels", asked.labels)):
        if values is not None and len(values) != n:
            raise Refused(422, f"{n} vectors came with {len(values)} {name}")
    if collection.journal is None:
        raise Refused(403, "this server does not take items: start it with --writable")
    size = collection.upsert(asked.ids, collection.encode(asked.vectors), asked.labels)
    return {"saved": n, "size": size}


def _check_rows(n: int, limits: Limits) -> None:
    if n > limits.max_rows:
        raise Refused(413, f"at most {limits.max_rows:,} rows are taken at a time, got {n:,}")


# --- bodies ---


async def _read_body(request: Request) -> Body:
    """JSON, or a form with one file."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        return "json", await request.body(), {}
    if kind != "multipart/form-data":
        raise Refused(415, "send application/json, or a picture as multipart/form-data")
    try:
        async with request.form(max_files=1, max_fields=4) as form:
            file = form.get("image")
            if file is None or isinstance(file, str):
                raise Refused(422, "the form needs a file in its field image")
            fields = {name: value for name, value in form.items() if isinstance(value, str)}
            return "picture", await file.read(), fields
    except (MultiPartException, HTTPException) as error:
        raise Refused(400, f"the form cannot be read: {getattr(error, 'detail', None) or error}") from None


def _parse(model: type[Model], content: bytes) -> Model:
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise Refused(422, _explain(error.errors(include_url=False, include_input=False))) from None


def _explain(errors: Any) -> str:
    """The first thing that is wrong, in one line."""
    first = errors[0]
    where = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{where}: {first['msg']}{more}" if where else f"{first['msg']}{more}"


def _whole(name: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise Refused(422, f"{name} must be a whole number, got {text[:20]!r}")
    return int(text)


def _check_fields(fields: dict[str, str]) -> None:
    if fields:
        raise Refused(422, f"unknown fields in the form: {', '.join(sorted(fields))[:100]}")


# --- the schema of bodies that are read by hand ---

_NO_KIND: dict[int | str, dict[str, Any]] = {415: {"model": Problem}}
_NO_ITEM = _NO_KIND | {404: {"model": Problem}}


FLOAT32 = float(np.finfo(np.float32).max)


class Bodies:
    """What the routes take, with the numbers of this collection in it."""

    def __init__(self, collection: Collection, limits: Limits) -> None:
        d = collection.n_features or 0
        number = {"type": "number", "minimum": -FLOAT32, "maximum": FLOAT32}
        self.row = {"type": "array", "items": number, "minItems": d, "maxItems": d}
        self.k = {"type": "integer", "minimum": 1, "maximum": limits.max_k, "default": DEFAULT_K}
        self.radius = {"type": "integer", "minimum": 0, "maximum": collection.n_bits}

    def search(self) -> dict[str, Any]:
        """A vector or an id or a picture; k or a radius."""
        schema = SearchBody.model_json_schema()
        schema["properties"] |= {"vector": self.row, "k": self.k, "radius": self.radius}
        either = {"oneOf": [{"required": ["vector"]}, {"required": ["id"]}], "not": {"required": ["k", "radius"]}}
        return _request(schema | either, _form({"k": self.k, "radius": self.radius}))

    def encode(self) -> dict[str, Any]:
        """Vectors or a picture."""
        return _request(self._with_rows(EncodeBody), _form({}))

    def items(self) -> dict[str, Any]:
        """Vectors with ids."""
        return _request(self._with_rows(ItemsBody), None)

    def _with_rows(self, model: type[BaseModel]) -> dict[str, Any]:
        schema = model.model_json_schema()
        schema["properties"]["vectors"]["items"] = self.row
        return schema


def _form(fields: dict[str, Any]) -> dict[str, Any]:
    image = {"image": {"type": "string", "format": "binary"}}
    return {"type": "object", "required": ["image"], "properties": image | fields, "additionalProperties": False}


def _request(schema: dict[str, Any], form: dict[str, Any] | None) -> dict[str, Any]:
    content = {"application/json": {"schema": schema}}
    if form is not None:
        content["multipart/form-data"] = {"schema": form}
    return {"requestBody": {"required": True, "content": content}}


# --- errors and the page ---


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(HTTPException)
    async def refuse(_: Request, error: HTTPException) -> Response:
        return JSONResponse({"error": str(error.detail)}, error.status_code, dict(error.headers or {}))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        return JSONResponse({"error": _explain(error.errors())}, 422)


def _add_page(app: FastAPI) -> None:
    """The page's files, read once: no path from a client is opened."""
    files = {file.name: (file.read_bytes(), TYPES[file.suffix]) for file in STATIC.iterdir() if file.suffix in TYPES}

    def serve(name: str) -> Response:
        if name not in files:
            raise Refused(404, "no such file")
        content, kind = files[name]
        return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return serve("index.html")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return serve("docs.html")

    @app.get("/static/{name}", include_in_schema=False)
    async def static(name: str) -> Response:
        return serve(name)
