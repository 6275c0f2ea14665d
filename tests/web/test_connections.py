"""Slow, idle and too many connections, over real sockets."""

import http.client
import json
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from dish.index.hamming import HammingIndex
from dish.web.collection import Collection
from dish.web.limits import Limits
from dish.web.pictures import FolderPictures
from helpers.service import close, connect, is_open
from helpers.web import JSON, BlockedHasher, make_index, serving

HALF = b"GET /info HTTP/1.1\r\nhost: localhost\r\nx-drip: "


@pytest.fixture
def collection(learned):
    return Collection(learned[0], make_index(learned))


def ask(address, path="/health", timeout=5, body=None):
    """Status and content, on a connection of its own."""
    connection = http.client.HTTPConnection(*address, timeout=timeout)
    try:
        connection.request("GET" if body is None else "POST", path, body, JSON if body else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_slow_headers_block_nobody_and_time_out(collection):
    with serving(collection, Limits(header_seconds=1.5)) as address:
        slow = connect(address[1], 230, HALF)
        start = time.monotonic()
        assert ask(address)[0] == 200
        assert ask(address, "/search", body=json.dumps({"id": 1000}))[0] == 200
        assert time.monotonic() - start < 1.4
        for _ in range(4):
            time.sleep(0.5)
            for one in slow:
                with suppress(OSError):
                    one.sendall(b"x")  # dripping does not buy time
        assert not any(map(is_open, slow))
        close(slow)


def test_missing_headers_get_408(collection):
    with serving(collection, Limits(header_seconds=0.2)) as address:
        (silent,) = connect(address[1], 1)
        silent.settimeout(5)
        answer = silent.recv(1000)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"headers took longer than 0.2 s" in answer
        assert silent.recv(1000) == b""
        silent.close()


def test_kept_alive_connection_times_out(collection):
    with serving(collection, Limits(header_seconds=0.3, idle_seconds=1)) as address:
        request = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
        idle, dripping = connect(address[1], 2, request)
        for one in (idle, dripping):
            assert b"200 OK" in one.recv(4000)
        dripping.sendall(HALF)
        time.sleep(0.6)
        dripping.settimeout(2)
        assert dripping.recv(4000).startswith(b"HTTP/1.1 408 ")
        assert is_open(idle)
        time.sleep(1)
        assert not is_open(idle)
        close([idle, dripping])


def test_idle_connections_make_room_for_new_ones(collection):
    with serving(collection, Limits(connections=30)) as address:
        flood = connect(address[1], 300)
        for _ in range(5):
            assert ask(address)[0] == 200
        assert sum(map(is_open, flood)) <= 30
        close(flood)


def test_connection_in_progress_is_not_closed(learned):
    hasher, answers = BlockedHasher(learned[0]), []
    body = json.dumps({"vector": [0.0] * 64})
    with serving(Collection(hasher, make_index(learned)), Limits(connections=3)) as address:
        work = [
            threading.Thread(target=lambda: answers.append(ask(address, "/search", 20, body)[0])) for _ in range(2)
        ]
        for thread in work:
            thread.start()
        assert hasher.started.acquire(timeout=10)
        deadline = time.monotonic() + 10
        while b"dish_in_flight 3" not in ask(address, "/metrics")[1] and time.monotonic() < deadline:
            time.sleep(0.01)  # both are under way
        flood = connect(address[1], 20)
        assert ask(address)[0] == 200
        hasher.go.set()
        for thread in work:
            thread.join(10)
        assert answers == [200, 200]
        close(flood)


def test_endless_headers_get_431(collection):
    with serving(collection) as address:
        (large,) = connect(address[1], 1, b"GET /health HTTP/1.1\r\n")
        with suppress(OSError):  # closed while we are still sending
            for i in range(100):
                large.sendall(b"x-%d: " % i + b"a" * 2000 + b"\r\n")
        time.sleep(0.3)
        with suppress(OSError):
            assert large.recv(1000)[:13] in (b"HTTP/1.1 431 ", b"HTTP/1.1 400 ")
        assert not is_open(large)
        assert ask(address)[0] == 200
        large.close()


def test_many_sample_requests_do_not_block_a_search(learned):
    """An index whose ids take long to copy; a hundred clients ask for samples of it."""
    hasher, X, _, _ = learned
    n = 300_000
    index = HammingIndex(32)
    codes = np.random.default_rng(0).integers(0, 256, (n, 4), dtype=np.uint8)
    index.add(codes, ids=[f"item number {i}" for i in range(n)])
    index.remove(["item number 5"])  # so that listing the ids copies them
    collection = Collection(hasher, index)
    statuses, body = [], json.dumps({"vector": X[0].tolist(), "k": 1})
    with serving(collection, Limits(concurrency=8)) as address:
        ask(address, "/search", 30, body)  # compiles
        start = time.perf_counter()
        assert ask(address, "/search", 30, body)[0] == 200
        alone = time.perf_counter() - start
        work = [
            threading.Thread(target=lambda: statuses.append(ask(address, "/samples?n=1", 30)[0])) for _ in range(100)
        ]
        for thread in work:
            thread.start()
        start, answer = time.perf_counter(), 503
        while answer == 503:
            answer = ask(address, "/search", 30, body)[0]
        meanwhile = time.perf_counter() - start
        for thread in work:
            thread.join(30)
        assert answer == 200
        assert meanwhile < alone + 0.8
        assert statuses.count(200) + statuses.count(503) == 100


def test_headers_in_one_burst_get_431(collection):
    with serving(collection) as address:
        (large,) = connect(
            address[1], 1, b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 70_000 + b"\r\n\r\n"
        )
        large.settimeout(5)
        assert large.recv(1000).startswith(b"HTTP/1.1 431 ")
        large.close()
        fits = b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 60_000 + b"\r\n\r\n"
        (large,) = connect(address[1], 1, fits)
        large.settimeout(5)
        assert large.recv(1000).startswith(b"HTTP/1.1 200 ")
        large.close()


@pytest.mark.parametrize("path", [b"/search", b"/health"])
@pytest.mark.parametrize(
    "part",
    [b"0\r\n" + b"a: b\r\n" * 20_000, b"0\r\nx: " + b"a" * 1_000_000, b"1\r\nx\r\n" * 200_000],
    ids=["trailers", "a long trailer", "small chunks"],
)
def test_overhead_of_a_chunked_body_is_refused(collection, path, part):
    with serving(collection) as address:
        start = b"POST " + path + b" HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
        (client,) = connect(address[1], 1, start)
        client.settimeout(5)
        with suppress(ConnectionError):  # closed while we are still sending
            for _ in range(60):
                client.sendall(part)
                part = part.removeprefix(b"0\r\n").removeprefix(b"x: ")
                time.sleep(0.02)  # the system takes some megabytes before the server has seen anything
            pytest.fail("all of it was accepted")
        client.close()
        assert ask(address)[0] == 200


def test_trailers_are_refused(collection):
    request = b"POST /search HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    request += b'transfer-encoding: chunked\r\n\r\nb;note=1\r\n{"id":1000}\r\n0\r\n'
    with serving(collection) as address:
        plain, trailer = connect(address[1], 2, request)
        plain.sendall(b"\r\n")
        assert b"200 OK" in plain.recv(4000)
        trailer.sendall(b"authorization: Bearer x\r\n\r\n")
        assert trailer.recv(4000).startswith(b"HTTP/1.1 400 ")
        close([plain, trailer])


def test_announced_bodies_take_nothing_from_others(collection):
    start = b" HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 4194304\r\n\r\n"
    with serving(collection) as address:
        clients = connect(address[1], 18, b"POST /search" + start)
        time.sleep(0.2)
        body = json.dumps({"vectors": [[0.5] * 64] * 400})
        assert len(body) > 100_000
        assert ask(address, "/encode", body=body)[0] == 200
        close(clients)


@pytest.mark.parametrize("path", ["/", "/health", "/docs", "/openapi.json", "/static/app.js", "/static/nothing"])
def test_body_without_a_token_is_not_read(collection, path):
    with serving(collection, Limits(token="secret")) as address:
        request = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4194304\r\n\r\n".encode()
        (client,) = connect(address[1], 1, request)
        assert client.recv(4000).startswith(b"HTTP/1.1 405 ")  # at once
        client.close()


def silent_readers(port, n, request):
    """Clients that send a request and read nothing; their system buffers little."""
    clients = []
    for _ in range(n):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port))
        client.sendall(request)
        clients.append(client)
    return clients


