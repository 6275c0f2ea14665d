"""The server process: opens the files, listens, and stops gracefully."""

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
from dish.web.limits import Limits
from dish.web.sockets import limits_for_host, listen, url

try:
    import PIL  # noqa: F401 (reported now, not at the first upload)
    import python_multipart  # noqa: F401
    import uvicorn

    from dish.web.app import create_app
    from dish.web.collection import Collection, SearchRange
    from dish.web.connections import limited_protocol
    from dish.web.journal import Journal, count_pending, journal_path
    from dish.web.pictures import FolderPictures, to_png
except ImportError as error:
    if (error.name or "").startswith("dish"):
        raise
    raise ImportError(f"the search service needs {error.name}: pip install 'dish-hash[serve]'") from None

SHUTDOWN_SECONDS = 10  # for requests in progress when the server is told to stop

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
    """Load a model and an index, and replay the journal.

    ``hasher`` replaces loading the model. ``mapped`` leaves the index in its file, so that several processes share
    the memory. ``verify`` checks the checksum of the index.

    The journal is locked before the index is read. A server that is stopping writes its items to the index file
    first and releases the lock afterwards, so that none is missed.
    """
    from dish.index.hamming import HammingIndex

    if hasher is None:
        from dish.registry import load

        hasher = load(model)
    path = Path(os.path.realpath(index))
    pictures = None if images is None else FolderPictures(images)
    if pictures is not None and pictures.n_rejected:
        fields = {"n": pictures.n_rejected}
        log.warning("links out of the folder of images are not served", extra={"fields": fields})
    journal = _open_journal(path, writable)
    try:
        return Collection(
            hasher,
            HammingIndex.load(path, mmap=mapped, verify=verify),
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


def _open_journal(index: Path, writable: bool) -> Journal | None:
    """Open the journal of an index. A read-only server has none, and refuses an index with pending records."""
    path = journal_path(index)
    if not writable:
        if count_pending(path):
            raise InputError(f"{path} has items that are not in {index.name} yet: start once with --writable")
        return None
    journal = Journal(path)
    log.info("journal", extra={"fields": {"records": len(journal.records)}})
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
    """Serve until SIGTERM or Control-C. Prints the address on standard output once clients can connect.

    ``show`` opens the page in a browser on this machine. Without ``eager`` the model is loaded by the first request
    that needs it.
    """
    if eager:
        warm_up(collection)
    listener = listen(host, port)
    limits = limits_for_host(limits, host, allowed_hosts)

    def announce() -> None:
        print(f"dish: serving {len(collection):,} items on {url(host, listener)}  (Control-C stops)", flush=True)
        if show:
            threading.Thread(target=webbrowser.open, args=(url(host, listener),), daemon=True).start()

    run(collection, limits, listener, announce)


def run(collection: Collection, limits: Limits, listener: socket.socket, announce: Callable[[], None]) -> None:
    """Call ``announce``, serve on a socket until told to stop, then close the collection."""
    signal.signal(signal.SIGTERM, exit_process)  # uvicorn shuts down first and then raises the signal again
    try:
        announce()
        uvicorn.Server(server_config(collection, limits)).run(sockets=[listener])
    finally:
        collection.close()


def server_config(collection: Collection, limits: Limits) -> uvicorn.Config:
    """Return uvicorn's configuration."""
    return uvicorn.Config(
        create_app(collection, limits),
        http=limited_protocol(limits),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=limits.idle_seconds,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )


def exit_process(number: int, frame: FrameType | None) -> NoReturn:
    """End the process with exit code 0. A signal handler."""
    sys.exit(0)


def warm_up(collection: Collection) -> None:
    """Encode and search once, so that no client waits for compilation."""
    if collection.takes != "vector":
        code = collection.encode_picture(to_png(np.full((224, 224, 3), 255, np.uint8)), max_pixels=1 << 20)
    else:
        code = collection.encode([[0.0] * (collection.n_features or 0)])
    snapshot = collection.index.snapshot()
    for n in (1, 64):  # single queries and batches may use different kernels
        for search_range in (SearchRange(k=10), SearchRange(radius=0)):
            collection.search_many(np.repeat(code, n, axis=0), [search_range] * n, 10, snapshot)
