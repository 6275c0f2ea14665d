"""``dish serve --workers``: several processes that serve one index on one address.

The parent opens the socket, starts the workers, replaces one that dies, and stops them all. It copies the model and
the index to a temporary folder, and every worker maps the index from there, so that its codes are in memory once.
Whatever happens to the files meanwhile (replaced, overwritten, cut), all workers serve the same index, also those
that start later. To map the original would not do: ``cp`` over a mapped file ends its readers with SIGBUS, and a
hard link shares that fate. None of the workers may change the index.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path

from dish.errors import InputError
from dish.machine import usable_cores
from dish.web import server
from dish.web.index_writer import check_served_alone
from dish.web.limits import Limits
from dish.web.logs import start_log
from dish.web.prometheus_metrics import METRICS_FOLDER, forget_worker
from dish.web.sockets import limits_for_host, listen, url

STOP_SECONDS = 20  # for a worker to end; its requests have ten of them
MAX_DEATHS = 5  # per minute
READ_ONLY = "its workers share one index that none of them may change; use --writable without --workers"

log = logging.getLogger("dish.web")
context = multiprocessing.get_context("spawn")  # threads of torch and numba do not survive a fork


@dataclass(frozen=True)
class ServedFiles:
    """What every worker serves."""

    model: Path
    index: Path
    images: Path | None = None
    takes: str | None = None
    title: str | None = None
    copies: Path = Path()  # the folder with copies of model and index

    def copy_of(self, original: Path) -> Path:
        """Return the path of a file's copy."""
        return self.copies / f"{'model' if original == self.model else 'index'}.dish"


class Worker:
    """A worker process, as the parent sees it."""

    def __init__(self, files: ServedFiles, limits: Limits, listener: socket.socket, verify: bool) -> None:
        self.messages, worker_end = context.Pipe(duplex=False)
        self.process = context.Process(
            target=run_worker, args=(files, limits, listener, verify, worker_end), daemon=True
        )
        self.process.start()
        worker_end.close()

    def wait_until_ready(self) -> int:
        """Return the number of items it serves, or raise the error that keeps it from serving."""
        try:
            message: int | str = self.messages.recv()
        except EOFError:
            self.process.join()
            raise RuntimeError(f"a worker ended while starting (exit code {self.process.exitcode})") from None
        if isinstance(message, str):
            raise InputError(message)
        return message

    def stop(self) -> None:
        """Wait until the worker has ended; kill it if it takes too long."""
        self.process.join(STOP_SECONDS)
        self.process.kill()
        self.process.join()
        self.messages.close()


class WorkerPool:
    """The workers of a server."""

    def __init__(self, files: ServedFiles, limits: Limits, listener: socket.socket, n_workers: int) -> None:
        self.files, self.limits, self.listener = files, limits, listener
        self.workers = [self._start(verify=i == 0) for i in range(n_workers)]
        self.deaths: deque[float] = deque(maxlen=MAX_DEATHS)

    def _start(self, verify: bool = False) -> Worker:
        return Worker(self.files, self.limits, self.listener, verify)

    def run(self, host: str) -> None:
        """Announce the address once all workers are ready, and replace dead workers until a signal arrives."""
        try:
            n_items = [worker.wait_until_ready() for worker in self.workers]
            log.info("workers", extra={"fields": {"pids": [worker.process.pid for worker in self.workers]}})
            print(f"dish: serving {n_items[0]:,} items on {url(host, self.listener)}  (Control-C stops)", flush=True)
            while True:
                wait([worker.process.sentinel for worker in self.workers])
                self._replace_dead()
        finally:
            self._stop()

    def _replace_dead(self) -> None:
        """Replace dead workers. One that cannot start counts as dead; the others serve meanwhile."""
        for i, worker in enumerate(self.workers):
            if worker.process.is_alive():
                continue
            pid, code = worker.process.pid or 0, worker.process.exitcode
            worker.stop()
            forget_worker(pid)
            log.error("a worker died", extra={"fields": {"pid": pid, "exit_code": code}})
            now = time.monotonic()
            if len(self.deaths) == MAX_DEATHS and now - self.deaths[0] < 60:
                raise RuntimeError(f"workers keep dying (exit code {code}): see the log")
            self.deaths.append(now)
            self.workers[i] = self._start()
            try:
                self.workers[i].wait_until_ready()
            except (InputError, RuntimeError):
                log.exception("a worker could not start")

    def _stop(self) -> None:
        """Stop all workers at once. They finish their requests; a second Control-C kills them."""
        try:
            for worker in self.workers:
                worker.process.terminate()
            for worker in self.workers:
                worker.stop()
        except BaseException:
            for worker in self.workers:
                worker.process.kill()
            raise


def serve(
    files: ServedFiles, limits: Limits, workers: int, *, host: str, port: int, allowed_hosts: Sequence[str] = ()
) -> None:
    """Serve until SIGTERM or Control-C. Prints the address on standard output once all workers are ready."""
    with closing(listen(host, port)) as listener, tempfile.TemporaryDirectory(prefix="dish-workers-") as folder:
        files = _copied(files, Path(folder))
        limits = limits_for_host(limits, host, allowed_hosts)
        signal.signal(signal.SIGTERM, server.exit_process)
        os.environ[METRICS_FOLDER] = folder  # the workers inherit the environment
        for variable in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS"):
            os.environ.setdefault(variable, str(max(1, usable_cores() // workers)))
        WorkerPool(files, limits, listener, workers).run(host)


def _copied(files: ServedFiles, folder: Path) -> ServedFiles:
    """Copy model and index to a folder that nobody else changes."""
    check_served_alone(Path(os.path.realpath(files.index)))
    files = replace(files, copies=folder)
    for original in (files.model, files.index):
        try:
            shutil.copyfile(original, files.copy_of(original))
        except OSError as error:
            if error.filename == str(original):
                raise
            raise OSError(
                f"{original} cannot be copied to {folder}, which the workers need ({error.strerror}): set TMPDIR to "
                "a folder with enough space"
            ) from error
    return files


def run_worker(files: ServedFiles, limits: Limits, listener: socket.socket, verify: bool, parent: Connection) -> None:
    """Serve in a worker process. Sends the number of items, or an error message, to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Control-C reaches all processes; the parent stops the workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    start_log()
    try:
        collection = server.open_collection(
            files.copy_of(files.model),
            files.copy_of(files.index),
            images=files.images,
            takes=files.takes,
            title=files.title or server.default_title(files.index, files.images),
            mapped=True,
            verify=verify,
        )
        collection.read_only_reason = READ_ONLY
        server.warm_up(collection)
    except Exception as error:
        log.debug("cannot serve", exc_info=True)
        message = str(error) or type(error).__name__
        for original in (files.model, files.index):
            message = message.replace(str(files.copy_of(original)), str(original))
        parent.send(message)
        sys.exit(2)
    server.run(collection, limits, listener, lambda: parent.send(len(collection)))


def _end_with_parent() -> None:
    """Wait until the parent has ended, then end this process: a parent that was killed leaves no worker behind."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    shutil.rmtree(os.environ[METRICS_FOLDER], ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)
