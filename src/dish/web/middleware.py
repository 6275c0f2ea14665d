"""The limits around every request: host, token, size, time, number; errors as JSON; metrics and the log."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import logging
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

from dish.web.errors import Refused
from dish.web.prometheus_metrics import Meters

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Direct = Callable[[bytes, bytes], Awaitable[bytes | None]]  # kind and content of a body → JSON; None: not for me

LOOPBACK = ("127.0.0.1", "localhost", "::1")
OPEN = ("/", "/health", "/docs", "/openapi.json")  # no data in them: they need no token
WATCHING = (*OPEN, "/info", "/metrics")  # answered from memory, also when all slots are taken
ROUTES = (*OPEN, "/search", "/encode", "/items", "/samples", "/ids", "/duplicates", "/info", "/metrics")
DISCARD = 64 << 20  # bytes of a refused body that are read and thrown away, so that the client sees the answer
HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\s:/@\[\]]+))(?::[0-9]{1,5})?")
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
    """What one server takes.

    ``hosts``: the names it answers to (empty: any); ``any_address``: also to every IP address, whatever its number.
    """

    max_body: int = 4 << 20  # bytes
    max_k: int = 1000
    max_pixels: int = 16_000_000
    max_rows: int = 10_000  # per request
    concurrency: int = 32  # requests under way, other than for the page, /health, /info and /metrics
    header_seconds: float = 10.0  # for the headers of a request to arrive
    body_seconds: float = 20.0  # for a body to arrive
    send_seconds: float = 20.0  # for a part of an answer to be taken
    idle_seconds: int = 15  # between two requests of a connection
    connections: int = 512
    connections_per_address: int = 128
    wrong_tokens: int = 20  # per address and minute
    token: str | None = None
    hosts: tuple[str, ...] = ()
    any_address: bool = False


class Guard:
    """ASGI middleware. The body is read here, before a slot is taken: slow clients hold up nobody.

    ``direct``: routes by path that are answered from here. FastAPI's way to a function takes as long as a search.
    """

    def __init__(self, app: Any, limits: Limits, meters: Meters, direct: Mapping[str, Direct] | None = None) -> None:
        self.app, self.limits, self.meters, self.direct = app, limits, meters, direct or {}
        self.busy = 0
        self.tokens = None if limits.token is None else Tokens(limits.token, limits.wrong_tokens)
        self.numbers, self.run = count(1), secrets.token_hex(4)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, pass on, count, log."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start = time.perf_counter()
        answer = Answer(send, f"{self.run}-{next(self.numbers)}", self.limits.send_seconds)
        self.meters.in_flight.inc()
        problem: dict[str, Any] = {}
        try:
            await self._pass_on(scope, receive, answer)
        except Refused as refusal:
            await answer.refuse(refusal)
        except _Gone:
            answer.status = answer.status or 499  # the client left; nobody to answer
        except Exception as error:
            log.exception("a request failed", extra={"fields": {"id": answer.id, "error": repr(error)}})
            problem = {"error": type(error).__name__}
            await answer.refuse(Refused(500, f"something went wrong here; the server's log has request {answer.id}"))
        finally:
            self.meters.in_flight.dec()
            seconds = time.perf_counter() - start
            self.meters.count(scope["method"], _route(scope), answer.status, seconds)
            fields = {
                "id": answer.id,
                "method": scope["method"],
                "path": scope["path"][:200],
                "status": answer.status,
                "ms": round(1000 * seconds, 2),
                "client": _client(scope),
            }
            log.info("request", extra={"fields": fields | problem})

    async def _pass_on(self, scope: Scope, receive: Receive, send: Answer) -> None:
        self._check_host([value for name, value in scope["headers"] if name == b"host"])
        headers, path = dict(scope["headers"]), scope["path"]
        page = path.startswith("/static/")
        if self.tokens is not None and path not in OPEN and not page:
            self.tokens.check(headers.get(b"authorization", b""), network_of(_client(scope)))
        if scope["method"] in ("POST", "DELETE"):
            self._check_origin(headers)
        direct: Direct | None = None
        body = b""
        if scope["method"] == "POST":
            body, direct = await self._read(headers, receive), self.direct.get(path)
            receive = _replay(body, receive)
        elif path in WATCHING or page:
            await self.app(scope, receive, send)
            return
        if self.busy >= self.limits.concurrency:
            raise Refused(503, "busy: too many requests under way, try again", {"retry-after": "1"})
        self.busy += 1
        try:
            content = None if direct is None else await direct(headers.get(b"content-type", b""), body)
            if content is None:
                await self.app(scope, receive, send)
            else:
                await send.whole(200, {"content-type": "application/json"}, content)
        finally:
            self.busy -= 1

    def _check_host(self, given: list[bytes]) -> None:
        """A web page elsewhere can point its own name at this machine: answer to known names only.

        A name can be pointed anywhere, an address cannot: addresses are answered to where ``any_address`` says so.
        """
        if not self.limits.hosts:
            return
        found = HOST.fullmatch(given[0].decode("latin1").lower()) if len(given) == 1 else None
        name = (found[1] or found[2]) if found else ""
        if name not in self.limits.hosts and not (self.limits.any_address and _is_address(name)):
            raise Refused(403, "this server does not answer to that host name: --allowed-host adds one")

    def _check_origin(self, headers: dict[bytes, bytes]) -> None:
        """A page of another site can have its visitor's browser send a form here; the browser says where it is from.

        A proxy may have changed the host: names that were allowed by hand count as this site.
        """
        origin = headers.get(b"origin", b"").partition(b"://")[2].lower()
        found = HOST.fullmatch(origin.decode("latin1"))
        name = (found[1] or found[2]) if found else ""
        ours = origin == headers.get(b"host", b"").lower() or name in set(self.limits.hosts) - set(LOOPBACK)
        if headers.get(b"origin") and not ours:
            raise Refused(403, "this request comes from a page of another site: --allowed-host adds a name")

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


class Answer:
    """The way back: adds the headers of every answer, notes the status, gives up on a client that does not read."""

    def __init__(self, send: Send, id: str, seconds: float) -> None:
        self.send, self.id, self.seconds = send, id, seconds
        self.status = 0

    async def __call__(self, message: Message) -> None:
        """Send one message."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), *HEADERS, (b"x-request-id", self.id.encode())]
        try:
            async with asyncio.timeout(self.seconds):
                await self.send(message)
        except TimeoutError:
            raise _Gone from None

    async def refuse(self, refusal: Refused) -> None:
        """Answer with a refusal, unless an answer is under way already."""
        if self.status:
            return
        body = json.dumps({"error": refusal.message}).encode()
        with suppress(_Gone):
            await self.whole(refusal.status, {"content-type": "application/json", **refusal.headers}, body)

    async def whole(self, status: int, headers: dict[str, str], body: bytes) -> None:
        """Send an answer that is complete."""
        self.status = status
        raw = [(name.encode("latin1"), value.encode("latin1")) for name, value in headers.items()]
        raw += [(b"content-length", b"%d" % len(body)), *HEADERS, (b"x-request-id", self.id.encode())]
        try:
            async with asyncio.timeout(self.seconds):
                await self.send({"type": "http.response.start", "status": status, "headers": raw})
                await self.send({"type": "http.response.body", "body": body})
        except TimeoutError:
            raise _Gone from None


