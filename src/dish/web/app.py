"""The routes: search, encode, health, metrics, and the page; those of the items are in ``items``."""

import io
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import orjson
from fastapi import Body, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from dish import __version__
from dish.codes import n_bytes
from dish.web import schemas
from dish.web.batches import Batches, Stages, search_all
from dish.web.batches import Query as SearchQuery
from dish.web.collection import Codes, Collection, Extent, hexes
from dish.web.errors import Refused
from dish.web.item_routes import add_content, add_items, check_rows
from dish.web.middleware import Direct, Guard, Limits
from dish.web.prometheus_metrics import Meters
from dish.web.routing import CORES, FORM, ONLY_JSON, JsonRoute, PictureRoute, Threads, json_answer, only
from dish.web.schemas import DEFAULT_K, Bodies, Problem

STATIC = Path(__file__).parent / "static"
TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
TYPES |= {".js": "text/javascript; charset=utf-8"}
MAX_HITS = 1_000_000  # of one request for many
BINARY = "application/octet-stream"


def create_app(collection: Collection, limits: Limits | None = None) -> FastAPI:
    """The service over one collection."""
    limits = limits or Limits()
    meters = Meters()
    app = FastAPI(
        title="dish",
        version=__version__,
        description="Search by binary codes.",
        docs_url=None,  # FastAPI's page loads its parts from elsewhere; /docs below does not
        redoc_url=None,
        responses={code: {"model": Problem} for code in (400, 401, 403, 408, 413, 415, 422, 429, 503)},
    )
    app.router.route_class = JsonRoute
    direct: dict[str, Direct] = {}
    app.add_middleware(Guard, limits=limits, meters=meters, direct=direct)
    threads = Threads()
    direct["/search"] = _add_search(app, collection, limits, threads)
    _add_search_by_codes(app, collection, limits, threads)
    add_items(app, collection, limits, threads)
    add_content(app, collection, limits, threads)
    _add_state(app, collection, meters)
    _add_error_handlers(app)
    _add_page(app)
    return app


# --- searching and encoding ---


def _add_search(app: FastAPI, collection: Collection, limits: Limits, threads: Threads) -> Direct:
    """The routes; also the shortest way to a search by JSON."""
    models = Bodies.of(collection, limits)
    searches: Batches[SearchQuery, bytes] = Batches(partial(search_all, collection, limits.max_k), CORES)
    missing: dict[int | str, dict[str, Any]] = {404: {"model": Problem}}

    @app.post("/search", response_model=schemas.SearchAnswer, responses=missing, dependencies=[ONLY_JSON])
    async def search(body: Annotated[models.search, Body()]) -> Response:  # type: ignore[name-defined]
        """Nearest items of a vector, an item or a code; of a picture, where a form is sent instead of JSON."""
        return json_answer(await searches.ask(_query(body)))

    @app.post("/search/image", response_model=schemas.SearchAnswer)
    async def search_picture(form: Annotated[models.picture_search, FORM]) -> Response:  # type: ignore[name-defined]
        """Nearest items of an uploaded picture."""
        code, stages = await _encode_upload(collection, limits, threads, form)
        return json_answer(await searches.ask(SearchQuery(_extent(form), code=code, encode_ms=stages.ms["encode"])))

    @app.post("/encode/image", response_model=schemas.EncodeAnswer)
    async def encode_picture(form: Annotated[models.picture, FORM]) -> Response:  # type: ignore[name-defined]
        """The code of an uploaded picture."""
        return _encoded(collection, *await _encode_upload(collection, limits, threads, form))

    @app.post("/encode", response_model=schemas.EncodeAnswer, dependencies=[ONLY_JSON])
    async def encode(body: Annotated[models.encode, Body()]) -> Response:  # type: ignore[name-defined]
        """Codes of vectors; of a picture, where a form is sent instead of JSON."""
        check_rows(len(body.vectors), limits)
        stages = Stages()
        with stages.stage("encode"):
            codes = await threads.run(collection.encode, body.vectors)
        return _encoded(collection, codes, stages)

    for path, handler in (("/search", search_picture), ("/encode", encode_picture)):
        route = PictureRoute(path, handler, methods=["POST"], include_in_schema=False)
        app.router.routes.insert(0, route)  # before the one that takes JSON

    async def search_directly(kind: bytes, content: bytes) -> bytes | None:
        if kind != b"application/json":
            return None
        try:
            body = models.search.model_validate(orjson.loads(content))
        except ValueError:
            return None  # the long way says what is wrong
        return await searches.ask(_query(body))

    return search_directly


