"""A worker of several: it serves copies of the files, and follows its parent from one generation to the next."""

from __future__ import annotations

import logging
import os
import queue
import shutil
import threading
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException

from dish.alias import CollectionFiles
from dish.errors import InputError
from dish.web import server
from dish.web.collection import Collection
from dish.web.generations import ServedGeneration, Service
from dish.web.index_writer import check_served_alone
from dish.web.reload import SETTLE_SECONDS, UNSETTLED, describe, refusals
from dish.web.source import Source

COPIED = ("model", "index", "vector_ids")  # the vectors may be large, and are mapped where they are
READ_ONLY = "its workers share one index that none of them may change; use --writable without --workers"

log = logging.getLogger("dish.web")


@dataclass(frozen=True)
class ServedFiles:
    """What every worker serves: copies of the files of a source, made by the parent."""

    source: Source
    folder: Path  # the server's temporary folder
    number: int  # of the generation
    originals: CollectionFiles
    vectors_stamp: tuple[int, ...] | None  # of the file of vectors, which must stay the same

    @classmethod
    def copied(cls, source: Source, folder: Path, number: int) -> ServedFiles:
        """Copy the files that a source names now."""
        originals = source.files
        check_served_alone(Path(os.path.realpath(originals.index)))
        served = cls(source, folder, number, originals, _stamp(originals.vectors))
        served._copies_folder.mkdir()
        try:
            for name in COPIED:
                original = getattr(originals, name)
                if original is not None:
                    _copy(original, getattr(served.copies, name))
        except BaseException:
            served.remove()
            raise
        return served

    @property
    def _copies_folder(self) -> Path:
        return self.folder / f"generation-{self.number}"

    @property
    def copies(self) -> CollectionFiles:
        """The files to load."""
        given = {name: getattr(self.originals, name) for name in COPIED}
        copies = {name: path and self._copies_folder / f"{name}{path.suffix}" for name, path in given.items()}
        return replace(self.originals, **copies)

    def in_originals(self, message: str) -> str:
        """Return an error message with the names that the user knows."""
        for name in COPIED:
            if getattr(self.originals, name) is not None:
                message = message.replace(str(getattr(self.copies, name)), str(getattr(self.originals, name)))
        return message

    def check_vectors(self) -> None:
        """Raise an error if the file of vectors is not the one of the start."""
        if _stamp(self.originals.vectors) != self.vectors_stamp:
            raise InputError(
                f"{self.originals.vectors} was replaced: POST /admin/reload, or send SIGHUP, to serve it"
            )

    def remove(self) -> None:
        """Delete the copies. Workers that still map them keep them until they are done."""
        shutil.rmtree(self._copies_folder, ignore_errors=True)


def _stamp(path: Path | None) -> tuple[int, ...] | None:
    if path is None:
        return None
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _copy(original: Path, copy: Path) -> None:
    try:
        shutil.copyfile(original, copy)
    except OSError as error:
        if error.filename == str(original):
            raise
        raise OSError(
            f"{original} cannot be copied to {copy.parent}, which the workers need ({error.strerror}): set TMPDIR to "
            "a folder with enough space"
        ) from error


def open_copies(served: ServedFiles, verify: bool) -> Collection:
    """Open the copies in a worker. One of the workers verifies the checksum of the index."""
    served.check_vectors()
    source, files = served.source, served.copies
    collection = server.open_collection(
        files.model,
        files.index,
        images=source.images,
        takes=source.takes,
        title=source.title or server.default_title(served.originals.index, source.images),
        mapped=True,
        verify=verify,
        vectors=files.vectors,
        vector_ids=files.vector_ids,
    )
    collection.read_only_reason = READ_ONLY
    return collection


class Follower:
    """The worker's end of the connection to its parent: asks for a reload, loads and switches when told to."""

    def __init__(self, service: Service, parent: Connection) -> None:
        self.service, self.parent = service, parent
        self._next: ServedGeneration | None = None
        self._asking, self._sending = threading.Lock(), threading.Lock()
        self._answers: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()

    def reload(self) -> dict[str, object]:
        """Ask the parent to switch all workers; return what is served then."""
        if not self._asking.acquire(blocking=False):
            raise HTTPException(409, "another reload is in progress")
        try:
            self._send(("reload",))
            status, content = self._answers.get()
        finally:
            self._asking.release()
        if status != 200:
            raise HTTPException(status, content)
        return dict(content)

    def _send(self, message: tuple[Any, ...]) -> None:
        with self._sending:
            self.parent.send(message)

    def follow(self) -> None:
        """Do what the parent says until it ends."""
        while True:
            try:
                what, *given = self.parent.recv()
            except (EOFError, OSError):
                return
            if what == "answer":
                self._answers.put((given[0], given[1]))
            elif what == "load":
                self._send(self._load(*given))
            elif what == "drop":
                self._next = None
            elif self._next is not None:
                new, self._next = self._next, None
                self.service.switch(new)
                self._send((describe(new, switched=True),))

    def _load(self, served: ServedFiles, verify: bool) -> tuple[Any, ...]:
        """Load the next generation; return the answer to the parent: that it is loaded, or a status and a reason."""
        try:
            if not self.service.settle(SETTLE_SECONDS):
                raise HTTPException(409, UNSETTLED)
            with refusals():
                collection = open_copies(served, verify)
                server.check_and_warm_up(collection, served.copies)
                new = ServedGeneration(collection, served.number, served.source.alias)
                self._next = self.service.made_ready(new)
        except HTTPException as error:
            return error.status_code, served.in_originals(error.detail)
        except Exception:
            log.exception("reload failed")
            return 500, "internal error; the server's log describes it"
        return ("loaded",)
