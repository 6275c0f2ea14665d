"""The limits around every request."""

import asyncio
import threading
import time
import traceback

import pytest
from starlette.testclient import TestClient

from dish.web.app import create_app
from dish.web.collection import Collection
from dish.web.limits import LOOPBACK, Limits
from dish.web.sockets import host_names
from helpers.web import JSON, BlockedHasher, make_client, make_index, run_async


def test_body_size_is_limited(learned):
    client = make_client(learned, Limits(max_body=2000))
    assert client.post("/search", json={"vector": [0.0] * 64}).status_code == 200
    assert client.post("/search", content=b" " * 2001, headers=JSON).status_code == 413
    chunks = (b" " * 500 for _ in range(10))  # no Content-Length
    answer = client.post("/search", content=chunks, headers=JSON)
    assert answer.status_code == 413
    assert "2,000 bytes" in answer.json()["error"]
    many = make_client(learned, Limits(max_rows=2)).post("/encode", json={"vectors": [[0.0] * 64] * 3})
    assert many.status_code == 413


def test_token(learned):
    client = make_client(learned, Limits(token="open sesame"))
    for path in ("/info", "/metrics", "/samples", "/images/1", "/search"):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), path
    for wrong in ("Bearer open", "Bearer open sesame!", "open sesame", "Basic b3Blbg==", "Bearer ", ""):
        assert client.get("/info", headers={"authorization": wrong}).status_code == 401, wrong
    assert client.get("/info", headers={"authorization": "Bearer open sesame"}).status_code == 200
    for path in ("/", "/health", "/docs", "/openapi.json", "/static/app.js"):
        assert client.get(path).status_code == 200
    for path in ("http://127.0.0.1//info", "/static/../info", "/static/%2e%2e/info", "/health/../info"):
        assert client.get(path).status_code in (401, 404), path


def test_token_scheme_ignores_case(learned):
    client = make_client(learned, Limits(token="sesame"))
    for given in ("bearer sesame", "BEARER sesame", "Bearer sesame"):
        assert client.get("/info", headers={"authorization": given}).status_code == 200, given
    for given in ("bearer Sesame", "basic sesame", "bearersesame"):
        assert client.get("/info", headers={"authorization": given}).status_code == 401, given


def test_unknown_host_names_are_rejected(learned):
    client = make_client(learned, Limits(hosts=LOOPBACK))
    for name in ("localhost", "127.0.0.1", "127.0.0.1:8000", "[::1]:8000", "LOCALHOST"):
        assert client.get("/health", headers={"host": name}).status_code == 200, name
    for name in (
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost@evil.example",
        "",
        "[::1].evil",
        "[::1]evil",
        "[localhost]",
        "::1",
    ):
        assert client.get("/health", headers={"host": name}).status_code == 403, name


def test_unknown_host_names_are_rejected_off_loopback(learned):
    names = host_names("0.0.0.0", ["search.example"])
    client = make_client(learned, Limits(hosts=names, any_address=True))
    for name in ("search.example", "Search.Example:8000", "localhost", "192.0.2.7:8000", "[2001:db8::1]:8000"):
        assert client.get("/health", headers={"host": name}).status_code == 200, name
    for name in ("evil.example", "192.0.2.7.evil.example", "[2001:db8::1].evil", "search.example@evil"):
        answer = client.get("/health", headers={"host": name})
        assert answer.status_code == 403, name
        assert "--allowed-host" in answer.json()["error"]
    assert host_names("0.0.0.0", ["*"]) == ()


def test_other_sites_cannot_write(learned):
    def post(client, origin):
        return client.post("/search", json={"id": 1000}, headers={"origin": origin, "host": "127.0.0.1:8000"})

    client = make_client(learned)
    for origin in ("http://evil.example", "http://127.0.0.1:9999", "null", "https://127.0.0.1:8000.evil.example"):
        assert post(client, origin).status_code == 403, origin
        assert "another web site" in post(client, origin).json()["error"]
        assert client.delete("/items/1000", headers={"origin": origin}).status_code == 403
    assert post(client, "http://127.0.0.1:8000").status_code == 200
    proxied = make_client(learned, Limits(hosts=("127.0.0.1", "photos.example")))
    assert post(proxied, "https://photos.example").status_code == 200


def test_all_routes_count_towards_the_concurrency(learned, monkeypatch):
    go, started, statuses = threading.Event(), threading.Semaphore(0), []

    def slow(self, n):
        started.release()
        assert go.wait(20)
        return []

    monkeypatch.setattr(Collection, "random_samples", slow)
    app = create_app(Collection(learned[0], make_index(learned)), Limits(concurrency=2))
    with TestClient(app) as client:
        ask = [threading.Thread(target=lambda: statuses.append(client.get("/samples").status_code)) for _ in range(2)]
        for thread in ask:
            thread.start()
        for _ in ask:
            assert started.acquire(timeout=10)
        assert client.get("/samples").status_code == 503
        assert client.get("/images/1").status_code == 503
        for path in ("/health", "/metrics", "/info", "/", "/static/app.js"):  # status stays visible
            assert client.get(path).status_code == 200
        go.set()
        for thread in ask:
            thread.join(10)
        assert statuses == [200, 200]


