"""What the routes share: threads for heavy work, strict and fast JSON, the kinds of bodies they take."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import orjson
from fastapi import Depends, Form, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.routing import Match

from dish.web.batches import to_json
from dish.web.errors import Refused

CORES = max(2, os.cpu_count() or 2)
T = TypeVar("T")


class Threads:
    """Heavy work, away from the event loop: /health answers meanwhile."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(CORES, "dish")

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """The function's result."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, function, *args)


class JsonRequest(Request):
    """A request whose JSON is read strictly (no NaN, no bottomless nesting), and fast."""

    async def json(self) -> Any:
        """The body."""
        return orjson.loads(await self.body())


class JsonRoute(APIRoute):
    """A route whose JSON is read by ``JsonRequest``."""

    def get_route_handler(self) -> Callable[..., Any]:
        """FastAPI's handler."""
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive))

        return handle_json


class PictureRoute(APIRoute):
    """A route for forms, beside one for JSON of the same path."""

    def matches(self, scope: Any) -> tuple[Match, Any]:
        """Only what comes as a form."""
        match, child = super().matches(scope)
        kind = dict(scope.get("headers", ())).get(b"content-type", b"")
        return (match, child) if kind.lower().startswith(b"multipart/form-data") else (Match.NONE, {})


def only(*kinds: str) -> Any:
    """A dependency that refuses other kinds of bodies."""

    async def check(request: Request) -> None:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in kinds:
            raise Refused(415, f"send {' or '.join(kinds)}; a picture is sent as multipart/form-data")

    return Depends(check)


ONLY_JSON = only("application/json")
FORM = Form(media_type="multipart/form-data")


def json_answer(content: Any) -> Response:
    """An answer of JSON, or of bytes that are JSON already."""
    return Response(content if isinstance(content, bytes) else to_json(content), media_type="application/json")
