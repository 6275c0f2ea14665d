"""The routes of items: adding and removing, pictures, samples, ids, duplicates."""

from contextlib import closing
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.responses import Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from dish.web import schemas
from dish.web.collection import Collection
from dish.web.limits import Limits
from dish.web.pictures import Picture
from dish.web.prometheus_metrics import ServerMetrics
from dish.web.routing import (
    FORM,
    WorkerThreads,
    content_type,
    describe_body,
    json_response,
    read_form,
    read_json,
    text_in_path,
    text_in_query,
)
from dish.web.schemas import ErrorResponse, ImageItemForm, RequestModels
from dish.web.thumbnails import DEFAULT_SIDE, MAX_SIDE, Thumbnails

MAX_SAMPLES = 100  # per request
MAX_IDS = 50
NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {"model": ErrorResponse}}
PICTURE: dict[int | str, dict[str, Any]] = {200: {"content": {"image/*": {}}}, **NOT_FOUND}
CONFLICT: dict[int | str, dict[str, Any]] = {409: {"model": ErrorResponse}}
ID_IN_QUERY = {"parameters": [{"name": "id", "in": "query", "required": True, "schema": {"type": "string"}}]}
CACHE = {"cache-control": "private, max-age=3600"}


def add_item_routes(
    app: FastAPI, collection: Collection, limits: Limits, threads: WorkerThreads, metrics: ServerMetrics
) -> None:
    """Add the routes that add items. ``metrics`` counts them."""
    models = RequestModels.for_collection(collection, limits)

    def save(body: schemas.ItemsRequest) -> dict[str, int]:
        size, n = collection.add_items(body.ids, body.vectors, body.labels)
        metrics.count_items(body.labels or [None] * len(body.ids), n)
        return {"saved": len(body.ids), "size": size, "label_codes": n}

    def save_image(form: ImageItemForm, content: bytes) -> dict[str, Any]:
        id, n = collection.add_picture(content, form.id, form.image.filename or "", form.label, limits.max_pixels)
        metrics.count_items([form.label], n)
        return {"saved": 1, "size": len(collection), "label_codes": n, "id": id}

    @app.post(
        "/items",
        response_model=schemas.ItemsResponse,
        responses=CONFLICT,
        openapi_extra=describe_body(json=models.items, form=ImageItemForm),
    )
    async def add(request: Request) -> Response:
        """Add or replace items (JSON), or add a picture (form). Answers when they are on disk. Needs --writable."""
        if content_type(request) == FORM:
            return await add_image(request)
        collection.check_writable()
        body = await read_json(request, models.items, threads)
        return json_response(await threads.run(save, body))

    @app.post(
        "/items/image",
        response_model=schemas.ImageItemResponse,
        responses=CONFLICT,
        openapi_extra=describe_body(form=ImageItemForm),
    )
    async def add_image(request: Request) -> Response:
        """Add a picture and keep its file in the folder of images. Needs --writable."""
        collection.check_writable()
        form, content = await read_form(request, ImageItemForm, threads)
        return json_response(await threads.decode(save_image, form, content))


def add_removal_routes(app: FastAPI, collection: Collection, limits: Limits, threads: WorkerThreads) -> None:
    """Add the routes that remove items."""
    models = RequestModels.for_collection(collection, limits)

    async def removed(id: str) -> Response:
        collection.check_writable()
        size = await threads.run(collection.remove, collection.parse_id(id))
        return json_response({"removed": 1, "size": size})

    @app.delete("/items", response_model=schemas.RemovedResponse, responses=NOT_FOUND, openapi_extra=ID_IN_QUERY)
    async def remove_by_query(request: Request) -> Response:
        """Remove an item, also one whose id cannot be part of a path, such as "..". Needs --writable."""
        return await removed(text_in_query(request, "id"))

    @app.delete("/items/{id:text}", response_model=schemas.RemovedResponse, responses=NOT_FOUND)
    async def remove(request: Request, id: str) -> Response:
        """Remove an item. The file of its picture stays. Needs --writable."""
        return await removed(text_in_path(request, "/items/"))

    def remove_all(body: schemas.RemovalRequest) -> dict[str, Any]:
        size, unknown = collection.remove_many(body.ids)
        return {"removed": len(set(body.ids)) - len(unknown), "size": size, "not_found": unknown}

    @app.post(
        "/items/delete", response_model=schemas.RemovalResponse, openapi_extra=describe_body(json=models.removal)
    )
    async def remove_many(request: Request) -> Response:
        """Remove many items in one step: after an error or a crash, all of them are there. Needs --writable.

        It is a POST, because proxies may drop the body of a DELETE.
        """
        collection.check_writable()
        body = await read_json(request, models.removal, threads)
        return json_response(await threads.run(remove_all, body))


def add_content_routes(app: FastAPI, collection: Collection, limits: Limits, threads: WorkerThreads) -> None:
    """Add the routes that show what the collection contains."""
    thumbnails = None if collection.pictures is None else Thumbnails(collection.pictures)

    @app.get("/samples", response_model=list[schemas.SampleResponse])
    async def samples(n: Annotated[int, Query(ge=1, le=MAX_SAMPLES)] = 24) -> Response:
        """Return a few random examples to search with."""
        return json_response([vars(sample) for sample in await threads.run(collection.random_samples, n)])

    @app.get("/ids", response_model=list[int | str])
    async def ids(
        like: Annotated[str, Query(min_length=1, max_length=100)], n: Annotated[int, Query(ge=1, le=MAX_IDS)] = 8
    ) -> Response:
        """Return ids that contain a text. Those that start with it come first."""
        return json_response(await threads.run(collection.ids_like, like, n))

    @app.get("/duplicates", response_model=list[list[int | str]], responses=NOT_FOUND)
    async def duplicates() -> Response:
        """Return groups of pictures that are copies of each other."""
        if collection.duplicates is None:
            raise HTTPException(404, "only `dish photos FOLDER` finds duplicates")
        return json_response(await threads.run(collection.find_duplicates))

    @app.get("/images/{key:text}", responses=PICTURE)
    async def image(request: Request, key: str) -> Response:
        """Return the picture of an item, unchanged."""
        key = text_in_path(request, "/images/")
        return _sent(None if collection.pictures is None else await threads.run(collection.pictures.find, key))

    @app.get("/thumbnails/{key:text}", responses=PICTURE)
    async def thumbnail(
        request: Request, key: str, side: Annotated[int, Query(ge=16, le=MAX_SIDE)] = DEFAULT_SIDE
    ) -> Response:
        """Return the picture of an item, no larger than ``side``, in a format that every browser shows."""
        key = text_in_path(request, "/thumbnails/")
        return _sent(None if thumbnails is None else await threads.decode(thumbnails.read, key, side))


class PictureResponse(StreamingResponse):
    """A picture. One on disk is read piece by piece, as fast as the client takes it."""

    def __init__(self, picture: Picture) -> None:
        headers = CACHE | {"content-length": str(picture.size)}
        super().__init__(picture.pieces(), media_type=picture.media_type, headers=headers)
        self.picture = picture

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, and close the file, also if the client goes away."""
        with closing(self.picture):
            await super().__call__(scope, receive, send)


def _sent(found: Picture | None) -> Response:
    if found is None:
        raise HTTPException(404, "there is no picture with that id")
    return PictureResponse(found)
