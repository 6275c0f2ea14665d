"""Switching a server to another collection: load and verify it next to the running one, warm it up, switch.

If anything fails, the running collection stays. ``Reloader`` is for one process; with several workers, the parent
switches them all (``workers``).
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from starlette.exceptions import HTTPException

from dish.alias import CollectionFiles
from dish.errors import DishError, FileReplacedError, InputError
from dish.registry import load
from dish.web.collection import Collection
from dish.web.generations import ServedGeneration, Service
from dish.web.source import Source

SETTLE_SECONDS = 10.0  # for the requests of the last but one generation
UNSETTLED = "requests to the collection before this one are still in progress; try again"
STAYS = "The server continues with the files that it serves now"

log = logging.getLogger("dish.web")


class Reloader:
    """Opens the next collection of a server and switches to it. One call at a time; others are refused.

    ``prepare`` opens the files of a source, verifies them, and makes sure that no request waits for a first use.
    """

    def __init__(
        self, service: Service, source: Source, prepare: Callable[[Source, CollectionFiles], Collection]
    ) -> None:
        self.service, self.source, self.prepare = service, source, prepare
        self._busy = threading.Lock()

    def __call__(self) -> dict[str, object]:
        """Switch, and describe what is served now. Raises an HTTPException if the running collection stays."""
        if not self._busy.acquire(blocking=False):
            raise HTTPException(409, "another reload is in progress")
        try:
            with refusals():
                return self._switch()
        finally:
            self._busy.release()

    def _switch(self) -> dict[str, object]:
        if not self.service.settle(SETTLE_SECONDS):
            raise HTTPException(409, UNSETTLED)
        old, files = self.service.now, self.source.files
        if is_open(old.collection, files):
            return describe(old, switched=False)
        collection = self.prepare(self.source, files)
        try:
            new = self.service.made_ready(ServedGeneration(collection, old.number + 1, self.source.alias))
            old.collection.save()  # what it has acknowledged is in its file before the switch, or there is none
            self.service.switch(new)
        except BaseException:
            collection.close()
            raise
        return describe(new, switched=True)


def is_open(collection: Collection, files: CollectionFiles) -> bool:
    """Return whether these files name the index that a writable collection has open.

    Raises FileReplacedError if another program has replaced the file of that index: it is not overwritten, and the
    journal next to it belongs to the index in memory. Raises InputError if they name another model for it.
    """
    if collection.writer is None:
        return False
    collection.writer.file.check_unchanged()
    if os.path.realpath(files.index) != str(collection.writer.file.path):
        return False
    if getattr(load(files.model), "fingerprint_", None) != collection.fingerprint:
        raise InputError(
            f"{files.index} is open with another model than {files.model}: build an index for that model"
        )
    return True


def describe(generation: ServedGeneration, switched: bool) -> dict[str, object]:
    """Return the answer to /admin/reload."""
    collection = generation.collection
    return {
        "switched": switched,
        "alias": generation.alias,
        "generation": generation.number,
        "fingerprint": collection.fingerprint,
        "n_bits": collection.n_bits,
        "size": len(collection),
    }


@contextmanager
def refusals() -> Iterator[None]:
    """Turn the errors of a reload into answers: 409 if the files are refused, 503 if the machine failed."""
    try:
        yield
    except FileReplacedError as error:
        raise HTTPException(409, f"{error}. {STAYS}. Build the new index under another name") from error
    except (DishError, FileNotFoundError) as error:
        raise HTTPException(409, f"{error}. {STAYS}") from error
    except (OSError, MemoryError) as error:
        raise HTTPException(503, f"{str(error) or type(error).__name__}. {STAYS}") from error


def reload_and_log(reload: Callable[[], object]) -> None:
    """Reload for a caller who cannot be answered: the log says why it was refused."""
    try:
        reload()
    except HTTPException as error:
        log.error("reload refused", extra={"fields": {"reason": error.detail}})
    except Exception:
        log.exception("reload failed")


def on_hangup(act: Callable[[], object]) -> None:
    """Call a function, which must be quick, on SIGHUP."""

    def handle(number: int, frame: FrameType | None) -> None:
        act()

    if hasattr(signal, "SIGHUP"):  # Windows has none
        signal.signal(signal.SIGHUP, handle)
