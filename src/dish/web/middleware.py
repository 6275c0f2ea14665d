"""The middleware around every request: checks, limits, errors as JSON, metrics and the request log."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dish.web.limits import LOOPBACK, SMALL, Limits, in_words
from dish.web.prometheus_metrics import ServerMetrics
from dish.web.routing import ANSWER, error_response

PUBLIC = ("/", "/health", "/docs", "/openapi.json")  # contain no data and need no token
RELOAD = "/admin/reload"
UNLIMITED = (*PUBLIC, "/info", "/metrics", RELOAD)  # need no slot: a busy server can be inspected, and switched
ROUTE = "dish.route"  # in the scope: the path template of the route that answered
ABORT = "dish.abort"  # in the scope: cuts the connection; set by connections.py
ROUTES = (*PUBLIC, "/search", "/encode", "/items", "/samples", "/ids", "/duplicates", "/info", "/metrics", RELOAD)
PIECE = 64 << 10  # bytes of an answer that are sent at a time
RATE_BYTES = 1_000_000  # of an answer that a client has ``send_seconds`` to take
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

    The body is read here, before the request takes one of the ``concurrency`` slots, and the slot is free again when
    the answer is ready, so that clients who send or read slowly do not block others.
    """

    def __init__(self, app: ASGIApp, limits: Limits, metrics: ServerMetrics) -> None:
        self.app, self.limits, self.metrics = app, limits, metrics
        self.in_progress = 0
        self.bodies = ByteBudget(max(limits.bodies, 2 * limits.max_body))
        self.answers = ByteBudget(max(limits.answers, limits.max_answer))
        self.request_numbers, self.run_id = count(1), secrets.token_hex(4)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, count it and log it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start = time.perf_counter()
        number = f"{self.run_id}-{next(self.request_numbers)}"
        body, answer = self.bodies.share(), self.answers.share()
        scope[ANSWER] = answer
        response = ResponseSender(send, number, self.limits.send_seconds, answer, scope.get(ABORT))
        self.metrics.in_flight.inc()
        failure: dict[str, Any] = {}
        try:
            await self._handle(scope, receive, response, body)
        except HTTPException as error:
            await response.send_error(error)
        except _NoRoom:
            message = "busy: too many bytes are in memory; try again"
            await response.send_error(HTTPException(503, message, {"retry-after": "1"}))
        except _ClientGone:
            response.status = response.status or 499  # nobody is left to answer
        except Exception as error:
            log.exception("a request failed", extra={"fields": {"id": response.id, "error": repr(error)}})
            failure = {"error": type(error).__name__}
            message = f"internal error; the server's log describes it under request {response.id}"
            await response.send_error(HTTPException(500, message))
        finally:
            body.release()
            answer.release()
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

    async def _handle(self, scope: Scope, receive: Receive, send: ResponseSender, share: BudgetShare) -> None:
        self._check_headers(scope)
        self._check_host([value for name, value in scope["headers"] if name == b"host"])
        headers, path, method = dict(scope["headers"]), scope["path"], scope["method"]
        is_page = path.startswith("/static/")
        if path in PUBLIC or is_page:
            if method not in ("GET", "HEAD"):  # else a body would be read from clients without the token
                raise HTTPException(405, "only GET is allowed here", {"allow": "GET"})
        else:
            self._check_token(headers.get(b"authorization", b""))
        if method in ("POST", "DELETE"):
            self._check_origin(headers)
        if method == "POST":
            receive = _replay(await self._read_body(headers, receive, share), receive)
        if path in UNLIMITED or is_page:
            await self.app(scope, receive, send)
            return
        if self.in_progress >= self.limits.concurrency:
            raise HTTPException(503, "busy: too many requests are in progress; try again", {"retry-after": "1"})
        self.in_progress += 1
        send.when_ready = self._free_slot
        try:
            await self.app(scope, receive, send)
        finally:
            send.ready()

    def _free_slot(self) -> None:
        self.in_progress -= 1

    def _check_headers(self, scope: Scope) -> None:
        """Reject long headers. The protocol's own check misses those that arrive in one piece."""
        size = len(scope["raw_path"]) + len(scope["query_string"])
        size += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        if size > self.limits.max_headers:
            message = f"the headers of a request may have at most {self.limits.max_headers:,} bytes"
            raise HTTPException(431, message, {"connection": "close"})

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

    async def _read_body(self, headers: dict[bytes, bytes], receive: Receive, share: BudgetShare) -> bytes:
        """Return the whole body, or reject it if it is too long or too slow."""
        length = headers.get(b"content-length", b"0")
        if not length.isdigit():
            raise HTTPException(400, "Content-Length is not a number")
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                return await _collect(receive, self.limits.max_body, int(length), share)
        except TimeoutError:
            message = f"the body took longer than {self.limits.body_seconds:g} s"
            raise HTTPException(408, message, {"connection": "close"}) from None