def _query(body: Any) -> SearchQuery:
    code = None if body.code is None else np.frombuffer(bytes.fromhex(body.code), np.uint8)[None]
    return SearchQuery(_extent(body), vector=body.vector, id=body.id, code=code)


def _extent(body: Any) -> Extent:
    return Extent(DEFAULT_K if body.k is None and body.radius is None else body.k, body.radius)


async def _encode_upload(
    collection: Collection, limits: Limits, threads: Threads, form: schemas.PictureForm
) -> tuple[Codes, Stages]:
    stages = Stages()
    content = await form.image.read()
    with stages.stage("encode"):
        code = await threads.run(collection.encode_picture, content, limits.max_pixels)
    return code, stages


def _encoded(collection: Collection, codes: Codes, stages: Stages) -> Response:
    return json_answer({"codes": hexes(codes), "n_bits": collection.n_bits, "time_ms": stages.ms})


def _add_search_by_codes(app: FastAPI, collection: Collection, limits: Limits, threads: Threads) -> None:
    """Many queries at once, without JSON: packed codes in, arrays out."""
    k_type = Bodies.of(collection, limits).k
    raw = {"content": {BINARY: {"schema": {"type": "string", "format": "binary"}}}}
    width = n_bytes(collection.n_bits)

    def search(codes: bytes, k: int) -> bytes:
        now = collection.index.snapshot()
        queries = np.frombuffer(codes, np.uint8).reshape(-1, width)
        try:
            D, ids = now.search(queries, k=k)
        except ValueError as error:
            raise Refused(422, str(error)) from None
        file = io.BytesIO()
        np.savez(file, distances=D, ids=ids.astype(str) if ids.dtype == object else ids)
        return file.getvalue()

    @app.post(
        "/search/codes",
        responses={200: raw},
        openapi_extra={"requestBody": raw},
        dependencies=[only(BINARY)],
    )
    async def search_codes(
        request: Request,
        k: Annotated[k_type, Query()] = DEFAULT_K,  # type: ignore[valid-type]
    ) -> Response:
        """The k nearest of many packed codes, one after another in the body; an .npz of distances and ids (n, k)."""
        body = await request.body()
        if not body or len(body) % width:
            raise Refused(
                422, f"the body must hold codes of {width} bytes one after another, got {len(body):,} bytes"
            )
        check_rows(len(body) // width, limits)
        if len(body) // width * k > MAX_HITS:
            raise Refused(413, f"at most {MAX_HITS:,} hits are given at a time: send fewer codes or a smaller k")
        return Response(await threads.run(search, body, k), media_type=BINARY)


# --- how it is ---


def _add_state(app: FastAPI, collection: Collection, meters: Meters) -> None:
    meters.watch("dish_index_rows", "Items in the index.", lambda: float(len(collection)))
    journal = collection.journal
    if journal is not None:
        meters.watch("dish_journal_bytes", "Bytes not yet in the index file.", lambda: float(journal.size))

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Whether the server answers."""
        return {"status": "ok", "size": len(collection)}

    @app.get("/metrics", responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Counters in Prometheus' text format."""
        return Response(meters.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


# --- errors and the page ---


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(HTTPException)
    async def refuse(_: Request, error: HTTPException) -> Response:
        answer = json_answer({"error": str(error.detail)})
        answer.status_code = error.status_code
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        raise Refused(422, schemas.explain(error.errors()))


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
