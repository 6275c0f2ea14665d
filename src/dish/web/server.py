"""The process: loading, the socket, a graceful end."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import numpy as np

from dish.errors import InputError
from dish.web.errors import need_extra
from dish.web.middleware import Limits
from dish.web.pictures import to_png
from dish.web.sockets import listen, prepared, url

try:
    import PIL  # noqa: F401 (said now, not at the first upload)
    import python_multipart  # noqa: F401
    import uvicorn

    from dish.web.app import create_app
    from dish.web.collection import Collection, Extent
    from dish.web.connections import protocol_of
    from dish.web.journal import Journal, pending
    from dish.web.old_journal import holds_records
except ImportError as error:
    if (error.name or "").startswith("dish"):
        raise
    raise need_extra(error) from None

SHUTDOWN_SECONDS = 10  # for requests under way when the server is told to stop

log = logging.getLogger("dish.web")


def open_collection(
    model: Path,
    index: Path,
    *,
    images: Path | None = None,
    takes: str | None = None,
    writable: bool = False,
    title: str | None = None,
    duplicates: Callable[[], list[list[str]]] | None = None,
    hasher: Any = None,
    mapped: bool = False,
    verify: bool = True,
) -> Collection:
    """Load a model (unless its ``hasher`` is given) and an index, and replay what the journal holds beyond the index.

    ``mapped``: the index stays in its file, and processes that map it share the memory. ``verify``: check its sum.

    The journal is locked before the index is read: a server that is about to end writes its items into the index
    file first, and unlocks then.
    """
    from dish.index.hamming import HammingIndex
    from dish.web.pictures import FolderPictures

    if hasher is None:
        from dish.registry import load

        hasher = load(model)
    path = Path(os.path.realpath(index))
    pictures = None if images is None else FolderPictures(images)
    if pictures is not None and pictures.refused:
        log.warning("links out of the folder of images are not served", extra={"fields": {"n": pictures.refused}})
    journal = _open_journal(path, index, writable)
    try:
        found = HammingIndex.load(path, mmap=mapped, verify=verify)
        return Collection(
            hasher,
            found,
            takes=takes,
            pictures=pictures,
            title=title or (index.stem if images is None else images.resolve().name),
            duplicates=duplicates,
            journal=journal,
            path=path,
        )
    except BaseException:
        if journal is not None:
            journal.close()
        raise


def _open_journal(path: Path, index: Path, writable: bool) -> Journal | None:
    """The journal beside an index; where nothing may be written, make sure that none is needed."""
    old, beside = path.with_name(path.name + ".journal"), path.with_name(path.name + ".journal.db")
    if not writable:
        if holds_records(old) or pending(beside):
            raise InputError(f"{beside} holds items that are not in {index} yet: start once with --writable")
        return None
    journal = Journal(beside, old)
    fields = {"records": len(journal.records), "torn_bytes_dropped": journal.torn_bytes}
    log.info("journal", extra={"fields": fields})
    return journal


def serve(
    collection: Collection,
    limits: Limits,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    allowed_hosts: Sequence[str] = (),
    show: bool = False,
    eager: bool = True,
) -> None:
    """Serve until told to stop. Prints the address on standard output once connections are taken.

    ``show`` opens it in the browser of this machine. Without ``eager``, the first one who has something encoded waits
    for the model to be loaded.
    """
    if eager:
        warm_up(collection)
    (listener,) = listen(host, port)
    limits = prepared(limits, host, allowed_hosts)

    def announce() -> None:
        print(f"dish: serving {len(collection):,} items on {url(host, listener)}  (Control-C stops)", flush=True)
        if show:
            threading.Thread(target=webbrowser.open, args=(url(host, listener),), daemon=True).start()

    run(collection, limits, listener, announce)


def run(collection: Collection, limits: Limits, listener: socket.socket, announce: Callable[[], None]) -> None:
    """Answer on a socket until told to stop, then close the collection. ``announce`` is called before."""
    config = uvicorn.Config(
        create_app(collection, limits),
        http=protocol_of(limits),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=limits.idle_seconds,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    signal.signal(signal.SIGTERM, _end)  # uvicorn finishes first, then passes the signal on to this
    try:
        announce()
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        collection.close()


def _end(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(0)


def warm_up(collection: Collection) -> None:
    """The first call compiles and allocates: not while a client waits."""
    if collection.takes != "vector":
        code = collection.encode_picture(to_png(np.full((224, 224, 3), 255, np.uint8)), max_pixels=1 << 20)
    else:
        code = collection.encode([[0.0] * (collection.n_features or 0)])
    now = collection.index.snapshot()
    for n in (1, 64):  # one query and a batch may go different ways
        for extent in (Extent(k=10), Extent(radius=0)):
            collection.search_many(np.repeat(code, n, axis=0), [extent] * n, 10, now)
