"""A real `dish serve` to attack, and many sockets to do it with."""

from __future__ import annotations

import http.client
import json
import os
import resource
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from sklearn.datasets import load_digits

from dish import DISH, HammingIndex

X = load_digits().data
START = """
import sys, dish.web.collection as collection
collection.JOURNAL_LIMIT = int(sys.argv.pop(1))
from dish.cli import main
main()
"""


class Server:
    """A real server process; killed by its own process id."""

    def __init__(self, folder: Path, *options: str, journal: int = 64 << 20, file_bytes: int | None = None) -> None:
        call = [sys.executable, "-c", START, str(journal), "serve", "--model", folder / "m.dish", "--port", "0"]
        limit = None if file_bytes is None else (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes,) * 2))
        self.process = subprocess.Popen(
            [*map(str, call), "--index", str(folder / "ix.dish"), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            preexec_fn=limit,
        )
        line = self.process.stdout.readline() if self.process.stdout else ""
        if "http://" not in line:
            raise RuntimeError(f"the server did not start (exit code {self.process.wait(10)})")
        self.port = int(line.split("127.0.0.1:")[1].split("/")[0])

    def ask(self, method: str, path: str, body: bytes | None = None, timeout: float = 60, **headers: str) -> Any:
        """Status and content."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): v for name, v in headers.items()})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def post(self, path: str, content: Any) -> Any:
        """Status and content of a JSON body."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        return self.ask("POST", path, body, content_type="application/json")

    def seconds_of(self, path: str) -> float:
        """How long a good client waits; infinity if it gets no answer."""
        start = time.perf_counter()
        with suppress(OSError, http.client.HTTPException):
            if self.ask("GET", path, timeout=10)[0] == 200:
                return time.perf_counter() - start
        return float("inf")

    def status(self, name: str) -> int:
        """A figure of the process in kB, or a count."""
        if name == "files":
            return len(os.listdir(f"/proc/{self.process.pid}/fd"))
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name))

    def stop(self, kill: bool = False) -> int:
        """The exit code."""
        if self.process.poll() is None:
            self.process.kill() if kill else self.process.terminate()
        code = self.process.wait(60)
        if self.process.stdout:
            self.process.stdout.close()
        return code


def prepare(folder: Path) -> None:
    """A model and an index of 1,000 items."""
    y = load_digits().target
    hasher = DISH(n_bits=64, n_anchors=100).fit(X, y)
    hasher.save(folder / "m.dish")
    index = HammingIndex(64)
    index.add(hasher.transform(X[:1000]), ids=[f"item{i}" for i in range(1000)], labels=[str(v) for v in y[:1000]])
    index.save(folder / "ix.dish")


def connect(server: Server, n: int, send: bytes = b"") -> list[socket.socket]:
    sockets: list[socket.socket] = []
    for _ in range(n):
        with suppress(OSError):
            one = socket.create_connection(("127.0.0.1", server.port), timeout=3)
            sockets.append(one)
            one.sendall(send)
    return sockets


def count_open(sockets: list[socket.socket]) -> int:
    alive = 0
    for one in sockets:
        one.settimeout(0.01)
        try:
            while one.recv(10_000):
                pass
        except TimeoutError:
            alive += 1
        except OSError:
            pass
    return alive


def close(sockets: list[socket.socket]) -> None:
    for one in sockets:
        one.close()
