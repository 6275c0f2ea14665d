"""The routes of those who run the server: /info says what it serves, /admin/reload switches to another collection."""

import asyncio
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from dish import __version__
from dish.web import schemas
from dish.web.generations import ServedGeneration, Service
from dish.web.limits import Limits
from dish.web.middleware import RELOAD
from dish.web.routing import json_response
from dish.web.schemas import ErrorResponse

REFUSED: dict[int | str, dict[str, Any]] = {409: {"model": ErrorResponse}}


def add_admin_routes(app: FastAPI, service: Service, generation: ServedGeneration) -> None:
    """Add the routes of a generation's app."""
    collection, limits = generation.collection, service.limits

    @app.get("/info", response_model=schemas.InfoResponse)
    async def info() -> Response:
        """Describe the service: the model, the size of the index, what it takes."""
        response = schemas.InfoResponse(
            title=collection.title,
            model=collection.kind,
            fingerprint=collection.fingerprint,
            n_bits=collection.n_bits,
            size=len(collection),
            ids=collection.id_type(),
            takes=collection.takes,
            n_features=collection.n_features,
            pictures=collection.pictures is not None,
            writable=collection.writer is not None,
            duplicates=collection.duplicates is not None,
            close_distance=collection.close_distance(),
            max_k=limits.max_k,
            max_body=limits.max_body,
            alias=generation.alias,
            generation=generation.number,
            since=generation.since,
            version=__version__,
        )
        return json_response(response.model_dump())

    @app.post(RELOAD, response_model=schemas.ReloadResponse, responses=REFUSED)
    async def reload(request: Request) -> Response:
        """Read the alias again (or the files), and switch to what it names once that is loaded and verified.

        Requests in progress are answered by the old collection. If the new one is refused, the old one stays.
        Needs the token, or a server that only this machine can reach.
        """
        if await request.body():
            raise HTTPException(422, f"{RELOAD} takes no body: the alias says what to load")
        check_allowed(limits)
        if service.reload is None:
            raise HTTPException(409, "this server cannot reload: only `dish serve` with files or an alias can")
        return json_response(await asyncio.to_thread(service.reload))


def check_allowed(limits: Limits) -> None:
    """Refuse to reload for anybody who can reach the server from another machine. The token was checked before."""
    if limits.token is None and limits.any_address:
        raise HTTPException(
            403,
            f"{RELOAD} needs a token, because other machines can reach this server: start it with --token, or send "
            "SIGHUP to the process instead",
        )
