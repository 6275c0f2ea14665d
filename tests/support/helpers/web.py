"""A small service to test: a collection of digits, pictures to upload, and a server in a thread."""

import asyncio
import io
import struct
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import uvicorn
from PIL import Image
from starlette.testclient import TestClient

from dish.index.hamming import HammingIndex
from dish.web.app import create_app
from dish.web.collection import Collection
from dish.web.index_writer import IndexWriter
from dish.web.limits import Limits
from dish.web.server import server_config

JSON = {"content-type": "application/json"}


def run_async(coroutine):
    """Run a coroutine in its own thread: once a browser is open, Playwright's event loop runs in the main thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def make_index(learned):
    hasher, X, y, ids = learned
    index = HammingIndex(32)
    index.add(hasher.transform(X), ids=ids, labels=[f"digit {v}" for v in y])
    return index


def make_client(learned, limits=None, **options):
    options.setdefault("takes", "digits8")
    app = create_app(Collection(learned[0], make_index(learned), **options), limits)
    return TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)


def writable(learned, folder, **options):
    """A writable collection whose index is in a folder."""
    path = folder / "ix.dish"
    if not path.exists():
        make_index(learned).save(path)
    writer = IndexWriter(path)
    return Collection(learned[0], writer.index, writer=writer, **options)


class BlockedHasher:
    """A hasher that waits in ``transform`` until ``go`` is set."""

    def __init__(self, hasher):
        self.hasher, self.n_bits, self.n_features_in_ = hasher, hasher.n_bits, hasher.n_features_in_
        self.go, self.started = threading.Event(), threading.Semaphore(0)

    def transform(self, X):
        self.started.release()
        assert self.go.wait(20)
        return self.hasher.transform(X)


# --- pictures ---


def png(pixels, kind="PNG"):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def ink(row):
    """A row of digits as the page shows it: dark on white."""
    return (255 - row.reshape(8, 8) * 255 / 16).astype(np.uint8)


def upload(client, data, path="/search", name="x.png", **fields):
    return client.post(path, files={"image": (name, data)}, data=fields)


def bomb(side):
    """A PNG file of a few kB whose header says side × side pixels."""
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    lines = _chunk(b"IDAT", zlib.compress(b"\0" * 1_000_000, 9))
    return b"\x89PNG\r\n\x1a\n" + header + lines + _chunk(b"IEND", b"")


def _chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


# --- a server in a thread ---


@contextmanager
def serving(collection, limits=None):
    """The (host, port) of a server in a thread of this process."""
    config = server_config(collection, limits or Limits())
    config.port, config.timeout_graceful_shutdown = 0, 1
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
