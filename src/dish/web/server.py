"""The process: loading, the socket, the log, a graceful end."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import numpy as np

from dish.web.errors import need_extra
from dish.web.guard import LOOPBACK, Limits
from dish.web.pictures import to_png

try:
    import PIL  # noqa: F401 (said now, not at the first upload)
    import python_multipart  # noqa: F401
    import uvicorn

    from dish.web.app import create_app
    from dish.web.collection import Collection
except ImportError as error:
    if (error.name or "").startswith("dish"):
        raise
    raise need_extra(error) from None

SHUTDOWN_SECONDS = 10  # for requests under way when the server is told to stop

log = logging.getLogger("dish.web")


def open_collection(
    model: Path, index: Path, *, images: Path | None = None, takes: str | None = None, writable: bool = False
) -> Collection:
    """Load a model and an index from their files, and replay what the journal holds beyond the index."""
    from dish.index.hamming import HammingIndex
    from dish.registry import load
    from dish.web.journal import Journal
    from dish.web.pictures import FolderPictures

    hasher = load(model)
    path = Path(os.path.realpath(index))
    beside = path.with_name(path.name + ".journal")
    if not writable and beside.exists() and beside.stat().st_size:
        raise ValueError(f"{beside} holds items that are not in {index} yet: start once with --writable")
    pictures = None if images is None else FolderPictures(images)
    if pictures is not None and pictures.refused:
        log.warning("links out of the folder of images are not served", extra={"fields": {"n": pictures.refused}})
    found = HammingIndex.load(path)
    journal = Journal(beside) if writable else None
    if journal is not None:
        fields = {"records": len(journal.records), "torn_bytes_dropped": journal.dropped}
        log.info("journal", extra={"fields": fields})
    return Collection(hasher, found, takes=takes, pictures=pictures, title=index.stem, journal=journal, path=path)


def serve(collection: Collection, limits: Limits, *, host: str = "127.0.0.1", port: int = 8000) -> None:
    """Serve until told to stop. Prints the address on standard output once connections are taken."""
    start_log()
    _warm_up(collection)
    loopback = host in LOOPBACK or host.startswith("127.")
    limits = replace(limits, hosts=(*LOOPBACK, host) if loopback else ())
    listener = _listen(host, port)
    shown, port = host if ":" not in host else f"[{host}]", listener.getsockname()[1]
    if not loopback:
        _warn_open(host, limits)
    config = uvicorn.Config(
        create_app(collection, limits),
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=4 * limits.concurrency + 64,  # connections; the guard holds the requests
        timeout_keep_alive=15,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    print(f"dish: serving {len(collection):,} items on http://{shown}:{port}/  (Control-C stops)", flush=True)
    signal.signal(signal.SIGTERM, _end)  # uvicorn finishes first, then passes the signal on to this
    try:
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        collection.close()


def _end(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(0)


def _warm_up(collection: Collection) -> None:
    """The first call compiles and allocates: not while a client waits."""
    if collection.takes != "vector":
        code = collection.encode_picture(to_png(np.full((224, 224, 3), 255, np.uint8)), max_pixels=1 << 20)
    else:
        code = collection.encode([[0.0] * (collection.n_features or 0)])
    collection.search(code, k=1, radius=None, limit=1)
    collection.search(code, k=None, radius=0, limit=1)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, OverflowError) as error:
        raise ValueError(f"--host {host} --port {port}: no such address ({error})") from None
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(2048)  # from here on clients wait instead of being turned away
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    return listener


def _warn_open(host: str, limits: Limits) -> None:
    text = f"WARNING: listening on {host}: other machines can reach this server, and it speaks plain HTTP."
    text += " A token is required." if limits.token else " ANYONE who can reach it may search: set --token."
    bar = "!" * 79
    print(f"{bar}\ndish: {text}\n{bar}", file=sys.stderr, flush=True)


# --- the log: one JSON object a line, on standard error ---


class JsonLines(logging.Formatter):
    """Time, level, event and the fields of a record. JSON escapes whatever a client may have put there."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def start_log() -> None:
    """JSON lines from the service and from uvicorn."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("dish.web", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(logging.INFO)
