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
from dish.index.warmup import build_accelerator, compile_kernels
from dish.install import pip_install
from dish.web.limits import Limits
from dish.web.sockets import limits_for_host, listen, url

try:
    import PIL  # noqa: F401 (reported now, not at the first upload)
    import uvicorn

    from dish.alias import CollectionFiles, attach_vectors, check_answers
    from dish.web.app import create_app
    from dish.web.collection import Collection
    from dish.web.connections import limited_protocol
    from dish.web.generations import Service
    from dish.web.index_writer import IndexWriter, check_served_alone
    from dish.web.pictures import FolderPictures, to_png
    from dish.web.reload import Reloader, on_hangup, reload_and_log
    from dish.web.source import Source
except ImportError as error:
    if (error.name or "").startswith("dish"):
        raise
    raise ImportError(f"the search service needs {error.name}: {pip_install('serve')}") from None

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
    vectors: Path | None = None,
    vector_ids: Path | None = None,
) -> Collection:
    """Load a model and an index, and replay the journal.

    ``hasher`` replaces loading the model. ``mapped`` maps the index, a copy that nobody changes, so that several
    processes share the memory. ``verify`` checks the checksum of the index. ``vectors`` are the float vectors of the
    items, for ``rescore="float"``.
    """
    if writable and vectors is not None:
        raise InputError(
            f"--vectors {vectors} and --writable exclude each other: an item that is added has no vector in that file"
        )
    from dish.index.hamming import HammingIndex

    if hasher is None:
        from dish.registry import load

        hasher = load(model).without_names()  # rows in requests have no column names
    path = Path(os.path.realpath(index))
    pictures = None if images is None else FolderPictures(images)
    if pictures is not None and pictures.n_rejected:
        fields = {"n": pictures.n_rejected}
        log.warning("links out of the folder of images are not served", extra={"fields": fields})
    if not writable and not mapped:
        check_served_alone(path)
    writer = IndexWriter(path) if writable else None
    try:
        found = HammingIndex.load(path, mmap=mapped, verify=verify) if writer is None else writer.index
        if vectors is not None:
            attach_vectors(found, hasher, vectors, vector_ids)
        return Collection(
            hasher,
            found,
            takes=takes,
            pictures=pictures,
            title=title or default_title(index, images),
            duplicates=duplicates,
            writer=writer,
        )
    except BaseException:
        if writer is not None:
            writer.release()
        raise


def open_source(source: Source, files: CollectionFiles) -> Collection:
    """Open files with the options of a source."""
    options = {"images": source.images, "takes": source.takes, "title": source.title, "writable": source.writable}
    return open_collection(files.model, files.index, vectors=files.vectors, vector_ids=files.vector_ids, **options)  # type: ignore[arg-type]


def prepare(source: Source, files: CollectionFiles) -> Collection:
    """Open files that are to be served next: verify that they answer, and warm up."""
    collection = open_source(source, files)
    try:
        check_and_warm_up(collection, files)
    except BaseException:
        collection.close()
        raise
    return collection


def check_and_warm_up(collection: Collection, files: CollectionFiles) -> None:
    """Verify that a collection answers, and do what its first requests would have to wait for."""
    check_answers(collection.hasher, collection.index, files)
    warm_up(collection)
    build_accelerator(collection.index)


def default_title(index: Path, images: Path | None) -> str:
    """Return the heading of the page: the name of the folder, or of the index."""
    return index.stem if images is None else images.resolve().name


def serve(
    collection: Collection,
    limits: Limits,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    allowed_hosts: Sequence[str] = (),
    show: bool = False,
    eager: bool = True,
    source: Source | None = None,
) -> None:
    """Serve until SIGTERM or Control-C. Prints the address on standard output once clients can connect.

    ``show`` opens the page in a browser on this machine. Without ``eager`` the model is loaded by the first request
    that needs it. With a ``source``, POST /admin/reload and SIGHUP switch to what it names then.
    """
    fields = {"items": len(collection), "note": "the first start compiles kernels, which can take a minute"}
    log.info("preparing searches", extra={"fields": fields})
    warm_up(collection, encode=eager)
    listener = listen(host, port)
    limits, address = limits_for_host(limits, host, allowed_hosts), url(host, listener)
    collection.announce(address)

    def announce() -> None:
        print(f"dish: serving {len(collection):,} items on {address}  (Control-C stops)", flush=True)
        if show:
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    def prepare_next(source: Source, files: CollectionFiles) -> Collection:
        found = prepare(source, files)
        found.announce(address)
        return found

    service = create_app(collection, limits, alias=None if source is None else source.alias)
    if source is not None:
        reload = service.reload = Reloader(service, source, prepare_next)
        on_hangup(lambda: threading.Thread(target=reload_and_log, args=(reload,), name="dish-reload").start())
    run(service, listener, announce)


class AnnouncedServer(uvicorn.Server):
    """A server that calls ``announce`` once it answers requests and signals."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self.announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then announce."""
        await super().startup(sockets)
        self.announce()


def run(service: Service, listener: socket.socket, announce: Callable[[], None]) -> None:
    """Serve on a socket until told to stop, then close the collection. ``announce`` is called once it is served."""
    signal.signal(signal.SIGTERM, exit_process)  # uvicorn shuts down first and then raises the signal again
    try:
        AnnouncedServer(config_of(service), announce).run(sockets=[listener])
    finally:
        service.close()


def server_config(collection: Collection, limits: Limits) -> uvicorn.Config:
    """Return uvicorn's configuration for a collection that is never replaced."""
    return config_of(create_app(collection, limits))


def config_of(service: Service) -> uvicorn.Config:
    """Return uvicorn's configuration."""
    limits = service.limits
    return uvicorn.Config(
        service,
        http=limited_protocol(limits),
        ws="none",
        lifespan="off",  # it would keep the first generation for ever
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # any client can send X-Forwarded-For
        timeout_keep_alive=limits.idle_seconds,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )


def exit_process(number: int, frame: FrameType | None) -> NoReturn:
    """End the process with exit code 0. A signal handler."""
    sys.exit(0)


def warm_up(collection: Collection, encode: bool = True) -> None:
    """Compile all kernels that searches may need, and encode once, so that no client waits for it."""
    n_rows = len(collection) if collection.writer is None else None  # None: it may grow
    integers = collection.id_type() == "integer" or not len(collection)  # an empty index accepts both kinds
    compile_kernels(collection.n_bits, integer_ids=integers, n_rows=n_rows)
    if not encode:
        return
    if collection.takes != "vector":
        row = collection.row_of(to_png(np.full((224, 224, 3), 255, np.uint8)), max_pixels=1 << 20)
    else:
        row = np.zeros((1, collection.n_features or 0), np.float32)
    collection.hasher.transform(row)  # not ``collection.encode``, which counts the row as a query
