"""The limits of requests and connections, in one table. docs/serve.md explains them, and lists the others."""

from __future__ import annotations

from dataclasses import dataclass

LOOPBACK = ("127.0.0.1", "localhost", "::1")
SMALL = 64 << 10  # bytes: bodies and answers up to this size are not counted; connections limit their number


@dataclass(frozen=True)
class Limits:
    """Limits of one server. Each is checked before the work that it limits.

    ``hosts`` are the host names it answers to; empty means any. With ``any_address`` it also answers to every IP
    address.
    """

    # one request
    max_headers: int = 64 << 10  # bytes
    max_body: int = 4 << 20  # bytes
    max_rows: int = 10_000  # vectors, ids or codes
    max_k: int = 1000  # hits of a query
    max_hits: int = 1_000_000  # hits of all codes sent to /search/codes
    max_pixels: int = 16_000_000  # of an uploaded picture; io/images.py limits its scans and blocks
    max_answer: int = 32 << 20  # bytes
    # all requests together
    connections: int = 512
    concurrency: int = 32  # requests in progress, except those for the page, /health, /info and /metrics
    bodies: int = 32 << 20  # bytes of request bodies in memory
    answers: int = 64 << 20  # bytes of answers that clients have not taken yet
    # time
    header_seconds: float = 10.0  # to send the headers of a request
    body_seconds: float = 20.0  # to send the body
    send_seconds: float = 20.0  # without reading; also to take 1 MB of an answer, and each further 1 MB
    idle_seconds: int = 15  # between two requests of a connection
    # access
    token: str | None = None
    hosts: tuple[str, ...] = ()
    any_address: bool = False


def in_words(n_bytes: int) -> str:
    """Return a number of bytes for a message."""
    return f"{n_bytes / 1e6:.1f} MB" if n_bytes >= 1e6 else f"{n_bytes:,} bytes"
