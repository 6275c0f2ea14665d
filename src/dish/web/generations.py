"""The generations of a server: one collection after another, each with an app of its own.

A request is passed to the generation that is current when its body has arrived. That generation answers it
completely, even if the server switches meanwhile, so no answer mixes two collections. Every answer names its
generation in the header ``x-dish-generation``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dish.alias import utc_now
from dish.errors import InputError
from dish.web.collection import Collection
from dish.web.drift_metrics import DriftGauges
from dish.web.limits import Limits
from dish.web.middleware import ROUTE, LimitsMiddleware
from dish.web.prometheus_metrics import ServerMetrics
from dish.web.routing import WorkerThreads

ESCAPED = "dish.escaped"  # in the scope: an error that the middleware around all generations handles

log = logging.getLogger("dish.web")


@dataclass(eq=False)
class ServedGeneration:
    """A collection, and what /info says about it."""

    collection: Collection
    number: int = 1
    alias: str | None = None  # name of the alias file
    since: str = ""  # UTC
    app: ASGIApp | None = None
    requests: int = 0  # in progress
    drained: threading.Event = field(default_factory=threading.Event)  # replaced, and all requests are answered


class Service:
    """The ASGI app of a server: limits, metrics and errors around the app of the current generation.

    ``make_app`` makes the app of a generation. ``reload`` opens the next collection and switches to it; None: the
    server always serves the first one.
    """

    def __init__(
        self, first: ServedGeneration, limits: Limits, make_app: Callable[[Service, ServedGeneration], ASGIApp]
    ) -> None:
        self.limits, self.metrics, self.threads = limits, ServerMetrics(), WorkerThreads()
        self.reload: Callable[[], dict[str, object]] | None = None
        self._make_app, self._limited = make_app, LimitsMiddleware(self._pass_on, limits, self.metrics)
        self._lock = threading.Lock()  # held while a request chooses its generation, and while that changes
        self._closed = False
        self._retiring: threading.Thread | None = None
        self._now = self.made_ready(first)
        first.since = utc_now()
        self.metrics.add_gauge("dish_index_rows", "Items in the index.", lambda: float(len(self.now.collection)))
        if first.collection.writer is not None:
            self.metrics.add_gauge("dish_journal_bytes", "Bytes not yet in the index file.", self._journal_bytes)
        self.metrics.add_gauge("dish_generation", "Number of the generation.", lambda: float(self.now.number))
        self.metrics.registry.register(DriftGauges(lambda: self.now.collection.queries))

    def _journal_bytes(self) -> float:
        writer = self.now.collection.writer
        return 0.0 if writer is None else float(writer.journal.size)

    @property
    def now(self) -> ServedGeneration:
        """The current generation."""
        return self._now

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._limited(scope, receive, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the current generation."""
        with self._lock:
            generation = self._now
            generation.requests += 1
        number = str(generation.number).encode()

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"x-dish-generation", number)]
            await send(message)

        inner = dict(scope)  # a connection keeps the scope of its last request, which must not keep the collection
        try:
            assert generation.app is not None
            await generation.app(inner, receive, send_named)
        finally:
            scope[ROUTE] = getattr(inner.get("route"), "path", None)
            with self._lock:
                generation.requests -= 1
                if generation is not self._now and not generation.requests:
                    generation.drained.set()
        if ESCAPED in inner:
            raise inner[ESCAPED]

    def made_ready(self, generation: ServedGeneration) -> ServedGeneration:
        """Make the app of a generation, which takes a while, and return the generation."""
        generation.app = self._make_app(self, generation)
        return generation

    def switch(self, new: ServedGeneration) -> None:
        """Let a new generation, which was made ready, answer all requests from now on.

        The old one answers those that it has. Then its changes are written, and its memory is released.
        """
        with self._lock:
            if self._closed:
                raise InputError("the server is stopping")
            old, self._now = self._now, new
            new.since = utc_now()
            if not old.requests:
                old.drained.set()
        fields = {"generation": new.number, "alias": new.alias, "items": len(new.collection)}
        log.info("switched", extra={"fields": fields})
        self._retiring = threading.Thread(target=_retire, args=(old,), name="dish-retire")
        self._retiring.start()

    def settle(self, seconds: float) -> bool:
        """Wait until the generation before this one is released; return whether it is."""
        if self._retiring is not None:
            self._retiring.join(seconds)
        return self._retiring is None or not self._retiring.is_alive()

    def close(self) -> None:
        """Write the changes of all generations. All requests must have been answered."""
        with self._lock:
            self._closed = True
        if self._retiring is not None:
            self._retiring.join()
        self.now.collection.close()


def _retire(old: ServedGeneration) -> None:
    """Wait until a replaced generation has answered its requests, write its changes and release its memory."""
    old.drained.wait()
    try:
        old.collection.close()
    except Exception:  # its changes are safe in its journal
        log.exception("the replaced index could not be written; its changes are in its journal")
    old.collection.release()  # at once: a run of the garbage collector would stop all requests for half a second
    old.app = None
    log.info("released", extra={"fields": {"generation": old.number}})


class EscapeErrors:
    """Middleware of a generation's app: hands errors to ``Service``, before starlette answers them as plain text."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the app; keep its error in the scope."""
        try:
            await self.app(scope, receive, send)
        except Exception as error:
            scope[ESCAPED] = error