def test_busy_server_answers_503_and_stays_healthy(learned):
    slow = BlockedHasher(learned[0])
    app = create_app(Collection(slow, make_index(learned)), Limits(concurrency=2))
    answers = []
    with TestClient(app) as client:
        ask = lambda: answers.append(client.post("/search", json={"vector": [0.0] * 64}).status_code)  # noqa: E731
        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        assert slow.started.acquire(timeout=10)
        deadline = time.monotonic() + 10
        while "dish_in_flight 3" not in client.get("/metrics").text and time.monotonic() < deadline:
            time.sleep(0.01)  # both are in progress, perhaps in one batch
        busy = client.post("/search", json={"vector": [0.0] * 64})
        assert busy.status_code == 503
        assert busy.headers["retry-after"] == "1"
        assert 'route="/search",status="503"} 1' in client.get("/metrics").text
        assert client.get("/health").json()["status"] == "ok"
        assert "dish_in_flight 3" in client.get("/metrics").text  # two searches and this
        slow.go.set()
        for thread in threads:
            thread.join(10)
        assert answers == [200, 200]
        assert client.post("/search", json={"vector": [0.0] * 64}).status_code == 200


def test_client_that_does_not_read_is_dropped(learned):
    app = create_app(Collection(learned[0], make_index(learned)), Limits(send_seconds=0.05, concurrency=1))
    body = b'{"id": 1000}'

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        await asyncio.sleep(60)

    scope = {"type": "http", "method": "POST", "path": "/search", "raw_path": b"/search", "query_string": b""}
    scope |= {"headers": [(b"content-type", b"application/json")], "client": ("c", 1), "http_version": "1.1"}
    start = time.perf_counter()
    for _ in range(3):  # the slot is released each time
        run_async(app(scope | {"scheme": "http"}, receive, send))
    assert time.perf_counter() - start < 20


def test_slow_body_gets_408(learned):
    app = create_app(Collection(learned[0], make_index(learned)), Limits(body_seconds=0.05))
    sent = []

    async def receive():
        await asyncio.sleep(5)

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/search", "raw_path": b"/search", "query_string": b""}
    scope |= {"headers": [(b"content-length", b"10")], "client": ("c", 1), "http_version": "1.1", "scheme": "http"}
    run_async(app(scope, receive, send))
    assert sent[0]["status"] == 408


def test_internal_error_hides_the_traceback(learned, monkeypatch, caplog):
    client = make_client(learned)
    monkeypatch.setattr(Collection, "search_many", lambda *_, **__: 1 / 0)
    answer = client.post("/search", json={"id": 1000})
    assert answer.status_code == 500
    assert "ZeroDivision" not in answer.text
    number = answer.headers["x-request-id"]
    assert number in answer.json()["error"]
    logged = [record for record in caplog.records if "ZeroDivisionError" in str(record.exc_info)]
    assert [record.fields["id"] for record in logged] == [number]
    assert "search_many" in "".join(traceback.format_exception(*logged[0].exc_info))
    assert client.post("/search", json={"id": 1000}).headers["x-request-id"] != number


async def request(app, size, read, headers=()):
    """Send a body of zeros to /search/codes and read the answer with ``read``; return the status."""
    statuses, left = [], size

    async def receive():
        nonlocal left
        part = min(left, 10_000)
        left -= part
        await asyncio.sleep(0)
        return {"type": "http.request", "body": bytes(part), "more_body": left > 0}

    async def send(message):
        if message["type"] == "http.response.start":
            statuses.append(message["status"])
        await read()

    scope = {"type": "http", "method": "POST", "path": "/search/codes", "raw_path": b"/search/codes"}
    scope |= {"query_string": b"k=10", "client": ("c", 1), "http_version": "1.1", "scheme": "http"}
    scope |= {"headers": [(b"content-type", b"application/octet-stream"), *headers]}
    await app(scope, receive, send)
    return statuses[0]


@pytest.mark.parametrize(("limit", "announced"), [("bodies", False), ("bodies", True), ("answers", False)])
def test_bytes_of_all_requests_are_limited(learned, limit, announced):
    """Five bodies of 76 kB, or answers of 2 MB; the limit allows two at a time. Small ones pass."""
    limits = (
        Limits(max_body=80_000, bodies=160_000, max_rows=20_000)
        if limit == "bodies"
        else Limits(answers=5 << 20, max_answer=1 << 20)
    )
    size = 76_000 if limit == "bodies" else 36_000
    app = create_app(Collection(learned[0], make_index(learned)), limits)
    headers = [(b"content-length", b"%d" % size)] if announced else []

    async def run():
        go = asyncio.Event()
        large = [asyncio.create_task(request(app, size, go.wait, headers)) for _ in range(5)]
        await asyncio.sleep(1)
        assert await request(app, 400, lambda: asyncio.sleep(0)) == 200
        go.set()
        statuses = await asyncio.gather(*large)
        assert await request(app, size, lambda: asyncio.sleep(0), headers) == 200
        return sorted(statuses)

    assert run_async(run()) == [200, 200, 503, 503, 503]
