"""``dish serve --workers``: several processes that serve one index on one address.

The parent opens the socket, starts the workers, replaces one that dies, and stops them all. It copies the model and
the index to a temporary folder, and every worker maps the index from there, so that its codes are in memory once.
Whatever happens to the files meanwhile (replaced, overwritten, cut), all workers serve the same index, also those
that start later. They cannot map the original: ``cp`` over a mapped file kills its readers with SIGBUS, also those
that mapped it through a hard link. None of the workers may change the index.

A reload has two steps: first every worker loads the new files, next to those that it serves; then, only if all of
them have, every worker switches. ``following`` is the workers' side.
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
from contextlib import closing, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException

from dish.errors import InputError
from dish.machine import usable_cores
from dish.web import server
from dish.web.app import create_app
from dish.web.following import Follower, ServedFiles, open_copies
from dish.web.limits import Limits
from dish.web.logs import start_log
from dish.web.prometheus_metrics import METRICS_FOLDER, forget_worker
from dish.web.reload import STAYS, on_hangup, refusals, reload_and_log
from dish.web.sockets import limits_for_host, listen, url
from dish.web.source import Source

STOP_SECONDS = 20  # for a worker to end; its requests have ten of them
MAX_DEATHS = 5  # per minute

log = logging.getLogger("dish.web")
context = multiprocessing.get_context("spawn")  # threads of torch and numba do not survive a fork


class Worker:
    """A worker process, as the parent sees it."""

    def __init__(self, served: ServedFiles, limits: Limits, listener: socket.socket, verify: bool) -> None:
        self.messages, worker_end = context.Pipe()
        self.process = context.Process(
            target=run_worker, args=(served, limits, listener, verify, worker_end), daemon=True
        )
        self.process.start()
        worker_end.close()

    def wait_until_ready(self) -> int:
        """Return the number of items it serves, or raise the error that keeps it from serving."""
        try:
            message: int | str = self.messages.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            raise RuntimeError(f"a worker ended while starting (exit code {self.process.exitcode})") from None
        if isinstance(message, str):
            raise InputError(message)
        return message

    def send(self, *message: Any) -> None:
        """Send a message, unless the worker has died: whoever waits for its answer will notice."""
        with suppress(OSError):
            self.messages.send(message)

    def receive(self) -> tuple[Any, ...]:
        """Return the answer to a message. Requests to reload are refused meanwhile. Raises if the worker has died."""
        try:
            while (message := self.messages.recv()) == ("reload",):
                self.send("answer", 409, "another reload is in progress")
        except (EOFError, ConnectionError):
            raise HTTPException(503, f"a worker ended while it was loading. {STAYS}") from None
        return tuple(message)

    def wants_reload(self) -> bool:
        """Return whether the worker has been asked to reload."""
        try:
            return bool(self.messages.poll() and self.messages.recv() == ("reload",))
        except (EOFError, OSError):  # it has died
            return False

    def stop(self) -> None:
        """Wait until the worker has ended; kill it if it takes too long."""
        self.process.join(STOP_SECONDS)
        self.process.kill()
        self.process.join()
        self.messages.close()


class WorkerPool:
    """The workers of a server."""

    def __init__(self, served: ServedFiles, limits: Limits, listener: socket.socket, n_workers: int) -> None:
        self.served, self.limits, self.listener = served, limits, listener
        self.workers = [self._start(verify=i == 0) for i in range(n_workers)]
        self.deaths: deque[float] = deque(maxlen=MAX_DEATHS)
        self.hangup, self._hung_up = socket.socketpair()  # SIGHUP writes to it, so that ``wait`` returns
        self._hung_up.setblocking(False)

    def _start(self, verify: bool = False) -> Worker:
        return Worker(self.served, self.limits, self.listener, verify)

    def run(self, host: str) -> None:
        """Announce the address once all workers are ready; replace dead workers and reload until a signal arrives."""
        try:
            n_items = [worker.wait_until_ready() for worker in self.workers]
            log.info("workers", extra={"fields": {"pids": [worker.process.pid for worker in self.workers]}})
            on_hangup(self._note_hangup)
            print(f"dish: serving {n_items[0]:,} items on {url(host, self.listener)}  (Control-C stops)", flush=True)
            while True:
                ends = [end for worker in self.workers for end in (worker.process.sentinel, worker.messages)]
                if self.hangup in wait([*ends, self.hangup]):
                    self.hangup.recv(100)
                    reload_and_log(self._reload)
                for worker in self.workers:
                    if worker.wants_reload():
                        worker.send("answer", *self._answer_to_reload())
                self._replace_dead()
        finally:
            self._stop()

    def _note_hangup(self) -> None:
        with suppress(BlockingIOError):  # there are many already
            self._hung_up.send(b"1")

    def _answer_to_reload(self) -> tuple[int, Any]:
        """Reload; return the status and the content of the answer."""
        try:
            return 200, self._reload()
        except HTTPException as error:
            return error.status_code, error.detail
        except Exception:
            log.exception("reload failed")
            return 500, f"internal error; the server's log describes it. {STAYS}"

    def _reload(self) -> dict[str, Any]:
        """Let all workers load what the source names now, then let all of them switch."""
        old = self.served
        with refusals():
            new = ServedFiles.copied(old.source, old.folder, old.number + 1)
        workers = [worker for worker in self.workers if worker.process.is_alive()]
        try:
            for i, worker in enumerate(workers):
                worker.send("load", new, i == 0)  # one verifies the checksum
            refused = [answer for worker in workers if (answer := worker.receive()) != ("loaded",)]
            if refused:
                raise HTTPException(*refused[0])
        except BaseException:
            for worker in workers:
                worker.send("drop")
            new.remove()
            raise
        self.served = new  # from here on, also for those that replace a dead one
        start = time.perf_counter()
        for worker in workers:
            worker.send("switch")
        answers = []
        for worker in workers:
            with suppress(HTTPException):  # it has died, and its successor serves the new files
                answers.append(worker.receive())
        ms = round(1000 * (time.perf_counter() - start), 1)
        log.info("all workers switched", extra={"fields": {"generation": new.number, "ms": ms}})
        old.remove()
        return {"generation": new.number} if not answers else answers[0][0]

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
                worker.send("answer", 503, "the server is stopping")  # to a request that waits for a reload
                worker.process.terminate()
            for worker in self.workers:
                worker.stop()
        except BaseException:
            for worker in self.workers:
                worker.process.kill()
            raise


def serve(
    source: Source, limits: Limits, workers: int, *, host: str, port: int, allowed_hosts: Sequence[str] = ()
) -> None:
    """Serve until SIGTERM or Control-C. Prints the address on standard output once all workers are ready."""
    with closing(listen(host, port)) as listener, tempfile.TemporaryDirectory(prefix="dish-workers-") as folder:
        served = ServedFiles.copied(source, Path(folder), 1)
        limits = limits_for_host(limits, host, allowed_hosts)
        signal.signal(signal.SIGTERM, server.exit_process)
        os.environ[METRICS_FOLDER] = folder  # the workers inherit the environment
        for variable in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS"):
            os.environ.setdefault(variable, str(max(1, usable_cores() // workers)))
        WorkerPool(served, limits, listener, workers).run(host)


def run_worker(
    served: ServedFiles, limits: Limits, listener: socket.socket, verify: bool, parent: Connection
) -> None:
    """Serve in a worker process. Sends the number of items, or an error message, to the parent."""
    for name in ("SIGINT", "SIGHUP"):  # they may reach all processes; the parent tells the workers what to do
        if hasattr(signal, name):  # Windows has no SIGHUP
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    start_log()
    try:
        collection = open_copies(served, verify)
        server.warm_up(collection)
    except Exception as error:
        log.debug("cannot serve", exc_info=True)
        parent.send(served.in_originals(str(error) or type(error).__name__))
        sys.exit(2)
    service = create_app(collection, limits, alias=served.source.alias, number=served.number)
    follower = Follower(service, parent)
    service.reload = follower.reload

    def announce() -> None:
        parent.send(len(collection))
        threading.Thread(target=follower.follow, name="dish-follow", daemon=True).start()

    server.run(service, listener, announce)


def _end_with_parent() -> None:
    """Wait until the parent has ended, then end this process: a parent that was killed leaves no worker behind."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    shutil.rmtree(os.environ[METRICS_FOLDER], ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)
