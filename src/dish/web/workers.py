"""Several processes that answer on one address over one index, mapped from its file: ``dish serve --workers``.

The parent answers nothing. It holds the sockets, starts the workers, replaces one that dies, and stops them all. A
worker reads what to serve from its standard input, says on its standard output that it is ready, and ends when its
standard input does: a parent that was killed leaves nobody behind.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from dish.errors import InputError
from dish.machine import usable_cores
from dish.web.logs import start_log
from dish.web.middleware import Limits
from dish.web.sockets import listen, prepared, url

END_SECONDS = 20  # for a worker to end: its requests have ten of them
CHECK_SECONDS = 0.2  # between two looks at whether all workers live
DEATHS = 5  # in a minute: more of them, and the server gives up
SHARED = "PROMETHEUS_MULTIPROC_DIR"
READ_ONLY = "its workers share one index, which none of them may change; --writable takes one process, no --workers"

log = logging.getLogger("dish.web")


@dataclass(frozen=True)
class Served:
    """What every worker serves."""

    model: Path
    index: Path
    images: Path | None = None
    takes: str | None = None
    title: str | None = None


class Worker:
    """One process, from the parent's side."""

    def __init__(
        self, served: Served, limits: Limits, listener: socket.socket, env: dict[str, str], verify: bool = False
    ) -> None:
        told = {"served": asdict(served), "limits": asdict(limits), "socket": listener.fileno(), "verify": verify}
        self.listener = listener
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dish.web.workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(listener.fileno(),),
            env=env,
            start_new_session=True,  # Control-C is the parent's to hear: it stops the workers
            text=True,
        )
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has died: ``wait_until_ready`` says so
            self.process.stdin.write(json.dumps(told, default=str) + "\n")
            self.process.stdin.flush()

    def wait_until_ready(self) -> int:
        """The number of items it serves; an error where it cannot serve."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a worker ended before it was ready (exit code {self.process.wait()})")
        said = json.loads(line)
        if "error" in said:
            raise InputError(said["error"])
        return int(said["items"])

    def stop(self, kill: bool) -> None:
        """Tell it to end, or end it."""
        if self.process.poll() is None:
            self.process.kill() if kill else self.process.terminate()

    def close(self) -> None:
        """Wait for its end, and let go of its pipes."""
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


def serve(
    served: Served, limits: Limits, workers: int, *, host: str, port: int, allowed_hosts: Sequence[str] = ()
) -> None:
    """Serve until told to stop. Prints the address on standard output once all workers are ready."""
    listeners = listen(host, port, workers)
    limits = prepared(limits, host, allowed_hosts)
    limits = replace(limits, wrong_tokens=max(1, limits.wrong_tokens // workers))  # a guesser may meet all of them
    signal.signal(signal.SIGTERM, _end)
    with tempfile.TemporaryDirectory(prefix="dish-workers-") as counters:
        Pool(served, limits, listeners, _environment(workers, counters)).run(host)


class Pool:
    """The workers of a server, each with a socket of its own."""

    def __init__(self, served: Served, limits: Limits, listeners: list[socket.socket], env: dict[str, str]) -> None:
        self.served, self.limits, self.listeners, self.env = served, limits, listeners, env
        self.workers: list[Worker] = []
        self.deaths: deque[float] = deque(maxlen=DEATHS)

    def run(self, host: str) -> None:
        """Start the workers, and keep them alive until a signal ends this."""
        try:
            for i, listener in enumerate(self.listeners):
                self.workers.append(Worker(self.served, self.limits, listener, self.env, verify=i == 0))
            items = [worker.wait_until_ready() for worker in self.workers]
            where = url(host, self.listeners[0])
            log.info("workers", extra={"fields": {"pids": [worker.process.pid for worker in self.workers]}})
            print(f"dish: serving {items[0]:,} items on {where}  (Control-C stops)", flush=True)
            while True:
                time.sleep(CHECK_SECONDS)
                self._replace_dead()
        finally:
            self._stop()

    def _replace_dead(self) -> None:
        """A new worker on the socket of one that died: connections that wait there are answered by it."""
        for i, worker in enumerate(self.workers):
            code = worker.process.poll()
            if code is None:
                continue
            worker.close()
            self._forget(worker.process.pid)
            log.error("a worker died", extra={"fields": {"pid": worker.process.pid, "exit_code": code}})
            now = time.monotonic()
            if len(self.deaths) == DEATHS and now - self.deaths[0] < 60:
                raise RuntimeError(f"workers keep dying (exit code {code}): the log says why")
            self.deaths.append(now)
            self.workers[i] = Worker(self.served, self.limits, worker.listener, self.env)
            self.workers[i].wait_until_ready()

    def _forget(self, pid: int) -> None:
        """What a dead worker had under way is under way no more; what it counted still counts."""
        for file in Path(self.env[SHARED]).glob(f"gauge_live*_{pid}.db"):
            file.unlink(missing_ok=True)

    def _stop(self) -> None:
        """All of them at once; the second Control-C does not wait for requests under way."""
        try:
            for worker in self.workers:
                worker.stop(kill=False)
            for worker in self.workers:
                worker.close()
        except BaseException:
            for worker in self.workers:
                worker.stop(kill=True)
            raise
        finally:
            for listener in self.listeners:
                listener.close()


def _environment(workers: int, counters: str) -> dict[str, str]:
    """Workers share the cores out, unless the caller has said how many threads they have, and count in one folder."""
    threads = str(max(1, usable_cores() // workers))
    return {"NUMBA_NUM_THREADS": threads, "OMP_NUM_THREADS": threads, **os.environ, SHARED: counters}


def _end(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(0)


# --- the worker's side ---


def main() -> None:
    """Serve what the standard input says."""
    told = json.loads(sys.stdin.readline())
    signal.signal(signal.SIGTERM, _end)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    start_log()
    try:
        from dish.web import server

        served = Served(**told["served"])
        collection = server.open_collection(
            Path(served.model),
            Path(served.index),
            images=None if served.images is None else Path(served.images),
            takes=served.takes,
            title=served.title,
            mapped=True,
            verify=told["verify"],
        )
        collection.to_write = READ_ONLY
        server.warm_up(collection)
    except Exception as error:
        log.debug("not served", exc_info=True)
        _say({"error": str(error) or type(error).__name__})
        sys.exit(2)
    limits: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in told["limits"].items()}
    listener = socket.socket(fileno=told["socket"])
    server.run(collection, Limits(**limits), listener, lambda: _say({"items": len(collection)}))


def _say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


def _end_with_parent() -> None:
    sys.stdin.read()  # the parent never closes it while it lives
    shutil.rmtree(os.environ[SHARED], ignore_errors=True)  # nobody else is left to do it
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
