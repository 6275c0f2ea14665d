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
    from dish.web.collection import Collection, Extent
    from dish.web.connections import protocol_of
    from dish.web.journal import Journal, pending
    from dish.web.old_journal import holds_records
except ImportError as error:
    if (error.name or "").startswith("dish"):
        raise
    raise need_extra(error) from None

SHUTDOWN_SECONDS = 10  # for requests under way when the server is told to stop

FILES = 8192  # open at a time, connections among them
SPARE_FILES = 128  # for everything but connections

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
) -> Collection:
    """Load a model (unless its ``hasher`` is given) and an index, and replay what the journal holds beyond the index.

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
        found = HammingIndex.load(path)
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
            raise ValueError(f"{beside} holds items that are not in {index} yet: start once with --writable")
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
        _warm_up(collection)
    loopback = host in LOOPBACK or host.startswith("127.")
    limits = replace(limits, hosts=_names(host, allowed_hosts), any_address=not loopback)
    limits = replace(limits, connections=min(limits.connections, _most_files() - SPARE_FILES))
    listener = _listen(host, port)
    shown, port = host if ":" not in host else f"[{host}]", listener.getsockname()[1]
    if not loopback:
        _warn_open(host, limits)
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
        print(f"dish: serving {len(collection):,} items on http://{shown}:{port}/  (Control-C stops)", flush=True)
        if show:
            threading.Thread(target=webbrowser.open, args=(f"http://{shown}:{port}/",), daemon=True).start()
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        collection.close()


def _names(host: str, allowed: Sequence[str]) -> tuple[str, ...]:
    """The host names that are answered to; none given in the list ("*"): any."""
    if "*" in allowed:
        return ()
    own = (host, socket.gethostname(), socket.getfqdn()) if host not in LOOPBACK else (host,)
    return tuple({name.lower() for name in (*LOOPBACK, *own, *allowed)})


def _most_files() -> int:
    """How many files and connections the process may have open, raised as far as the system lets it."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return FILES
    if soft < FILES and (hard == resource.RLIM_INFINITY or hard > soft):
        soft = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft


def _end(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(0)


def _warm_up(collection: Collection) -> None:
    """The first call compiles and allocates: not while a client waits."""
    if collection.takes != "vector":
        code = collection.encode_picture(to_png(np.full((224, 224, 3), 255, np.uint8)), max_pixels=1 << 20)
    else:
        code = collection.encode([[0.0] * (collection.n_features or 0)])
    now = collection.index.snapshot()
    for n in (1, 64):  # one query and a batch may go different ways
        for extent in (Extent(k=10), Extent(radius=0)):
            collection.search_many(np.repeat(code, n, axis=0), [extent] * n, 10, now)


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
