"""The routes of items: adding and removing, pictures, samples, ids, duplicates, /info."""

from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from dish import __version__
from dish.web import schemas
from dish.web.collection import Collection
from dish.web.limits import Limits
from dish.web.pictures import PictureFile
from dish.web.routing import (
    FORM,
    WorkerThreads,
    content_type,
    describe_body,
    json_response,
    read_form,
    read_json,
)
from dish.web.schemas import ErrorResponse, ImageItemForm, RequestModels
from dish.web.thumbnails import DEFAULT_SIDE, MAX_SIDE, Thumbnails

MAX_SAMPLES = 100  # per request
MAX_IDS = 50
NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {"model": ErrorResponse}}
PICTURE: dict[int | str, dict[str, Any]] = {200: {"content": {"image/*": {}}}, **NOT_FOUND}
CONFLICT: dict[int | str, dict[str, Any]] = {409: {"model": ErrorResponse}}
CACHE = {"cache-control": "private, max-age=3600"}


def check_rows(n: int, limits: Limits) -> None:
    """Reject a request with too many rows."""
    if n > limits.max_rows:
        raise HTTPException(413, f"at most {limits.max_rows:,} rows per request, got {n:,}")


def add_item_routes(app: FastAPI, collection: Collection, limits: Limits, threads: WorkerThreads) -> None:
    """Add the routes that add and remove items."""
    models = RequestModels.for_collection(collection, limits)

    def save(body: schemas.ItemsRequest) -> dict[str, int]:
        size = collection.upsert(body.ids, collection.encode(body.vectors), body.labels)
        return {"saved": len(body.ids), "size": size}

    def save_image(form: ImageItemForm, content: bytes) -> dict[str, Any]:
        id = collection.add_picture(content, form.id, form.image.filename or "", form.label, limits.max_pixels)
        return {"saved": 1, "size": len(collection), "id": id}

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
        body = await read_json(request, models.items)
        check_rows(len(body.ids), limits)
        collection.check_writable()
        return json_response(await threads.run(save, body))

    @app.post(
        "/items/image",
        response_model=schemas.ImageItemResponse,
        responses=CONFLICT,
        openapi_extra=describe_body(form=ImageItemForm),
    )
    async def add_image(request: Request) -> Response:
        """Add a picture and keep its file in the folder of images. Needs --writable."""
        form, content = await read_form(request, ImageItemForm)
        collection.check_writable()
        return json_response(await threads.run(save_image, form, content))

    @app.delete("/items/{id:path}", response_model=schemas.RemovedResponse, responses=NOT_FOUND)
    async def remove(id: str) -> Response:
        """Remove an item. The file of its picture stays. Needs --writable."""
        collection.check_writable()
        size = await threads.run(collection.remove, collection.parse_id(id))
        return json_response({"removed": 1, "size": size})


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

    @app.get("/images/{key:path}", responses=PICTURE)
    async def image(key: str) -> Response:
        """Return the picture of an item, unchanged."""
        return _picture(None if collection.pictures is None else await threads.run(collection.pictures.read, key))

    @app.get("/thumbnails/{key:path}", responses=PICTURE)
    async def thumbnail(key: str, side: Annotated[int, Query(ge=16, le=MAX_SIDE)] = DEFAULT_SIDE) -> Response:
        """Return the picture of an item, no larger than ``side``, in a format that every browser shows."""
        return _picture(None if thumbnails is None else await threads.run(thumbnails.read, key, side))

    @app.get("/info", response_model=schemas.InfoResponse)
    async def info() -> Response:
        """Describe the service: the model, the size of the index, what it takes."""
        response = schemas.InfoResponse(
            title=collection.title,
            model=collection.kind,
            n_bits=collection.n_bits,
            size=len(collection),
            ids=collection.id_type(),
            takes=collection.takes,
            n_features=collection.n_features,
            pictures=collection.pictures is not None,
            writable=collection.journal is not None,
            duplicates=collection.duplicates is not None,
            close_distance=collection.close_distance(),
            max_k=limits.max_k,
            max_body=limits.max_body,
            version=__version__,
        )
        return json_response(response.model_dump())


def _picture(found: PictureFile | None) -> Response:
    if found is None:
        raise HTTPException(404, "there is no picture with that id")
    content, media_type = found
    return Response(content, media_type=media_type, headers=CACHE)
