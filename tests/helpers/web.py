"""A small service to test: what is served, pictures to send, and `dish serve` as a real process."""

import io
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import time
import zlib
from contextlib import contextmanager

import numpy as np
import uvicorn
from PIL import Image
from starlette.testclient import TestClient

from dish.index.hamming import HammingIndex
from dish.web.app import create_app
from dish.web.collection import Collection
from dish.web.connections import protocol_of
from dish.web.journal import Journal
from dish.web.middleware import Limits

JSON = {"content-type": "application/json"}


def make_index(learned):
    hasher, X, y, ids = learned
    index = HammingIndex(32)
    index.add(hasher.transform(X), ids=ids, labels=[f"digit {v}" for v in y])
    return index


def make_client(learned, limits=None, **options):
    options.setdefault("takes", "digits8")
    app = create_app(Collection(learned[0], make_index(learned), **options), limits)
    return TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)


def png(pixels, kind="PNG"):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def ink(row):
    """A row of digits as the picture the page shows: dark on white."""
    return (255 - row.reshape(8, 8) * 255 / 16).astype(np.uint8)


def upload(client, data, path="/search", **fields):
    return client.post(path, files={"image": ("x.png", data)}, data=fields)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(side):
    """A PNG that says it is side × side and is a few kB: all zeros, well compressed."""
    lines = zlib.compress(b"\0" * 1_000_000, 9)
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", lines) + chunk(b"IEND", b"")


class Slow:
    """A hasher that waits until it is let go."""

    def __init__(self, hasher):
        self.hasher, self.n_bits, self.n_features_in_ = hasher, hasher.n_bits, hasher.n_features_in_
        self.go, self.started = threading.Event(), threading.Semaphore(0)

    def transform(self, X):
        self.started.release()
        assert self.go.wait(20)
        return self.hasher.transform(X)


def writable(learned, folder):
    path = folder / "ix.dish"
    if not path.exists():
        make_index(learned).save(path)
    return Collection(learned[0], HammingIndex.load(path), journal=Journal(folder / "ix.dish.journal.db"), path=path)


class Server:
    """`dish serve` on a free port of this machine; stopped by its own process id."""

    def __init__(self, folder, *options, env=None):
        call = [sys.executable, "-m", "dish", "serve", "--model", folder / "m.dish", "--index", folder / "ix.dish"]
        self.call = [*map(str, call), "--port", "0", *map(str, options)]
        self.log = open(folder / "log", "ab")  # noqa: SIM115
        self.process = subprocess.Popen(
            self.call,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={**os.environ, **(env or {})},
        )
        line = self.process.stdout.readline()
        assert "http://" in line, (folder / "log").read_text()
        self.url = re.search(r"http://[^/]+", line)[0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        self.process.stdout.close()
        self.log.close()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)


@contextmanager
def listening(collection, **limits):
    """The address of a service in a thread of this process, with its limits on connections."""
    limits = Limits(**limits)
    config = uvicorn.Config(
        create_app(collection, limits),
        http=protocol_of(limits),
        port=0,
        log_config=None,
        timeout_keep_alive=limits.idle_seconds,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.started
    try:
        yield server.servers[0].sockets[0].getsockname()
    finally:
        server.should_exit = True
        thread.join(15)
