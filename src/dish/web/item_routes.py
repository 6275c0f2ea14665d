"""The routes of the items: adding, removing, pictures, samples, names, copies, and what is served."""

from typing import Annotated, Any

from fastapi import Body, FastAPI, Query
from fastapi.responses import Response

from dish import __version__
from dish.web import schemas
from dish.web.collection import Collection
from dish.web.errors import Refused
from dish.web.middleware import Limits
from dish.web.routing import FORM, ONLY_JSON, PictureRoute, Threads, json_answer
from dish.web.schemas import Bodies, Problem
from dish.web.thumbnails import MOST_SIDE, SIDE, Thumbnails

SAMPLES = 100  # at most, at a time
NAMES = 50
MISSING: dict[int | str, dict[str, Any]] = {404: {"model": Problem}}
PICTURE: dict[int | str, dict[str, Any]] = {200: {"content": {"image/*": {}}}, **MISSING}
KEPT = {"cache-control": "private, max-age=3600"}


def check_rows(n: int, limits: Limits) -> None:
    """Refuse more rows than one request may bring."""
    if n > limits.max_rows:
        raise Refused(413, f"at most {limits.max_rows:,} rows are taken at a time, got {n:,}")


def add_items(app: FastAPI, collection: Collection, limits: Limits, threads: Threads) -> None:
    """Adding and removing."""
    models = Bodies.of(collection, limits)

    def save(body: Any) -> dict[str, int]:
        size = collection.upsert(body.ids, collection.encode(body.vectors), body.labels)
        return {"saved": len(body.ids), "size": size}

    def save_picture(form: Any, content: bytes) -> dict[str, Any]:
        id = collection.add_picture(content, form.id, form.image.filename or "", form.label, limits.max_pixels)
        return {"saved": 1, "size": len(collection), "id": id}

    @app.post("/items", response_model=schemas.ItemsAnswer, dependencies=[ONLY_JSON])
    async def items(body: Annotated[models.items, Body()]) -> Response:  # type: ignore[name-defined]
        """Add or replace items; answered when they are safe on the disk. Needs --writable."""
        check_rows(len(body.ids), limits)
        collection.check_writable()
        return json_answer(await threads.run(save, body))

    @app.post("/items/image", response_model=schemas.PictureItemAnswer, responses={409: {"model": Problem}})
    async def add_picture(form: Annotated[schemas.PictureItemForm, FORM]) -> Response:
        """Add a picture and keep its file in the folder of images; a form sent to /items does the same."""
        collection.check_writable()
        return json_answer(await threads.run(save_picture, form, await form.image.read()))

    @app.delete("/items/{id:path}", response_model=schemas.RemovedAnswer, responses=MISSING)
    async def remove(id: str) -> Response:
        """Remove an item; its picture stays where it is. Needs --writable."""
        collection.check_writable()
        size = await threads.run(collection.remove, collection.as_id(id))
        return json_answer({"removed": 1, "size": size})

    app.router.routes.insert(0, PictureRoute("/items", add_picture, methods=["POST"], include_in_schema=False))


def add_content(app: FastAPI, collection: Collection, limits: Limits, threads: Threads) -> None:
    """What there is to see."""
    thumbnails = None if collection.pictures is None else Thumbnails(collection.pictures)

    @app.get("/samples", response_model=list[schemas.SampleAnswer])
    async def samples(n: Annotated[int, Query(ge=1, le=SAMPLES)] = 24) -> Response:
        """A few things to search with, drawn at random."""
        return json_answer([vars(sample) for sample in await threads.run(collection.draw, n)])

    @app.get("/ids", response_model=list[int | str])
    async def ids(
        like: Annotated[str, Query(min_length=1, max_length=100)], n: Annotated[int, Query(ge=1, le=NAMES)] = 8
    ) -> Response:
        """Ids that contain a text, those that begin with it first."""
        return json_answer(await threads.run(collection.ids_like, like, n))

    @app.get("/duplicates", response_model=list[list[int | str]], responses=MISSING)
    async def duplicates() -> Response:
        """Groups of pictures that are copies of each other."""
        if collection.duplicates is None:
            raise Refused(404, "copies are looked for among photos only: dish photos FOLDER")
        return json_answer(await threads.run(collection.find_duplicates))

    @app.get("/images/{key:path}", responses=PICTURE)
    async def image(key: str) -> Response:
        """The picture of an item, as it is."""
        found = None if collection.pictures is None else await threads.run(collection.pictures.read, key)
        return _picture(found)

    @app.get("/thumbnails/{key:path}", responses=PICTURE)
    async def thumbnail(key: str, side: Annotated[int, Query(ge=16, le=MOST_SIDE)] = SIDE) -> Response:
        """The picture of an item, no larger than ``side``, in a form that every browser shows."""
        found = None if thumbnails is None else await threads.run(thumbnails.read, key, side)
        return _picture(found)

    @app.get("/info", response_model=schemas.InfoAnswer)
    async def info() -> Response:
        """What is served: the model, the size of the index, what it takes."""
        answer = schemas.InfoAnswer(
            title=collection.title,
            model=collection.kind,
            n_bits=collection.n_bits,
            size=len(collection),
            ids=collection.kind_of_ids(),
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
        return json_answer(answer.model_dump())


def _picture(found: tuple[bytes, str] | None) -> Response:
    if found is None:
        raise Refused(404, "no picture has that id")
    content, kind = found
    return Response(content, media_type=kind, headers=KEPT)
