"""The limits of a server."""

from __future__ import annotations

from dataclasses import dataclass

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Limits:
    """Limits of one server.

    ``hosts`` are the host names it answers to; empty means any. With ``any_address`` it also answers to every IP
    address.
    """

    max_body: int = 4 << 20  # bytes
    max_k: int = 1000
    max_pixels: int = 16_000_000
    max_rows: int = 10_000  # per request
    concurrency: int = 32  # requests in progress, except those for the page, /health, /info and /metrics
    header_seconds: float = 10.0  # to send the headers of a request
    body_seconds: float = 20.0  # to send the body
    send_seconds: float = 20.0  # to receive each part of the response
    idle_seconds: int = 15  # between two requests of a connection
    connections: int = 512
    token: str | None = None
    hosts: tuple[str, ...] = ()
    any_address: bool = False
