"""Connections: how many there may be, for how long one may wait, and which one goes when there are too many.

uvicorn has no time-out for headers, and none for a connection that never sends anything. Here every connection has
``header_seconds`` to send the headers of its next request, however it drips them. Beyond the limits the connection
that has waited longest makes room for the new one, taken from the address that holds the most: whoever opens
thousands of connections closes their own, and a client that sends its request at once is served.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from dish.web.middleware import Limits, network_of

HEADER_BYTES = 64 << 10  # of one request; the standard servers take 8 to 64 KiB


class Connections:
    """The open connections of a server by address, and the limits they share."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.of: dict[str, dict[GuardedProtocol, None]] = defaultdict(dict)  # by address, in the order they came
        self.total = 0

    def admit(self, new: GuardedProtocol) -> bool:
        """Make room for a connection and count it. False: every other one is being answered, so there is no room."""
        mine = self.of.get(new.address, {})
        if len(mine) >= self.limits.connections_per_address and not self._close_longest_waiting(mine):
            return False
        if self.total >= self.limits.connections:
            heaviest = sorted(self.of.values(), key=len, reverse=True)
            if not any(self._close_longest_waiting(held) for held in heaviest):
                return False
        self.of[new.address][new] = None
        self.total += 1
        return True

    def forget(self, gone: GuardedProtocol) -> None:
        """A connection has ended, or is about to."""
        held = self.of.get(gone.address, {})
        if gone in held:
            del held[gone]
            self.total -= 1
        if not held:
            self.of.pop(gone.address, None)

    def touch(self, one: GuardedProtocol) -> None:
        """A connection begins to wait: it goes to the end of its address's queue."""
        held = self.of.get(one.address, {})
        if one in held:
            held[one] = held.pop(one)

    def _close_longest_waiting(self, held: dict[GuardedProtocol, None]) -> bool:
        """Close the first connection that waits for its client; one whose answer is being made stays."""
        for one in held:
            if one.waits:
                self.forget(one)
                one.transport.abort()  # no queue of farewells: a flood would fill it
                return True
        return False


class GuardedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's protocol with a deadline for headers and a place in ``Connections``."""

    guard: Connections  # set by ``protocol_of``

    def connection_made(self, transport: Any) -> None:
        """Take a place, or answer 503 and close."""
        super().connection_made(transport)
        self.address = network_of(self.client[0] if self.client else "")
        self._deadline: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        if self.guard.admit(self):
            self._expect_headers()
        else:
            self._refuse(503, "busy: too many connections, try again")

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        self._stop_waiting()
        self.guard.forget(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse; the deadline of the headers stands until the last of them is there."""
        if self.transport.is_closing():
            return
        if not self.answering:
            self._header_bytes += len(data)
        super().data_received(data)
        if self.answering:
            self._stop_waiting()
        elif not self.transport.is_closing():
            if self._header_bytes > HEADER_BYTES:
                self._refuse(431, f"the headers of a request may have {HEADER_BYTES:,} bytes")
            elif self._deadline is None:  # the first bytes of the next request on a kept connection
                self._expect_headers()

    def on_response_complete(self) -> None:
        """The next request may come on the same connection; uvicorn's keep-alive time-out runs from here."""
        self.guard.touch(self)
        super().on_response_complete()

    @property
    def answering(self) -> bool:
        """Whether a request is under way: its headers are there and its answer is not complete."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def waits(self) -> bool:
        """Whether the client is to send something: headers, or the rest of a body."""
        return not self.answering or bool(self.cycle.more_body)

    def _expect_headers(self) -> None:
        self._deadline = self.loop.call_later(self.guard.limits.header_seconds, self._too_slow)

    def _stop_waiting(self) -> None:
        self._header_bytes = 0
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        if not self.transport.is_closing() and not self.answering:
            self._refuse(408, f"the headers took longer than {self.guard.limits.header_seconds:g} s")

    def _refuse(self, status: int, message: str) -> None:
        body = f'{{"error": "{message}"}}'.encode()
        head = f"HTTP/1.1 {status} \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\nretry-after: 1\r\n\r\n" + body)
        self.transport.close()


def protocol_of(limits: Limits) -> type[GuardedProtocol]:
    """The protocol class of one server: uvicorn makes one object of it per connection."""
    return type("Protocol", (GuardedProtocol,), {"guard": Connections(limits)})
