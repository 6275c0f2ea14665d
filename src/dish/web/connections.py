"""Limits on connections: how many may be open, and how long a client may take to send headers and to read answers.

uvicorn has no timeout for headers, and no timeout for a connection that never sends anything. Here every client has
``header_seconds`` to send the headers of a request, however slowly the bytes arrive. When ``connections`` are open,
the one that has been waiting longest for its client is closed to make room for a new one; if none waits for a
request, the one whose client has not taken its answer for longest, at least ``STALLED_SECONDS``. A connection whose
response is being prepared is never closed, so a client that sends its request at once is served.

uvicorn has no limit on what comes with a chunked body either. Trailers, which nobody reads, are refused; and a body
may not have more framing than content.

Closing a connection waits until the client has read everything. So a client that does not read is cut off: by the
middleware while its answer is sent, and here if the last of it is still unread after ``send_seconds``.

Granian 2.8 was tried in place of uvicorn and this module. Its only limit on connections (``backpressure``) lets new
clients wait until an old connection ends, so that a few hundred idle ones block everybody; see docs/serve.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from dish.web.limits import Limits
from dish.web.middleware import ABORT

STALLED_SECONDS = 1.0  # that a client may leave the buffers full while others find no room


class LimitedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's protocol, with a deadline for headers and a limit on open connections."""

    limits: Limits  # the class attributes are set by ``limited_protocol``
    waiting: dict[LimitedProtocol, None]  # connections whose client has to send something, longest waiting first
    stalled: dict[LimitedProtocol, float]  # connections with full buffers, and since when, longest first

    def connection_made(self, transport: Any) -> None:
        """Accept a connection, or answer 503 if there is no room for it."""
        super().connection_made(transport)
        self.app: Any = partial(_with_abort, self.app, transport.abort)
        self._unread_timer: asyncio.TimerHandle | None = None
        self._header_timer: asyncio.TimerHandle | None = None
        self._overhead = 0  # bytes of this request that are not its body: headers, then framing
        self._body_bytes = 0
        self._headers_complete = self._has_trailers = False
        if len(self.connections) > self.limits.connections and not self._make_room():
            self._reject(503, "busy: too many connections; try again")
            return
        self.waiting[self] = None
        self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection that has ended."""
        self._stop_header_timer()
        if self._unread_timer is not None:
            self._unread_timer.cancel()
        self.waiting.pop(self, None)
        self.stalled.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the data. The header timer runs until the headers are complete."""
        if self.transport.is_closing():
            return
        self._overhead += len(data)  # ``on_body`` takes its part away
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._in_request():
            self._stop_header_timer()
            if not self.cycle.more_body:
                self.waiting.pop(self, None)
        if self._has_trailers:
            self._reject(400, "trailers are not accepted")
        elif self._in_request():
            if self._overhead > 2 * self.limits.max_headers + self._body_bytes:
                self._reject(400, "the chunks of the body have more framing than content")
        elif self._overhead > self.limits.max_headers:
            self._reject(431, f"the headers of a request may have at most {self.limits.max_headers:,} bytes")
        elif self._header_timer is None:  # the first bytes of the next request on a kept-alive connection
            self._start_header_timer()

    def on_message_begin(self) -> None:
        """Expect the headers of a request."""
        self._headers_complete = False
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header. One that follows the body is dropped, and ``data_received`` refuses the request."""
        if self._headers_complete:
            self._has_trailers = True
        else:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the request."""
        self._headers_complete = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body. After the response nobody reads it, and it counts like headers."""
        if self._in_request():
            self._overhead -= len(body)
            self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the request. What else has arrived belongs to the next one, and is not counted."""
        self._overhead = self._body_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request. uvicorn's keep-alive timeout starts here."""
        self.waiting.pop(self, None)
        if not self.transport.is_closing():
            self.waiting[self] = None
        if self._unread_timer is None and self.transport.get_write_buffer_size():
            self._unread_timer = self.loop.call_later(self.limits.send_seconds, self._cut_if_unread)
        super().on_response_complete()

    def _cut_if_unread(self) -> None:
        """Cut the connection if the client has not read the end of an answer. The next one has its own deadline."""
        self._unread_timer = None
        if not self._in_request() and self.transport.get_write_buffer_size():
            self.transport.abort()

    def _in_request(self) -> bool:
        """Return whether the headers of a request are complete and its response is not."""
        return self.cycle is not None and not self.cycle.response_complete

    def pause_writing(self) -> None:
        """Note that the client does not take its answer as fast as it is sent."""
        self.stalled[self] = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        """Note that the client has taken what was in the buffers."""
        self.stalled.pop(self, None)
        super().resume_writing()

    def _make_room(self) -> bool:
        """Close the connection that has waited longest for its client; return whether there was one."""
        longest = next(iter(self.waiting), None)
        if longest is None:
            longest, since = next(iter(self.stalled.items()), (None, 0.0))
            if longest is None or self.loop.time() - since < STALLED_SECONDS:
                return False
        self.waiting.pop(longest, None)
        self.stalled.pop(longest, None)
        self.connections.discard(longest)  # counted until ``connection_lost`` otherwise
        longest.transport.abort()  # at once: a graceful close could last as long as the client likes
        return True

    def _start_header_timer(self) -> None:
        self._header_timer = self.loop.call_later(self.limits.header_seconds, self._reject_slow_headers)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _reject_slow_headers(self) -> None:
        self._header_timer = None
        if not self.transport.is_closing() and not self._in_request():
            self._reject(408, f"the headers took longer than {self.limits.header_seconds:g} s")

    def _reject(self, status: int, message: str) -> None:
        """Answer with an error and close; cut the connection if a part of another answer would come first."""
        if self.transport.get_write_buffer_size() or (self._in_request() and self.cycle.response_started):
            self.transport.abort()
            return
        body = f'{{"error": "{message}"}}'.encode()
        head = f"HTTP/1.1 {status} \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\nretry-after: 1\r\n\r\n" + body)
        self.transport.close()


async def _with_abort(app: Any, abort: Callable[[], None], scope: Any, receive: Any, send: Any) -> None:
    """Pass a request to the app, with a function that cuts its connection."""
    scope[ABORT] = abort
    await app(scope, receive, send)


def limited_protocol(limits: Limits) -> type[LimitedProtocol]:
    """Return the protocol class of one server. uvicorn creates one object of it per connection."""
    return type("ServerProtocol", (LimitedProtocol,), {"limits": limits, "waiting": {}, "stalled": {}})
