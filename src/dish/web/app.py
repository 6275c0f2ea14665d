"""The app of a generation: routes for search, encoding, health, metrics and the page.

``item_routes`` has those of items, ``admin_routes`` /info and /admin/reload.
"""

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from numpy.typing import NDArray
from starlette.exceptions import HTTPException

from dish import __version__
from dish.codes import n_bytes
from dish.errors import ShardError
from dish.index.snapshot import Snapshot
from dish.web import batches, schemas
from dish.web.admin_routes import add_admin_routes
from dish.web.batches import BatchQueue, StageTimes, json_size, search_batch, to_json
from dish.web.collection import Codes, Collection, to_hex
from dish.web.generations import EscapeErrors, ServedGeneration, Service
from dish.web.item_routes import add_content_routes, add_item_routes, add_removal_routes
from dish.web.limits import Limits
from dish.web.prometheus_metrics import ServerMetrics
from dish.web.rescoring import encode_picture, range_of
from dish.web.routing import (
    CORES,
    FORM,
    RequestRoute,
    WorkerThreads,
    check_answer,
    check_rows,
    content_type,
    describe_body,
    error_response,
    json_response,
    read_form,
    read_json,
    require_type,
    reserve,
    validated,
)
from dish.web.schemas import DEFAULT_K, CodeFilters, ErrorResponse, ImageForm, RequestModels

STATIC = Path(__file__).parent / "static"
MEDIA_TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
MEDIA_TYPES |= {".js": "text/javascript; charset=utf-8"}
BINARY = "application/octet-stream"
ERROR_CODES = (400, 401, 403, 408, 413, 415, 422, 503)


def create_app(
    collection: Collection, limits: Limits | None = None, *, alias: str | None = None, number: int = 1
) -> Service:
    """Return the ASGI app that serves a collection, as the generation of this number."""
    return Service(ServedGeneration(collection, number, alias), limits or Limits(), app_of)


def app_of(service: Service, generation: ServedGeneration) -> FastAPI:
    """Return the app of a generation."""
    collection, limits, threads = generation.collection, service.limits, service.threads
    app = FastAPI(
        title="dish",
        version=__version__,
        description="Search by binary codes.",
        docs_url=None,  # FastAPI's own page loads scripts from another site
        redoc_url=None,
        responses={code: {"model": ErrorResponse} for code in ERROR_CODES},
    )
    app.router.route_class = RequestRoute
    app.add_middleware(EscapeErrors)
    _add_search_routes(app, collection, limits, threads)
    _add_encode_routes(app, collection, limits, threads)
    _add_code_search_route(app, collection, limits, threads)
    add_item_routes(app, collection, limits, threads, service.metrics)
    add_removal_routes(app, collection, limits, threads)
    add_content_routes(app, collection, limits, threads)
    add_admin_routes(app, service, generation)
    _add_status_routes(app, collection, service.metrics)
    _add_error_handlers(app)
    _add_page_routes(app)
    return app


# --- search and encoding ---


def _add_search_routes(app: FastAPI, collection: Collection, limits: Limits, threads: WorkerThreads) -> None:
    models = RequestModels.for_collection(collection, limits)
    searches: BatchQueue[batches.Query, bytes] = BatchQueue(
        partial(search_batch, collection, limits), CORES, threads.searches
    )
    not_found: dict[int | str, dict[str, Any]] = {404: {"model": ErrorResponse}}

    @app.post(
        "/search",
        response_model=schemas.SearchResponse,
        responses=not_found,
        openapi_extra=describe_body(json=models.search, form=models.image_search),
    )
    async def search(request: Request) -> Response:
        """Find the items nearest to a vector, an item or a code (JSON), or to an uploaded picture (form)."""
        if content_type(request) == FORM:
            return await search_image(request)
        body = await read_json(request, models.search, threads)
        code = None if body.code is None else np.frombuffer(bytes.fromhex(body.code), np.uint8)[None]
        wanted = range_of(body, collection, limits, request)
        query = batches.Query(wanted, vector=body.vector, id=body.id, code=code)
        return json_response(await searches.submit(query))

    @app.post(
        "/search/image", response_model=schemas.SearchResponse, openapi_extra=describe_body(form=models.image_search)
    )
    async def search_image(request: Request) -> Response:
        """Find the items nearest to an uploaded picture."""
        form, content = await read_form(request, models.image_search, threads)
        wanted = range_of(form, collection, limits, request)
        times = StageTimes()
        with times.stage("encode"):
            code, finer = await threads.decode(encode_picture, collection, content, limits.max_pixels, wanted.rescore)
        query = batches.Query(wanted, code=code, finer=finer, encode_ms=times.ms["encode"])
        return json_response(await searches.submit(query))