class ByteBudget:
    """Bytes that all requests may hold together. Only the event loop uses it, so it needs no lock."""

    def __init__(self, most: int) -> None:
        self.most, self.used = most, 0

    def share(self) -> BudgetShare:
        """Return the share of one request, empty at first."""
        return BudgetShare(self)


class BudgetShare:
    """The bytes that one request holds."""

    def __init__(self, budget: ByteBudget) -> None:
        self.budget, self.size = budget, 0

    def grow_to(self, size: int) -> None:
        """Hold ``size`` bytes, or raise if all requests together would hold too many. Small sizes are free."""
        if size <= max(SMALL, self.size):
            return
        if self.budget.used - self.size + size > self.budget.most:
            raise _NoRoom
        self.budget.used += size - self.size
        self.size = size

    def release(self) -> None:
        """Hold nothing any more."""
        self.budget.used -= self.size
        self.size = 0


class ResponseSender:
    """Sends a response in pieces: adds the security headers, records the status, gives up on slow readers.

    A client has ``seconds`` to take each piece, and ``seconds`` per MB to take the whole answer. A slower one is cut
    off by ``abort``, because closing the connection would wait until the client has read the rest.
    """

    def __init__(
        self, send: Send, id: str, seconds: float, share: BudgetShare, abort: Callable[[], None] | None
    ) -> None:
        self.send, self.id, self.seconds, self.share, self.abort = send, id, seconds, share, abort
        self.status = 0
        self.when_ready: Callable[[], None] | None = None
        self._start: Message | None = None  # sent with the first piece of the body
        self._deadline = 0.0

    def ready(self) -> None:
        """Call ``when_ready``, once: the answer exists, and only has to be sent."""
        done, self.when_ready = self.when_ready, None
        if done is not None:
            done()

    async def __call__(self, message: Message) -> None:
        """Send one ASGI message."""
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *SECURITY_HEADERS, (b"x-request-id", self.id.encode())]
            self._start = message
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        self.share.grow_to(len(body))
        self.ready()
        for start in range(0, max(1, len(body)), PIECE):
            piece = body[start : start + PIECE]
            last = not more and start + PIECE >= len(body)
            await self._send_piece({"type": "http.response.body", "body": piece, "more_body": not last})

    async def _send_piece(self, message: Message) -> None:
        now = asyncio.get_running_loop().time()
        self._deadline = self._deadline or now + self.seconds
        try:
            async with asyncio.timeout_at(min(now + self.seconds, self._deadline)):
                if self._start is not None:
                    self.status = self._start["status"]
                    await self.send(self._start)
                    self._start = None
                await self.send(message)
        except TimeoutError:
            if self.abort is not None:
                self.abort()
                await asyncio.sleep(0)  # the connection is lost in the next round of the event loop
            raise _ClientGone from None
        self._deadline += self.seconds * len(message["body"]) / RATE_BYTES

    async def send_error(self, error: HTTPException) -> None:
        """Send an error, unless a response has been started already."""
        if self.status:
            return
        self.share.release()
        response = error_response(error)
        with suppress(_ClientGone):
            await self({"type": "http.response.start", "status": error.status_code, "headers": response.raw_headers})
            await self({"type": "http.response.body", "body": response.body})


class _NoRoom(Exception):
    """All requests together would hold too many bytes."""


class _ClientGone(Exception):
    """The client closed the connection, or does not read the response."""


async def _collect(receive: Receive, max_body: int, announced: int, share: BudgetShare) -> bytes:
    """Return the body. Its share grows as it arrives, since a client may announce a body and not send it."""
    parts: list[bytes] = []
    size, more = 0, announced <= max_body + MAX_DISCARDED  # a longer body is not read at all
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size <= max_body:
            share.grow_to(size)
            parts.append(part)
        else:
            parts.clear()
        more = message.get("more_body", False) and size <= max_body + MAX_DISCARDED
    if max(size, announced) > max_body:
        length = "" if announced <= max_body else f" of {in_words(announced)}"
        problem = f"the body{length} is too large: the limit is {in_words(max_body)} (--max-body)"
        raise HTTPException(413, problem, {"connection": "close"})
    return b"".join(parts)


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
    return scope.get(ROUTE) or known


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
