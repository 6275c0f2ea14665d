"""Connections that are slow, idle or too many, over real sockets of this machine."""

import http.client
import json
import socket
import threading
import time
from contextlib import suppress

import numpy as np
import pytest

from dish.web.collection import Collection
from dish.web.middleware import network_of
from helpers.web import JSON, Slow, listening, make_index

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


def opened(address, n, send=b"", source="127.0.0.1"):
    sockets = []
    for _ in range(n):
        one = socket.create_connection(address, timeout=5, source_address=(source, 0))
        sockets.append(one)
        one.sendall(send)
    return sockets


def is_open(one):
    """Whether the server still holds this end; an answer and an end count as closed."""
    one.settimeout(0.02)
    try:
        while one.recv(10_000):
            pass
    except TimeoutError:
        return True
    except OSError:
        pass
    return False


def close(sockets):
    for one in sockets:
        one.close()


def test_half_sent_headers_keep_nobody_out_and_are_given_up(collection):
    with listening(collection, header_seconds=1.5) as address:
        slow = opened(address, 230, HALF)
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


def test_who_sends_no_headers_is_told_so(collection):
    with listening(collection, header_seconds=0.2) as address:
        (silent,) = opened(address, 1)
        silent.settimeout(5)
        answer = silent.recv(1000)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"headers took longer than 0.2 s" in answer
        assert silent.recv(1000) == b""
        silent.close()


def test_a_kept_connection_is_closed_when_idle_and_when_its_next_headers_are_slow(collection):
    with listening(collection, header_seconds=0.3, idle_seconds=1) as address:
        request = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
        idle, dripping = opened(address, 2, request)
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


def test_a_flood_of_idle_connections_makes_room_for_new_ones(collection):
    with listening(collection, connections=40, connections_per_address=30) as address:
        flood = opened(address, 300)
        for _ in range(5):
            assert ask(address)[0] == 200
        assert sum(map(is_open, flood)) <= 30
        close(flood)


def test_the_address_with_the_most_connections_makes_room(collection):
    with listening(collection, connections=40, connections_per_address=40) as address:
        mine = http.client.HTTPConnection(*address, timeout=5)
        mine.request("GET", "/health")
        assert mine.getresponse().read()
        kept = mine.sock
        flood = opened(address, 200, source="127.0.0.2")
        mine.request("GET", "/health")
        assert mine.getresponse().status == 200
        assert mine.sock is kept  # not a new connection
        mine.close()
        close(flood)


def test_connections_that_are_being_answered_stay(learned):
    hasher, answers = Slow(learned[0]), []
    body = json.dumps({"vector": [0.0] * 64})
    with listening(Collection(hasher, make_index(learned)), connections=3, connections_per_address=3) as address:
        work = [
            threading.Thread(target=lambda: answers.append(ask(address, "/search", 20, body)[0])) for _ in range(2)
        ]
        for thread in work:
            thread.start()
        assert hasher.started.acquire(timeout=10)
        deadline = time.monotonic() + 10
        while b"dish_in_flight 3" not in ask(address, "/metrics")[1] and time.monotonic() < deadline:
            time.sleep(0.01)  # both are under way
        flood = opened(address, 20)
        assert ask(address)[0] == 200
        hasher.go.set()
        for thread in work:
            thread.join(10)
        assert answers == [200, 200]
        close(flood)


def test_headers_without_end_are_refused(collection):
    with listening(collection) as address:
        (large,) = opened(address, 1, b"GET /health HTTP/1.1\r\n")
        with suppress(OSError):  # closed while we are still sending
            for i in range(100):
                large.sendall(b"x-%d: " % i + b"a" * 2000 + b"\r\n")
        time.sleep(0.3)
        with suppress(OSError):
            assert large.recv(1000)[:13] in (b"HTTP/1.1 431 ", b"HTTP/1.1 400 ")
        assert not is_open(large)
        assert ask(address)[0] == 200
        large.close()


def test_many_samples_at_once_do_not_hold_up_a_search(learned):
    """An index whose ids take long to copy; a hundred clients ask for samples of it."""
    from dish.index.hamming import HammingIndex

    hasher, X, _, _ = learned
    n = 300_000
    index = HammingIndex(32)
    codes = np.random.default_rng(0).integers(0, 256, (n, 4), dtype=np.uint8)
    index.add(codes, ids=[f"item number {i}" for i in range(n)])
    index.remove(["item number 5"])  # so that listing the ids copies them
    collection = Collection(hasher, index)
    statuses, body = [], json.dumps({"vector": X[0].tolist(), "k": 1})
    with listening(collection, concurrency=8) as address:
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


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8::1", "2001:db8::ffff", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("testclient", "testclient", True),
    ],
)
def test_what_counts_as_one_address(one, other, same):
    assert (network_of(one) == network_of(other)) is same