def _add_encode_routes(app: FastAPI, collection: Collection, limits: Limits, threads: WorkerThreads) -> None:
    models = RequestModels.for_collection(collection, limits)

    def encoded(function: Callable[..., Codes], *args: Any) -> bytes:
        times = StageTimes()
        with times.stage("encode"):
            codes = function(*args)
        return to_json({"codes": to_hex(codes), "n_bits": collection.n_bits, "time_ms": times.ms})

    @app.post(
        "/encode",
        response_model=schemas.EncodeResponse,
        openapi_extra=describe_body(json=models.encode, form=ImageForm),
    )
    async def encode(request: Request) -> Response:
        """Return the codes of vectors (JSON) or of an uploaded picture (form)."""
        if content_type(request) == FORM:
            return await encode_image(request)
        body = await read_json(request, models.encode, threads)
        check_answer(len(body.vectors) * (2 * n_bytes(collection.n_bits) + 3), limits)
        return json_response(await threads.run(encoded, collection.encode, body.vectors))

    @app.post("/encode/image", response_model=schemas.EncodeResponse, openapi_extra=describe_body(form=ImageForm))
    async def encode_image(request: Request) -> Response:
        """Return the code of an uploaded picture."""
        _, content = await read_form(request, ImageForm, threads)
        return json_response(await threads.decode(encoded, collection.encode_picture, content, limits.max_pixels))


def _add_code_search_route(app: FastAPI, collection: Collection, limits: Limits, threads: WorkerThreads) -> None:
    """Add the route for many queries at once: packed codes in, NumPy arrays out."""
    models = RequestModels.for_collection(collection, limits)
    k_type = models.k
    binary = {"content": {BINARY: {"schema": {"type": "string", "format": "binary"}}}}
    width = n_bytes(collection.n_bits)

    def search(snapshot: Snapshot, codes: bytes, k: int, filters: CodeFilters) -> bytes:
        queries = np.frombuffer(codes, np.uint8).reshape(-1, width)
        try:
            D, ids = snapshot.search(queries, k, filters.ids, labels=filters.labels)
        except ValueError as error:
            raise HTTPException(422, str(error)) from None
        file = io.BytesIO()
        arrays: dict[str, Any] = _named(ids, limits) if ids.dtype == object else {"ids": ids}
        np.savez(file, distances=D, **arrays)
        return file.getvalue()

    @app.post("/search/codes", responses={200: binary}, openapi_extra={"requestBody": binary})
    async def search_codes(
        request: Request,
        k: Annotated[k_type, Query()] = DEFAULT_K,  # type: ignore[valid-type]
        ids: Annotated[str | None, Query()] = None,
        labels: Annotated[str | None, Query()] = None,
    ) -> Response:
        """Find the k nearest items of many packed codes, among those with these ids or labels (JSON lists), if given.

        The response is an .npz file of distances and ids (n, k). If ids are strings, the ids in it are places in
        ``names``, a JSON list.
        """
        require_type(request, BINARY)
        filters = validated(models.code_filters.model_validate, {"ids": ids, "labels": labels})
        body = await request.body()
        n = len(body) // width
        if not body or len(body) % width:
            raise HTTPException(422, f"the body must consist of codes of {width} bytes, got {len(body):,} bytes")
        check_rows(n, limits)
        if n * k > limits.max_hits:
            raise HTTPException(413, f"at most {limits.max_hits:,} hits per request: send fewer codes or a smaller k")
        snapshot = collection.index.snapshot()
        results = 2 * 12 * n * k  # the arrays, and the file made from them
        reserve(request, results + snapshot.working_bytes(n, k))
        return Response(await threads.run(search, snapshot, body, k, filters), media_type=BINARY)


def _named(ids: NDArray[Any], limits: Limits) -> dict[str, NDArray[Any]]:
    """Return string ids (n, k) as places in a list of names in JSON.

    An array of strings would give every hit the length of the longest id, and drop zeros at the end of an id.
    """
    places: dict[str, int] = {}
    rows = np.empty(ids.shape, np.int64)
    for i, row in enumerate(ids):
        rows[i] = [places.setdefault(id, len(places)) for id in row]
    check_answer(12 * ids.size + sum(map(json_size, places)), limits)
    return {"ids": rows, "names": np.frombuffer(to_json(list(places)), np.uint8)}


# --- health and metrics ---


def _add_status_routes(app: FastAPI, collection: Collection, metrics: ServerMetrics) -> None:
    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Return whether the server answers."""
        return {"status": "ok", "size": len(collection)}

    @app.get("/metrics", responses={200: {"content": {"text/plain": {}}}})
    async def prometheus() -> Response:
        """Return counters in the Prometheus text format."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


# --- errors and the page ---


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(HTTPException)
    async def http_error(_: Request, error: HTTPException) -> Response:
        return error_response(error)

    @app.exception_handler(ShardError)
    async def shard_is_missing(_: Request, error: ShardError) -> Response:
        return error_response(HTTPException(503, str(error), {"retry-after": "1"}))

    @app.exception_handler(RequestValidationError)
    async def invalid_parameters(_: Request, error: RequestValidationError) -> Response:
        return error_response(HTTPException(422, schemas.describe_errors(error.errors())))


def _add_page_routes(app: FastAPI) -> None:
    """Add the page. Its files are read once, so that no path from a client is ever opened."""
    files = {
        file.name: (file.read_bytes(), MEDIA_TYPES[file.suffix])
        for file in STATIC.iterdir()
        if file.suffix in MEDIA_TYPES
    }

    def send(name: str) -> Response:
        if name not in files:
            raise HTTPException(404, "no such file")
        content, media_type = files[name]
        return Response(content, media_type=media_type, headers={"cache-control": "no-cache"})

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return send("index.html")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return send("docs.html")

    @app.get("/static/{name}", include_in_schema=False)
    async def static(name: str) -> Response:
        return send(name)