def received(client):
    """Number of bytes until the server ends the connection."""
    client.settimeout(0.2)
    n = 0
    with suppress(OSError):
        while piece := client.recv(1 << 20):
            n += len(piece)
    client.close()
    return n


def is_picture(file):
    """Whether an open file of this process is the picture."""
    with suppress(OSError):
        return os.readlink(f"/proc/self/fd/{file}").endswith("large.jpg")
    return False


def memory():
    """Resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("kind", ["file", "answer in memory"])
def test_clients_that_do_not_read_are_cut_off(learned, tmp_path, kind):
    (tmp_path / "large.jpg").write_bytes(b"\xff\xd8\xff" + bytes(20 << 20))
    collection = Collection(learned[0], make_index(learned), pictures=FolderPictures(tmp_path))
    request = b"GET /images/large HTTP/1.1\r\nhost: localhost\r\n\r\n"
    if kind != "file":  # 12 MB of distances and ids
        request = (
            b"POST /search/codes?k=600 HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/octet-stream\r\n"
        )
        request += b"content-length: 6400\r\n\r\n" + bytes(6400)
    with serving(collection, Limits(send_seconds=1, concurrency=20)) as address:
        silent_readers(address[1], 1, request)[0].close()  # what the first one needs is not counted
        before = memory()
        clients = silent_readers(address[1], 8, request)
        time.sleep(0.7)
        assert ask(address, "/search", body=json.dumps({"id": 1000}))[0] == 200
        assert memory() - before < 140 << 20  # 64 MiB of answers, and those that are being built
        deadline = time.monotonic() + 20
        while b"dish_in_flight 1.0" not in ask(address, "/metrics")[1]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(1.2)  # for the end of an answer, which the middleware has handed over
        assert not [file for file in os.listdir("/proc/self/fd") if is_picture(file)]
        assert max(map(received, clients)) < 6 << 20


def test_slow_readers_take_no_slot(learned, tmp_path):
    (tmp_path / "large.jpg").write_bytes(b"\xff\xd8\xff" + bytes(20 << 20))
    collection = Collection(learned[0], make_index(learned), pictures=FolderPictures(tmp_path))
    with serving(collection, Limits(concurrency=2)) as address:
        clients = silent_readers(address[1], 4, b"GET /images/large HTTP/1.1\r\nhost: localhost\r\n\r\n")
        time.sleep(0.3)
        assert ask(address, "/search", body=json.dumps({"id": 1000}))[0] == 200
        close(clients)


def test_clients_that_do_not_read_make_room_for_new_ones(learned, tmp_path):
    (tmp_path / "large.jpg").write_bytes(b"\xff\xd8\xff" + bytes(8 << 20))
    collection = Collection(learned[0], make_index(learned), pictures=FolderPictures(tmp_path))
    with serving(collection, Limits(connections=4)) as address:
        clients = silent_readers(address[1], 4, b"GET /images/large HTTP/1.1\r\nhost: localhost\r\n\r\n")
        time.sleep(1.5)
        assert [ask(address)[0] for _ in range(5)] == [200] * 5
        assert len([client for client in clients if received(client) > 8 << 20]) >= 2  # only what was needed is cut


def test_slow_reader_within_the_rate_gets_everything(learned, tmp_path):
    content = b"\xff\xd8\xff" + bytes(6 << 20)
    (tmp_path / "large.jpg").write_bytes(content)
    collection = Collection(learned[0], make_index(learned), pictures=FolderPictures(tmp_path))
    with serving(collection, Limits(send_seconds=1)) as address:
        request = b"GET /images/large HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        (client,) = connect(address[1], 1, request)
        received = bytearray()
        while piece := client.recv(200_000):
            received += piece
            time.sleep(len(piece) / 4e6)  # 4 MB/s; the least is 1 MB/s
        client.close()
        assert received.endswith(content)


def test_forwarded_address_is_ignored(collection, caplog):
    caplog.set_level("INFO", "dish.web")
    with serving(collection, Limits(token="secret")) as address:
        connection = http.client.HTTPConnection(*address, timeout=5)
        connection.request("GET", "/info", headers={"x-forwarded-for": "10.9.9.9", "x-forwarded-proto": "https"})
        assert connection.getresponse().status == 401
        connection.close()
    assert [record.fields["client"] for record in caplog.records if record.message == "request"] == ["127.0.0.1"]