class Tokens:
    """The token, and who has guessed at it: an address with too many wrong ones waits for the next minute."""

    KNOWN = 10_000  # addresses remembered

    def __init__(self, token: str, most: int) -> None:
        self.token, self.most = token.encode(), most
        self.wrong: OrderedDict[str, tuple[int, int]] = OrderedDict()  # address → (minute, wrong ones in it)

    def check(self, given: bytes, address: str) -> None:
        """Refuse unless the header holds the token. Asking without any token is not a guess."""
        minute = int(time.monotonic() // 60)
        then, n = self.wrong.get(address, (minute, 0))
        n = n if then == minute else 0
        if n >= self.most:
            raise Refused(429, "too many wrong tokens from this address: wait a minute", {"retry-after": "60"})
        scheme, _, token = given.partition(b" ")
        if hmac.compare_digest(token, self.token) and scheme.lower() == b"bearer":  # the same time for any guess
            return
        if given:
            self.wrong[address] = (minute, n + 1)
            self.wrong.move_to_end(address)
            if len(self.wrong) > self.KNOWN:
                self.wrong.popitem(last=False)
        raise Refused(401, "a bearer token is needed", {"www-authenticate": "Bearer"})


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
        came = "" if announced <= most else f" of {_bytes(announced)}"
        said = f"the body{came} is too large: at most {_bytes(most)} are taken (--max-body)"
        raise Refused(413, said, {"connection": "close"})
    return b"".join(parts)


def _bytes(n: int) -> str:
    return f"{n / 1e6:.1f} MB" if n >= 1e6 else f"{n:,} bytes"


class _Gone(Exception):
    """The client closed the connection, or does not read its answer."""


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


def _route(scope: Scope) -> str:
    known = scope["path"] if scope["path"] in ROUTES else "other"
    return getattr(scope.get("route"), "path", None) or known


def _client(scope: Scope) -> str:
    return str((scope.get("client") or ("",))[0])


def network_of(address: str) -> str:
    """What counts as one address: IPv4 as it is, IPv6 by its first 64 bits, which one customer is given whole."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 4 or parsed.ipv4_mapped:
        return str(getattr(parsed, "ipv4_mapped", None) or parsed)
    return str(ipaddress.ip_network((parsed, 64), strict=False))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
