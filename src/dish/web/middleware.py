"""The middleware around every request: checks, limits, errors as JSON, metrics and the request log."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import re
import secrets
import time
from contextlib import suppress
from itertools import count
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dish.web.limits import LOOPBACK, Limits
from dish.web.prometheus_metrics import ServerMetrics
from dish.web.routing import error_response

PUBLIC = ("/", "/health", "/docs", "/openapi.json")  # contain no data and need no token
UNLIMITED = (*PUBLIC, "/info", "/metrics")  # answered from memory, even when all slots are taken
ROUTES = (*PUBLIC, "/search", "/encode", "/items", "/samples", "/ids", "/duplicates", "/info", "/metrics")
MAX_DISCARDED = 64 << 20  # bytes of a rejected body that are read and dropped, so that the client sees the response
HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\s:/@\[\]]+))(?::[0-9]{1,5})?")
SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
)

log = logging.getLogger("dish.web")


class LimitsMiddleware:
    """Applies the limits to every request, then passes it to the app.

    The body is read here, before the request takes one of the ``concurrency`` slots, so that slow clients do not
    block others.
    """

    def __init__(self, app: ASGIApp, limits: Limits, metrics: ServerMetrics) -> None:
        self.app, self.limits, self.metrics = app, limits, metrics
        self.in_progress = 0
        self.request_numbers, self.run_id = count(1), secrets.token_hex(4)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, count it and log it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start = time.perf_counter()
        response = ResponseSender(send, f"{self.run_id}-{next(self.request_numbers)}", self.limits.send_seconds)
        self.metrics.in_flight.inc()
        failure: dict[str, Any] = {}
        try:
            await self._handle(scope, receive, response)
        except HTTPException as error:
            await response.send_error(error)
        except _ClientGone:
            response.status = response.status or 499  # nobody is left to answer
        except Exception as error:
            log.exception("a request failed", extra={"fields": {"id": response.id, "error": repr(error)}})
            failure = {"error": type(error).__name__}
            message = f"internal error; the server's log describes it under request {response.id}"
            await response.send_error(HTTPException(500, message))
        finally:
            self.metrics.in_flight.dec()
            seconds = time.perf_counter() - start
            self.metrics.count(scope["method"], _route_label(scope), response.status, seconds)
            fields = {
                "id": response.id,
                "method": scope["method"],
                "path": scope["path"][:200],
                "status": response.status,
                "ms": round(1000 * seconds, 2),
                "client": (scope.get("client") or ("",))[0],
            }
            log.info("request", extra={"fields": fields | failure})

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._check_host([value for name, value in scope["headers"] if name == b"host"])
        headers, path, method = dict(scope["headers"]), scope["path"], scope["method"]
        is_page = path.startswith("/static/")
        if path not in PUBLIC and not is_page:
            self._check_token(headers.get(b"authorization", b""))
        if method in ("POST", "DELETE"):
            self._check_origin(headers)
        if method == "POST":
            receive = _replay(await self._read_body(headers, receive), receive)
        elif path in UNLIMITED or is_page:
            await self.app(scope, receive, send)
            return
        if self.in_progress >= self.limits.concurrency:
            raise HTTPException(503, "busy: too many requests are in progress; try again", {"retry-after": "1"})
        self.in_progress += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.in_progress -= 1

    def _check_host(self, given: list[bytes]) -> None:
        """Reject unknown host names.

        Another web site can point a name of its own at this machine and so make a browser send requests here (DNS
        rebinding). It cannot do that with an IP address.
        """
        if not self.limits.hosts:
            return
        name = _host_name(given[0]) if len(given) == 1 else ""
        if name not in self.limits.hosts and not (self.limits.any_address and _is_address(name)):
            raise HTTPException(403, "this server does not answer to that host name; add it with --allowed-host")

    def _check_token(self, given: bytes) -> None:
        """Reject a request without the token. The comparison takes the same time for every wrong token."""
        if self.limits.token is None:
            return
        scheme, _, token = given.partition(b" ")
        if not hmac.compare_digest(token, self.limits.token.encode()) or scheme.lower() != b"bearer":
            raise HTTPException(401, "a bearer token is required", {"www-authenticate": "Bearer"})

    def _check_origin(self, headers: dict[bytes, bytes]) -> None:
        """Reject a write that a browser sends on behalf of another web site (CSRF).

        A proxy may have changed the Host header, so names given by --allowed-host count as this site too.
        """
        if not headers.get(b"origin"):
            return
        origin = headers[b"origin"].partition(b"://")[2].lower()
        allowed = set(self.limits.hosts) - set(LOOPBACK)
        if origin != headers.get(b"host", b"").lower() and _host_name(origin) not in allowed:
            raise HTTPException(403, "this request comes from another web site; add its name with --allowed-host")

    async def _read_body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        """Return the whole body, or reject it if it is too long or too slow."""
        length = headers.get(b"content-length", b"0")
        if not length.isdigit():
            raise HTTPException(400, "Content-Length is not a number")
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                return await _collect(receive, self.limits.max_body, int(length))
        except TimeoutError:
            message = f"the body took longer than {self.limits.body_seconds:g} s"
            raise HTTPException(408, message, {"connection": "close"}) from None


class ResponseSender:
    """Sends a response: adds the security headers, records the status, gives up on a client that does not read."""

    def __init__(self, send: Send, id: str, seconds: float) -> None:
        self.send, self.id, self.seconds = send, id, seconds
        self.status = 0
        self._start: Message | None = None  # sent with the first part of the body, under one timeout

    async def __call__(self, message: Message) -> None:
        """Send one ASGI message."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), *SECURITY_HEADERS, (b"x-request-id", self.id.encode())]
            self._start = message
            return
        try:
            async with asyncio.timeout(self.seconds):
                if self._start is not None:
                    await self.send(self._start)
                    self._start = None
                await self.send(message)
        except TimeoutError:
            raise _ClientGone from None

    async def send_error(self, error: HTTPException) -> None:
        """Send an error, unless a response has been started already."""
        if self.status:
            return
        response = error_response(error)
        with suppress(_ClientGone):
            await self({"type": "http.response.start", "status": error.status_code, "headers": response.raw_headers})
            await self({"type": "http.response.body", "body": response.body})


