"""The worst requests that we know, for every route: a table for the tests of the limits and for `make torture`."""

from __future__ import annotations

import http.client
import io
import json
import struct
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dish import DISH, HammingIndex
from helpers.service import Server, X

BODY = (4 << 20) - 1000  # bytes: a little less than the server accepts
SIDE = 4000  # pixels: the largest picture that the server accepts is SIDE²
FORM = "multipart/form-data; boundary=B"
BINARY = "application/octet-stream"
CUT = 0  # in the place of a status: the server closed the connection while the client was sending
ID, LABEL = "x" * 500, "写" * 500  # as long as the service accepts


@dataclass(frozen=True)
class WorstRequest:
    """A request, and the statuses with which the server may answer it."""

    name: str
    path: str
    body: Callable[[], bytes] | None = None
    content_type: str = "application/json"
    statuses: tuple[int, ...] = (422,)
    method: str = "POST"
    chunked: bool = False  # the body has chunks and trailers already

    def __str__(self) -> str:
        return f"{self.path.partition('?')[0][:20]}: {self.name}"


# --- bodies ---


def repeated(start: bytes, part: bytes, end: bytes) -> Callable[[], bytes]:
    """A body of the largest size: one part again and again."""
    return lambda: start + b",".join([part] * ((BODY - len(start) - len(end)) // (len(part) + 1))) + end


def many_fields() -> bytes:
    return b"{" + b",".join(b'"%x":0' % i for i in range(BODY // 10)) + b"}"


def largest_filters() -> bytes:
    """As many ids and labels as fit into a body."""
    ids = [f"{i:0390d}" for i in range(10_000)]
    return json.dumps({"code": "0" * 16, "k": 1000, "ids": ids, "labels": list(range(10_000))}).encode()


def largest_removal() -> bytes:
    """As many ids as fit into a body, none of which the index has."""
    return json.dumps({"ids": [f"{i:0400d}" for i in range(10_000)]}).encode()


def longest_shortlist() -> bytes:
    return json.dumps({"vector": X[0].tolist(), "k": 1000, "rescore": "asymmetric", "shortlist": 10_000}).encode()


def largest_batch(ids: bool = False) -> bytes:
    """Valid rows with as many bytes as the server accepts: the most numbers that it must really encode."""
    row = b"[" + b",".join([b"1.5"] * 64) + b"]"
    n = min(10_000, BODY // (len(row) + (520 if ids else 1)))
    known = b'"ids":[' + b",".join(b'"%0499d"' % i for i in range(n)) + b"]," if ids else b""
    return b"{" + known + b'"vectors":[' + b",".join([row] * n) + b"]}"


def form(content: bytes, head: bytes = b'name="image"; filename="a.png"') -> bytes:
    """A form with one field."""
    return b"--B\r\nContent-Disposition: form-data; " + head + b"\r\n\r\n" + content + b"\r\n--B--\r\n"


def _segment(kind: int, content: bytes) -> bytes:
    return b"\xff" + bytes([kind]) + struct.pack(">H", len(content) + 2) + content


def progressive_jpeg(scans: int, side: int = SIDE) -> bytes:
    """A grey JPEG whose scans have 31 bytes each, but take a pass over all pixels."""
    blocks = ((side + 7) // 8) ** 2
    out = b"\xff\xd8" + _segment(0xDB, b"\0" + b"\1" * 64)
    out += _segment(0xC2, struct.pack(">BHHB", 8, side, side, 1) + bytes([1, 0x11, 0]))
    out += _segment(0xC4, b"\0" + bytes([1, *[0] * 15, 0]))  # DC: the code 0 is a difference of 0
    out += _segment(0xC4, b"\x10" + bytes([1, *[0] * 15, 0xE0]))  # AC: the code 0 ends 2^14 blocks and more
    out += _segment(0xDA, bytes([1, 1, 0, 0, 0, 0])) + bytes((blocks + 7) // 8)
    bits = ("0" * 15) * -(-blocks // 16384)
    bits += "1" * (-len(bits) % 8)
    data = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    return out + (_segment(0xDA, bytes([1, 1, 0, 1, 63, 0])) + data) * scans + b"\xff\xd9"


def many_segments(part: bytes) -> bytes:
    """A small JPEG with as much of something in front of its first segment as fits."""
    small = progressive_jpeg(1, 8)
    return small[:2] + _segment(0xE5, b"") + part * ((BODY - 2000) // len(part)) + small[2:]


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def flat_png(depth: int = 8, colour: int = 6, extra: bytes = b"", side: int = SIDE) -> bytes:
    """A PNG of one colour, a few kB for the most pixels that the server accepts."""
    channels = {0: 1, 2: 3, 6: 4}[colour]
    lines = bytes(side * (side * channels * depth // 8 + 1))
    head = _chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + extra + _chunk(b"IDAT", zlib.compress(lines, 9)) + _chunk(b"IEND", b"")


def large_exif() -> bytes:
    """A chunk of a PNG: 500 tags that all point to the same 900 kB."""
    tags = b"".join(struct.pack("<HHII", 0x1000 + i, 2, 900_000, 8) for i in range(500))
    return _chunk(b"eXIf", (b"II*\0" + struct.pack("<IH", 8, 500) + tags + bytes(4)).ljust(1_000_000, b"a"))


def many_blocks(part: bytes, n: int | None = None) -> bytes:
    """A small GIF with a block n times before its first frame, or as often as fits."""
    head = b"GIF89a" + struct.pack("<HHBBB", 8, 8, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    file = io.BytesIO()
    Image.new("P", (8, 8)).save(file, "GIF")
    frame = file.getvalue()[file.getvalue().index(b",") :]
    return head + part * ((BODY - 2000) // len(part) if n is None else n) + frame


def _pictures() -> dict[str, tuple[Callable[[], bytes], tuple[int, ...]]]:
    """Uploads by name, with the statuses they may get."""
    return {
        "JPEG of 100,000 scans": (lambda: form(progressive_jpeg(100_000)), (422,)),
        "JPEG with as many scans as allowed": (lambda: form(progressive_jpeg(62)), (200,)),
        "JPEG of a million segments": (lambda: form(many_segments(_segment(0xE5, b""))), (422,)),
        "JPEG of zeros between segments": (lambda: form(many_segments(b"\0")), (422,)),
        "JPEG of a million fill bytes": (lambda: form(many_segments(b"\xff")), (422,)),
        "PNG of 16 bits with transparency": (lambda: form(flat_png(16)), (200,)),
        "grey PNG of 16 bits": (lambda: form(flat_png(16, 0)), (200,)),
        "PNG of many chunks": (lambda: form(flat_png(8, 0, _chunk(b"teSt", b"") * (BODY // 12 - 500), 8)), (422,)),
        "PNG of too many pixels": (lambda: form(flat_png(8, 0, side=SIDE + 1)), (413,)),
        "PNG with large EXIF data": (lambda: form(flat_png(8, 0, large_exif(), 8)), (200,)),
        "GIF of a million comments": (lambda: form(many_blocks(b"!\xfe\1a\0")), (422,)),
        "not a picture": (lambda: form(bytes(BODY - 200)), (422,)),
    }


def _forms() -> dict[str, Callable[[], bytes]]:
    return {
        "a million headers": lambda: b"--B\r\n" + b"a:b\r\n" * (BODY // 5) + b"\r\n\r\n--B--\r\n",
        "line breaks": lambda: form(b"\r\n" * (BODY // 2 - 100)),
        "almost boundaries": lambda: form(b"\r\n--A" * (BODY // 5 - 100)),
        "many parts": lambda: b"--B\r\n" * (BODY // 5),
        "a large field": lambda: form(b"x" * (BODY - 200), b'name="k"'),
    }


# --- the table ---

REJECTED = (413, 422)
JSON_BODIES = {
    "/search": {
        "strings": repeated(b'{"vector":[', b'""', b"]}"),
        "numbers": repeated(b'{"vector":[', b"0", b"]}"),
        "lists": repeated(b'{"vector":[', b"[]", b"]}"),
        "fields": many_fields,
        "fields that the event loop parses": lambda: b"{" + b",".join(b'"%x":0' % i for i in range(4000)) + b"}",
        "a long field": lambda: b'{"' + b"a" * BODY + b'":0}',
        "a long id": lambda: b'{"id":"' + b"a" * BODY + b'"}',
        "escapes": lambda: b'{"id":"' + b"\\u0041" * (BODY // 6) + b'"}',
        "nested": lambda: b"[" * BODY,
    },
    "/encode": {
        "short rows": repeated(b'{"vectors":[', b"[0]", b"]}"),
        "empty rows": repeated(b'{"vectors":[', b"[]", b"]}"),
        "empty objects": repeated(b'{"vectors":[', b"{}", b"]}"),
        "no rows": repeated(b'{"vectors":[', b"1", b"]}"),
    },
    "/items": {
        "lists as ids": repeated(b'{"ids":[', b"[]", b'],"vectors":[[0]]}'),
        "labels": repeated(b'{"ids":["a"],"vectors":[[0]],"labels":[', b'"ab"', b"]}"),
        "fields": many_fields,
    },
    "/items/delete": {
        "short ids": repeated(b'{"ids":[', b'"a"', b"]}"),
        "fields": many_fields,
    },
}
CHUNKED_BODIES = {
    "trailers": lambda: b"0\r\n" + b"a: b\r\n" * (BODY // 6),
    "a long trailer": lambda: b"0\r\na: " + b"b" * BODY,
    "chunks of a byte": lambda: b"1\r\nx\r\n" * (BODY // 6),
    "a long extension": lambda: b"1;" + b"x" * BODY,
}
LONG_SEARCH = b'{"code":"0000000000000000","radius":64}'

WORST_REQUESTS = [
    *(
        WorstRequest(name, path, body, statuses=REJECTED)
        for path, bodies in JSON_BODIES.items()
        for name, body in bodies.items()
    ),
    WorstRequest("everything within the radius", "/search", lambda: LONG_SEARCH, statuses=(200,)),
    WorstRequest("the largest filters", "/search", largest_filters, statuses=(200,)),
    WorstRequest("the longest shortlist", "/search", longest_shortlist, statuses=(200,)),
    WorstRequest("a body", "/admin/reload", lambda: b"x" * BODY),
    WorstRequest("the largest batch", "/encode", largest_batch, statuses=(200,)),
    WorstRequest("the largest batch with long ids", "/items", lambda: largest_batch(ids=True), statuses=(200,)),
    WorstRequest("the most long ids", "/items/delete", largest_removal, statuses=(200,)),
    *(
        WorstRequest(name, path, body, FORM, statuses)
        for path in ("/encode", "/search/image")
        for name, (body, statuses) in _pictures().items()
    ),
    WorstRequest("JPEG of 100,000 scans", "/encode/image", lambda: form(progressive_jpeg(100_000)), FORM, (422,)),
    WorstRequest("a large picture", "/items", lambda: form(flat_png(16)), FORM, (200,)),
    WorstRequest("JPEG of 100,000 scans", "/items/image", lambda: form(progressive_jpeg(100_000)), FORM, (422,)),
    *(WorstRequest(name, "/search", body, FORM, (400, 413, 422)) for name, body in _forms().items()),
    WorstRequest("a long type", "/search", lambda: b"x", 'multipart/form-data; boundary="' + ";" * 60_000, (400,)),
    *(
        WorstRequest(name, path, body, statuses=(400, 405, 431, CUT), chunked=True)
        for path in ("/search", "/health")
        for name, body in CHUNKED_BODIES.items()
    ),
    WorstRequest("a million hits", "/search/codes?k=1000", lambda: bytes(8000), BINARY, (200, 413, 503)),
    WorstRequest("many codes", "/search/codes?k=1", lambda: bytes(BODY // 8 * 8), BINARY, (413,)),
    WorstRequest("a long id", f"/items?id={'a' * 60_000}", None, "", (404,), "DELETE"),
    WorstRequest("a long id in the path", f"/items/{'%0A' * 20_000}", None, "", (404,), "DELETE"),
    WorstRequest("all ids", "/ids?like=e&n=50", None, "", (200,), "GET"),
    WorstRequest("no id", f"/ids?like={'q' * 100}&n=50", None, "", (200,), "GET"),
    WorstRequest("the most samples", "/samples?n=100", None, "", (200,), "GET"),
    WorstRequest("a large file", "/images/large", None, "", (200,), "GET"),
    WorstRequest("a slow file", "/thumbnails/scans", None, "", (404,), "GET"),
    WorstRequest("a large picture", "/thumbnails/pixels?side=2048", None, "", (200,), "GET"),
    WorstRequest("a long key", f"/images/{'a' * 60_000}", None, "", (404,), "GET"),
    *(
        WorstRequest("at once", path, None, "", (200,), "GET")
        for path in ("/info", "/metrics", "/openapi.json", "/docs", "/")
    ),
    WorstRequest("no duplicates here", "/duplicates", None, "", (404,), "GET"),
]


# --- a server and its observation ---


def prepare(folder: Path, n: int = 20_000) -> tuple[str, ...]:
    """Write a model, an index with long ids and labels, and pictures; return the options of a server for them."""
    hasher = DISH(n_bits=64, n_anchors=100, random_state=0).fit(X[:500], np.arange(500) % 10)
    hasher.save(folder / "m.dish")
    index = HammingIndex(64)
    codes = np.random.default_rng(0).integers(0, 256, (n, 8), np.uint8)
    index.add(
        codes, ids=[ID, *(f"item {i}" for i in range(1, n))], labels=[LABEL if i % 2 else "b" for i in range(n)]
    )
    index.save(folder / "ix.dish")
    (folder / "pictures").mkdir()
    (folder / "pictures" / "large.jpg").write_bytes(b"\xff\xd8\xff" + bytes(60 << 20))
    (folder / "pictures" / "scans.jpg").write_bytes(progressive_jpeg(100_000))
    Image.new("RGBA", (SIDE, SIDE)).save(folder / "pictures" / "pixels.png")
    return "--input", "digits8", "--images", str(folder / "pictures"), "--writable"


def prepare_changed(folder: Path, n: int = 1_000_000, changed: int = 900) -> bytes:
    """Write a model and an index of n items; return the body that replaces some of them, fewer than are compacted."""
    hasher = DISH(n_bits=64, n_anchors=100, random_state=0).fit(X[:500], np.arange(500) % 10)
    hasher.save(folder / "m.dish")
    index = HammingIndex(64)
    index.add(np.random.default_rng(0).integers(0, 256, (n, 8), np.uint8))
    index.save(folder / "ix.dish")
    return json.dumps({"ids": list(range(changed)), "vectors": X[:changed].tolist()}).encode()


AFTER_CHANGES = WorstRequest("many codes after changes", "/search/codes?k=1", lambda: bytes(80_000), BINARY, (200,))


@dataclass
class Observed:
    """What was seen while requests were answered."""

    statuses: set[int]
    health: list[float]  # seconds that /health took
    grown: int  # bytes of memory at the peak, more than before

    @property
    def p99(self) -> float:
        """The 99th percentile of /health in seconds, as if somebody had asked every 10 ms, also during a stall."""
        return float(np.quantile(np.concatenate([np.arange(seconds, 0, -0.01) for seconds in self.health]), 0.99))


def observe(server: Server, request: WorstRequest, clients: int = 2, seconds: float = 1.0) -> Observed:
    """Send a request from several clients again and again, for some time, while another process asks for /health."""
    body = None if request.body is None else request.body()
    headers = {"content_type": request.content_type} if request.content_type else {}
    headers |= {"transfer_encoding": "chunked"} if request.chunked else {}
    before = server.reset_peak()
    statuses: set[int] = set()
    with server.watched() as health:
        end = time.monotonic() + seconds

        def send() -> None:
            while not statuses or time.monotonic() < end:
                try:
                    statuses.add(server.ask(request.method, request.path, body, 120, **headers)[0])
                except (ConnectionError, http.client.HTTPException):
                    statuses.add(CUT)

        work = [threading.Thread(target=send) for _ in range(clients)]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
    return Observed(statuses, health, 1024 * (server.status("VmHWM") - before))


def withstood(seen: Observed, request: WorstRequest) -> dict[str, Any]:
    """The results of ``observe`` for a report: "ok" if the server kept its promises."""
    ok = seen.statuses <= {*request.statuses, 503} and seen.p99 < 0.1 and seen.grown < 300e6
    longest = round(max(seen.health), 3)
    return {"ok": ok, "statuses": sorted(seen.statuses), "p99_s": round(seen.p99, 3), "longest_s": longest} | {
        "memory_grown_mb": round(seen.grown / 1e6)
    }
