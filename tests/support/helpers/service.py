"""A real `dish serve` process, and many connections to it."""

from __future__ import annotations

import http.client
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from sklearn.datasets import load_digits

from dish import DISH, HammingIndex

X = load_digits().data
START = """
import sys, dish.web.index_writer as index_writer
index_writer.JOURNAL_LIMIT = int(sys.argv.pop(1))
from dish.cli import main
main()
"""


WATCH = """
import http.client, json, select, sys, time
seen = []
print("watching", flush=True)
while not select.select([sys.stdin], [], [], 0.005)[0]:
    start = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=60)
    try:
        connection.request("GET", "/health")
        answered = connection.getresponse().status == 200
    except OSError:
        answered = False
    connection.close()
    seen.append(time.perf_counter() - start if answered else 60.0)
print(json.dumps(seen))
"""


class Server:
    """`dish serve` on a free port, with the model m.dish and the index ix.dish of a folder. Logs to folder/log.

    ``alias`` is an alias to serve instead. ``journal`` replaces the size of the journal beyond which the index is
    written. ``file_bytes`` limits the size of files, like a full disk.
    """

    def __init__(
        self,
        folder: Path,
        *options: Any,
        journal: int | None = None,
        file_bytes: int | None = None,
        env: dict[str, str] | None = None,
        alias: Path | None = None,
    ) -> None:
        command = ["-m", "dish"] if journal is None else ["-c", START, journal]
        files = ["--model", folder / "m.dish", "--index", folder / "ix.dish"] if alias is None else [alias]
        self.call = [*map(str, (sys.executable, *command, "serve", *files, "--port", "0", *options))]
        limit = None if file_bytes is None else (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes,) * 2))
        with open(folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                self.call,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                preexec_fn=limit,
                env={**os.environ, **(env or {})},
            )
        line = self.process.stdout.readline() if self.process.stdout else ""
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        if not found:
            raise RuntimeError(f"the server did not start ({self.process.wait(10)}): {(folder / 'log').read_text()}")
        self.url, self.port = found[0], int(found[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(kill=True)

    def stop(self, kill: bool = False) -> int:
        """Stop the process and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        code = self.process.wait(60)
        if self.process.stdout:
            self.process.stdout.close()
        return code

    def ask(self, method: str, path: str, body: bytes | None = None, timeout: float = 60, **headers: str) -> Any:
        """Return status and content."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): v for name, v in headers.items()})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def post(self, path: str, content: Any) -> Any:
        """Post JSON; return status and content."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        return self.ask("POST", path, body, content_type="application/json")

    def seconds_of(self, path: str) -> float:
        """Return how long a well-behaved client waits, infinity if it gets no answer."""
        start = time.perf_counter()
        with suppress(OSError, http.client.HTTPException):
            if self.ask("GET", path, timeout=10)[0] == 200:
                return time.perf_counter() - start
        return float("inf")

    def status(self, name: str) -> int:
        """Return a number from the process's status, such as VmHWM in kB, or its number of open "files"."""
        if name == "files":
            return len(os.listdir(f"/proc/{self.process.pid}/fd"))
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name))

    def reset_peak(self) -> int:
        """Let VmHWM, the largest memory, start again from the present memory; return that in kB."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        return self.status("VmRSS")

    @contextmanager
    def watched(self) -> Iterator[list[float]]:
        """Ask for /health in another process during the block; the list then has the seconds of each answer."""
        seconds: list[float] = []
        call = [sys.executable, "-c", WATCH, str(self.port)]
        with subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as watch:
            assert watch.stdout is not None
            watch.stdout.readline()  # it has begun
            try:
                yield seconds
            finally:
                seconds += json.loads(watch.communicate()[0])


def prepare(folder: Path) -> None:
    """Write a model and an index of 1,000 items."""
    y = load_digits().target
    hasher = DISH(n_bits=64, n_anchors=100).fit(X, y)
    hasher.save(folder / "m.dish")
    index = HammingIndex(64)
    index.add(hasher.transform(X[:1000]), ids=[f"item{i}" for i in range(1000)], labels=[str(v) for v in y[:1000]])
    index.save(folder / "ix.dish")


# --- connections ---


def connect(port: int, n: int, send: bytes = b"") -> list[socket.socket]:
    """Open n connections that send the same bytes. Those that are refused are left out."""
    sockets: list[socket.socket] = []
    for _ in range(n):
        with suppress(OSError):
            sockets.append(socket.create_connection(("127.0.0.1", port), timeout=5))
            sockets[-1].sendall(send)
    return sockets


def is_open(connection: socket.socket) -> bool:
    """Return whether the server has not closed the connection."""
    connection.settimeout(0.02)
    try:
        while connection.recv(10_000):
            pass
    except TimeoutError:
        return True
    except OSError:
        pass
    return False


def close(sockets: list[socket.socket]) -> None:
    """Close connections."""
    for one in sockets:
        one.close()