class _ClientGone(Exception):
    """The client closed the connection, or does not read the response."""


async def _collect(receive: Receive, max_body: int, announced: int) -> bytes:
    parts: list[bytes] = []
    size, more = 0, announced <= max_body + MAX_DISCARDED  # a longer body is not read at all
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size <= max_body:
            parts.append(part)
        else:
            parts.clear()
        more = message.get("more_body", False) and size <= max_body + MAX_DISCARDED
    if max(size, announced) > max_body:
        length = "" if announced <= max_body else f" of {_in_words(announced)}"
        problem = f"the body{length} is too large: the limit is {_in_words(max_body)} (--max-body)"
        raise HTTPException(413, problem, {"connection": "close"})
    return b"".join(parts)


def _in_words(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:.1f} MB" if n_bytes >= 1e6 else f"{n_bytes:,} bytes"


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that delivers the body that was read already, then whatever follows."""
    delivered = False

    async def receive_again() -> Message:
        nonlocal delivered
        if delivered:
            return await receive()
        delivered = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


def _route_label(scope: Scope) -> str:
    """Return the route's path template. Paths that clients make up count as "other", so that labels stay few."""
    known = scope["path"] if scope["path"] in ROUTES else "other"
    return getattr(scope.get("route"), "path", None) or known


def _host_name(header: bytes) -> str:
    """Return the name or address of a Host header without the port, "" if it is not valid."""
    found = HOST.fullmatch(header.decode("latin1").lower())
    return (found[1] or found[2]) if found else ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
