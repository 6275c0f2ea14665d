"""Shared by the routes: a thread pool, reading request bodies, JSON responses."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException

from dish.web.batches import to_json
from dish.web.forms import parse_form
from dish.web.limits import Limits, in_words
from dish.web.schemas import ImageForm, StrictModel, describe_errors

JSON, FORM = "application/json", "multipart/form-data"
ANSWER = "dish.answer"  # in the scope: the bytes of the answer, see LimitsMiddleware
INLINE = 32 << 10  # bytes of JSON that the event loop parses itself; it takes at most 3 ms
CORES = max(2, os.cpu_count() or 2)
T = TypeVar("T")
Model = TypeVar("Model", bound=StrictModel)
Form = TypeVar("Form", bound=ImageForm)


class WorkerThreads:
    """Runs slow functions outside the event loop, so that /health still answers."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(CORES, "dish")
        self.searches = ThreadPoolExecutor(CORES, "dish-search")
        self.pictures = ThreadPoolExecutor(CORES, "dish-pictures")  # decoding takes long: writes do not wait for it
        self.parser = ThreadPoolExecutor(1, "dish-json")  # one: parsing holds the GIL, for 30 ms at 4 MiB

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Return the result of ``function(*args)``."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, function, *args)

    async def decode(self, function: Callable[..., T], *args: Any) -> T:
        """Return the result of a function that decodes a picture."""
        return await asyncio.get_running_loop().run_in_executor(self.pictures, function, *args)

    async def parse(self, function: Callable[..., T], *args: Any) -> T:
        """Return the result of a function that parses a large body."""
        return await asyncio.get_running_loop().run_in_executor(self.parser, function, *args)


class TextConvertor(Convertor[str]):
    """The rest of a path, ``{name:text}``. Unlike starlette's ``path`` it may contain line feeds."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        """Return the text unchanged."""
        return value

    def to_string(self, value: str) -> str:
        """Return the text unchanged."""
        return value


register_url_convertor("text", TextConvertor())


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


def text_in_path(request: Request, start: str) -> str:
    """Return what follows ``start`` in the path, exactly as the client sent it.

    A router's pattern would drop a line feed at the end, and its decoding would replace what is not UTF-8.
    """
    return _exact_text(request.scope["raw_path"].partition(b"?")[0]).removeprefix(start)


def text_in_query(request: Request, name: str) -> str:
    """Return a parameter of the query exactly as the client sent it."""
    parts = (part.partition(b"=") for part in request.scope["query_string"].split(b"&", 16))
    values = [value for key, _, value in parts if key == name.encode()]
    if len(values) != 1:
        raise HTTPException(422, f"{name}: give it once, as in ?{name}=…")
    return _exact_text(values[0].replace(b"+", b" "))


def _exact_text(quoted: bytes) -> str:
    try:
        return unquote_to_bytes(quoted).decode()
    except UnicodeDecodeError:
        raise HTTPException(422, "an id in an address must be UTF-8 with percent signs") from None


async def read_json(request: Request, model: type[Model], threads: WorkerThreads) -> Model:
    """Read and validate a JSON body."""
    require_type(request, JSON)
    body = await request.body()
    if len(body) <= INLINE:
        return _from_json(model, body)
    return await threads.parse(_from_json, model, body)


def _from_json(model: type[Model], body: bytes) -> Model:
    """Validate a body. pydantic parses it without making a Python object of every list, which would cost seconds.

    It is measured first: lists take memory in any parser, and thousands of unknown fields take long to report.
    """
    if problem := model.too_large(body):
        raise HTTPException(413, problem)
    return validated(model.model_validate_json, body)


async def read_form(request: Request, model: type[Form], threads: WorkerThreads) -> tuple[Form, bytes]:
    """Read and validate a form; return it with the content of its picture. An empty field counts as not given."""
    require_type(request, FORM)
    body = await request.body()
    fields = await threads.parse(parse_form, request.headers["content-type"], body)
    found = validated(model.model_validate, {name: value for name, value in fields.items() if value != ""})
    return found, await found.image.read()


def validated(validate: Callable[[Any], T], content: Any) -> T:
    """Return the content as a model. Lists stop at their first error, so there are few."""
    try:
        return validate(content)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        status = 413 if errors[0]["type"] == "too_long" else 422
        fields = getattr(getattr(validate, "__self__", None), "model_fields", ())
        raise HTTPException(status, describe_errors(errors, fields)) from None


def reserve(request: Request, n_bytes: int) -> None:
    """Take memory for an answer from what all answers may take together, or let the request fail with 503."""
    request.scope[ANSWER].grow_to(n_bytes)


def check_rows(n: int, limits: Limits) -> None:
    """Reject a request with too many rows."""
    if n > limits.max_rows:
        raise HTTPException(413, f"at most {limits.max_rows:,} rows per request, got {n:,}")


def check_answer(n_bytes: int, limits: Limits) -> None:
    """Reject a request whose answer would be too large, before the answer is built."""
    if n_bytes > limits.max_answer:
        size, most = in_words(n_bytes), in_words(limits.max_answer)
        raise HTTPException(413, f"the answer would have {size}, at most {most} are allowed: ask for fewer results")


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
