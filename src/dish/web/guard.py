"""The limits around every request: host, token, size, time, number; errors as JSON; metrics and the log."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from dish.web.errors import Refused
from dish.web.meters import Meters

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
OPEN = ("/", "/health", "/docs", "/openapi.json")  # no data in them: they need no token
ROUTES = (*OPEN, "/search", "/encode", "/items", "/samples", "/info", "/metrics")
DISCARD = 64 << 20  # bytes of a refused body that are read and thrown away, so that the client sees the answer
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
)

log = logging.getLogger("dish.web")


@dataclass(frozen=True)
class Limits:
    """What one server takes. ``hosts``: the names it answers to (empty: any)."""

    max_body: int = 4 << 20  # bytes
    max_k: int = 1000
    max_pixels: int = 16_000_000
    max_rows: int = 10_000  # a request
    concurrency: int = 32  # POST requests under way
    body_seconds: float = 20.0  # for a body to arrive
    token: str | None = None
    hosts: tuple[str, ...] = ()


class Guard:
    """ASGI middleware. The body is read here, before a slot is taken: slow clients hold up nobody."""

    def __init__(self, app: Any, limits: Limits, meters: Meters) -> None:
        self.app, self.limits, self.meters = app, limits, meters
        self.busy = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, pass on, count, log."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start = time.perf_counter()
        status = 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        self.meters.in_flight += 1
        problem: dict[str, Any] = {}
        try:
            await self._pass_on(scope, receive, answer)
        except Refused as refusal:
            await _answer_json(answer, refusal)
        except _Gone:
            status = 499  # the client left; nobody to answer
        except Exception as error:
            log.exception("a request failed", extra={"fields": {"error": repr(error)}})
            problem = {"error": type(error).__name__}
            if status == 0:
                await _answer_json(answer, Refused(500, "something went wrong here; the server's log has more"))
        finally:
            self.meters.in_flight -= 1
            seconds = time.perf_counter() - start
            route = getattr(scope.get("route"), "path", None) or (
                scope["path"] if scope["path"] in ROUTES else "other"
            )
            self.meters.count(scope["method"], route, status, seconds)
            fields = {
                "method": scope["method"],
                "path": scope["path"][:200],
                "status": status,
                "ms": round(1000 * seconds, 2),
                "client": (scope.get("client") or ("",))[0],
            }
            log.info("request", extra={"fields": fields | problem})

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        self._check_host(headers)
        self._check_token(scope["path"], headers)
        if scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        body = await self._read(headers, receive)
        if self.busy >= self.limits.concurrency:
            raise Refused(503, "busy: too many requests under way, try again", {"retry-after": "1"})
        self.busy += 1
        try:
            await self.app(scope, _replay(body, receive), send)
        finally:
            self.busy -= 1

    def _check_host(self, headers: dict[bytes, bytes]) -> None:
        """A web page elsewhere can point its own name at 127.0.0.1: answer to our names only."""
        host = headers.get(b"host", b"").decode("latin1").lower()
        name = host.partition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
        if self.limits.hosts and name not in self.limits.hosts:
            raise Refused(403, "this server does not answer to that host name")

    def _check_token(self, path: str, headers: dict[bytes, bytes]) -> None:
        if self.limits.token is None or path in OPEN or path.startswith("/static/"):
            return
        given = headers.get(b"authorization", b"")
        if not hmac.compare_digest(given, b"Bearer " + self.limits.token.encode()):  # the same time for any guess
            raise Refused(401, "a bearer token is needed", {"www-authenticate": "Bearer"})

    async def _read(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        """The whole body, or a refusal."""
        length = headers.get(b"content-length", b"0")
        if not length.isdigit():
            raise Refused(400, "Content-Length is not a number")
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                return await _collect(receive, self.limits.max_body, int(length))
        except TimeoutError:
            raise Refused(
                408, f"the body took longer than {self.limits.body_seconds:g} s", {"connection": "close"}
            ) from None


async def _collect(receive: Receive, most: int, announced: int) -> bytes:
    parts: list[bytes] = []
    size, more = 0, announced <= most + DISCARD  # a body beyond that is not even read
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Gone
        part = message.get("body", b"")
        size += len(part)
        if size <= most:
            parts.append(part)
        else:
            parts.clear()
        more = message.get("more_body", False) and size <= most + DISCARD
    if max(size, announced) > most:
        raise Refused(413, f"the body is larger than {most:,} bytes", {"connection": "close"})
    return b"".join(parts)


class _Gone(Exception):
    """The client closed the connection."""


def _replay(body: bytes, receive: Receive) -> Receive:
    """A body that was read once, to be read again."""
    sent = False

    async def again() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _answer_json(send: Send, refusal: Refused) -> None:
    body = json.dumps({"error": refusal.message}).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **refusal.headers}
    raw = [(name.encode("latin1"), value.encode("latin1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
