"""Shared by the routes: a thread pool, reading request bodies, JSON responses."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import orjson
from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from dish.web.batches import to_json
from dish.web.schemas import ImageForm, describe_errors

JSON, FORM = "application/json", "multipart/form-data"
CORES = max(2, os.cpu_count() or 2)
T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)
Form = TypeVar("Form", bound=ImageForm)


class WorkerThreads:
    """Runs slow functions outside the event loop, so that /health still answers."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(CORES, "dish")

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Return the result of ``function(*args)``."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, function, *args)


class RequestRoute(APIRoute):
    """Calls an endpoint directly if the request is its only parameter.

    Otherwise FastAPI resolves the parameters, which takes as long as a search.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the endpoint, or FastAPI's handler around it."""
        if list(inspect.signature(self.endpoint).parameters) == ["request"]:
            return self.endpoint
        return super().get_route_handler()


def content_type(request: Request) -> str:
    """Return the media type of the body without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def require_type(request: Request, expected: str) -> None:
    """Reject a body of another media type."""
    if content_type(request) != expected:
        raise HTTPException(415, f"send {expected}; a picture is sent as {FORM}")


async def read_json(request: Request, model: type[Model]) -> Model:
    """Read and validate a JSON body. orjson is fast, and rejects NaN and very deep nesting."""
    require_type(request, JSON)
    try:
        content = orjson.loads(await request.body())
    except orjson.JSONDecodeError as error:
        raise HTTPException(422, f"the body is not valid JSON: {error}") from None
    return _validated(model, content)


async def read_form(request: Request, model: type[Form]) -> tuple[Form, bytes]:
    """Read and validate a form; return it with the content of its picture. An empty field counts as not given."""
    require_type(request, FORM)
    async with request.form() as form:
        found = _validated(model, {name: value for name, value in form.items() if value != ""})
        return found, await found.image.read()


def _validated(model: type[Model], content: Any) -> Model:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise HTTPException(422, describe_errors(error.errors())) from None


def describe_body(json: type[BaseModel] | None = None, form: type[BaseModel] | None = None) -> dict[str, Any]:
    """Return the OpenAPI entry for the body of a route that takes JSON, a form, or either."""
    models = {kind: model for kind, model in ((JSON, json), (FORM, form)) if model is not None}
    content = {kind: {"schema": model.model_json_schema()} for kind, model in models.items()}
    return {"requestBody": {"required": True, "content": content}}


def json_response(content: Any) -> Response:
    """Return a JSON response. ``content`` may be JSON bytes already."""
    return Response(content if isinstance(content, bytes) else to_json(content), media_type=JSON)


def error_response(error: HTTPException) -> Response:
    """Return ``{"error": "one sentence"}`` with the status and headers of the error."""
    headers = dict(error.headers or {})
    return Response(to_json({"error": str(error.detail)}), error.status_code, headers, media_type=JSON)
