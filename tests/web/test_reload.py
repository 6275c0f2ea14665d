"""Switching to another collection: what answers when, what is refused, what becomes of changes and memory."""

import json
import os
import shutil
import signal
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx
import numpy as np
import pytest
from starlette.testclient import TestClient

from dish import DISH
from dish.alias import Alias, CollectionFiles
from dish.index.hamming import HammingIndex
from dish.web import server
from dish.web.app import create_app
from dish.web.index_writer import check_served_alone
from dish.web.limits import Limits
from dish.web.reload import Reloader
from dish.web.source import Source
from helpers.quick import few_steps
from helpers.service import Server

N = 60


@pytest.fixture(scope="session")
def collections(learned, tmp_path_factory):
    """A folder with the collections a, b (32 bits) and c (16 bits). Ids are a0, a1, …; b0, …; c0, …"""
    folder, (_, X, y, _) = tmp_path_factory.mktemp("collections"), learned
    for seed, (name, bits) in enumerate({"a": 32, "b": 32, "c": 16}.items()):
        with few_steps():
            hasher = DISH(n_bits=bits, n_anchors=30, random_state=seed).fit(X[:200], y[:200])
        hasher.save(folder / f"{name}-m.dish")
        index = HammingIndex(bits, model=hasher.fingerprint_)
        index.add(hasher.transform(X[:N]), ids=[f"{name}{i}" for i in range(N)])
        index.save(folder / f"{name}-ix.dish")
    return folder


@pytest.fixture
def folder(collections, tmp_path):
    """A copy of them, and an alias of a."""
    copied = shutil.copytree(collections, tmp_path / "files")
    name(copied, "a")
    return copied


def named(folder, one):
    return CollectionFiles(folder / f"{one}-m.dish", folder / f"{one}-ix.dish")


def name(folder, one):
    Alias(folder / "p.alias").set(named(folder, one))


def service_of(folder, limits=None, **options):
    """The app of a server, as `dish serve p.alias` makes it."""
    source = Source(Alias(folder / "p.alias"), **options)
    service = create_app(server.open_source(source, source.files), limits, alias=source.alias)
    service.reload = Reloader(service, source, server.prepare)
    return service


def client_of(service):
    return TestClient(service, base_url="http://127.0.0.1", raise_server_exceptions=False)


def world(answer):
    """The collection that an answer comes from, and its generation."""
    found = {id[0] for id in answer.json()["ids"]}
    assert len(found) == 1
    return found.pop(), int(answer.headers["x-dish-generation"])


def test_switch_and_roll_back(folder, learned):
    service = service_of(folder)
    client, query = client_of(service), {"vector": learned[1][3].tolist(), "k": 5}
    assert world(client.post("/search", json=query)) == ("a", 1)
    seen = [client.get("/info").json()]
    for number, (one, bits) in enumerate((("b", 32), ("c", 16), ("b", 32)), 2):
        if number == 4:
            Alias(folder / "p.alias").roll_back()
        else:
            name(folder, one)
        assert world(client.post("/search", json=query)) == (seen[-1]["size"] and "abc"[number - 2], number - 1)
        answer = client.post("/admin/reload")
        assert answer.status_code == 200, answer.text
        seen.append(client.get("/info").json())
        assert answer.json().items() >= {"switched": True, "generation": number, "n_bits": bits, "size": N}.items()
        assert world(client.post("/search", json=query)) == (one, number)
        assert seen[-1]["fingerprint"] == answer.json()["fingerprint"] == DISH.fingerprint_.fget(load(folder, one))
    assert [info["alias"] for info in seen] == ["p.alias"] * 4
    assert [info["generation"] for info in seen] == [1, 2, 3, 4]
    assert [info["n_bits"] for info in seen] == [32, 32, 16, 32]
    assert "dish_generation 4" in client.get("/metrics").text
    schema = client.get("/openapi.json").json()
    assert "/admin/reload" in schema["paths"]


def load(folder, one):
    from dish import load

    return load(folder / f"{one}-m.dish")


def damaged(folder):
    data = bytearray((folder / "b-ix.dish").read_bytes())
    data[-3] ^= 1
    (folder / "b-ix.dish").write_bytes(data)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (damaged, "b-ix.dish is damaged"),
        (lambda folder: (folder / "b-m.dish").unlink(), "b-m.dish"),
        (lambda folder: shutil.copy(folder / "a-ix.dish", folder / "b-ix.dish"), "cannot be compared"),
        (lambda folder: shutil.copy(folder / "c-ix.dish", folder / "b-ix.dish"), "16"),
        (lambda folder: (folder / "p.alias").unlink(), "no alias"),
        (lambda folder: (folder / "p.alias").write_text("{}"), "not an alias"),
    ],
)
def test_what_cannot_be_served_changes_nothing(folder, spoil, says, learned):
    service = service_of(folder)
    client = client_of(service)
    name(folder, "b")
    spoil(folder)
    answer = client.post("/admin/reload")
    assert (answer.status_code, says in answer.json()["error"]) == (409, True), answer.text
    assert "continues with the files that it serves now" in answer.json()["error"]
    assert world(client.post("/search", json={"vector": learned[1][3].tolist()})) == ("a", 1)


def test_machine_that_fails_is_a_503(folder, monkeypatch):
    service = service_of(folder)
    client = client_of(service)

    def full(*_, **__):
        raise MemoryError

    monkeypatch.setattr(HammingIndex, "load", full)
    answer = client.post("/admin/reload")
    assert (answer.status_code, "MemoryError" in answer.json()["error"]) == (503, True)
    assert client.post("/search", json={"id": "a1"}).status_code == 200


def test_who_may_reload(folder):
    strangers = client_of(service_of(folder, Limits(any_address=True)))
    answer = strangers.post("/admin/reload")
    assert (answer.status_code, "SIGHUP" in answer.json()["error"]) == (403, True)
    client = client_of(service_of(folder, Limits(any_address=True, token="secret")))
    assert client.post("/admin/reload").status_code == 401
    assert client.post("/admin/reload", headers={"authorization": "Bearer secret"}).status_code == 200
    local = client_of(service_of(folder))
    assert local.post("/admin/reload", headers={"origin": "http://evil.example"}).status_code == 403
    assert local.post("/admin/reload", json={"model": "x"}).status_code == 422
    assert local.get("/admin/reload").status_code == 405
    fixed = create_app(server.open_collection(*list(vars(named(folder, "a")).values())[:2]))
    assert client_of(fixed).post("/admin/reload").status_code == 409


def test_reload_needs_no_free_slot(folder):
    client = client_of(service_of(folder, Limits(concurrency=0)))
    assert client.post("/search", json={"id": "a1"}).status_code == 503
    assert client.post("/admin/reload").status_code == 200


def test_one_reload_at_a_time(folder, monkeypatch):
    service = service_of(folder)
    client, started, go = client_of(service), threading.Event(), threading.Event()
    prepare = service.reload.prepare

    def slow(*given):
        started.set()
        assert go.wait(20)
        return prepare(*given)

    service.reload.prepare = slow
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.post, "/admin/reload")
        assert started.wait(20)
        second = client_of(service).post("/admin/reload")
        assert (second.status_code, "in progress" in second.json()["error"]) == (409, True)
        go.set()
        assert first.result().status_code == 200


def test_request_in_progress_is_answered_by_its_generation(folder, learned):
    """Its memory is released when it is answered, and not before."""
    service = service_of(folder)
    client, old = client_of(service), service.now.collection
    started, go, transform = threading.Event(), threading.Event(), old.hasher.transform
    query = {"vector": learned[1][3].tolist(), "k": 5}

    def slow(X, **options):
        started.set()
        assert go.wait(20)
        return transform(X, **options)

    old.hasher.transform = slow
    name(folder, "b")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client_of(service).post, "/search", json=query)
        assert started.wait(20)
        assert client.post("/admin/reload").status_code == 200
        assert world(client.post("/search", json=query)) == ("b", 2)
        watched = weakref.ref(old.index)
        del old
        assert not service.settle(0.05)
        go.set()
        assert world(waiting.result()) == ("a", 1)
    assert service.settle(20)
    assert watched() is None


def test_error_inside_a_generation_is_logged_under_its_request(folder, monkeypatch, caplog):
    service = service_of(folder)
    monkeypatch.setattr(service.now.collection, "ids_like", lambda *_: 1 / 0)
    answer = client_of(service).get("/ids?like=a")
    assert (answer.status_code, answer.json()["error"][:14]) == (500, "internal error")
    assert answer.headers["x-request-id"] in answer.json()["error"]


# --- writable ---


def items(X, *ids):
    return {"ids": list(ids), "vectors": X[: len(ids)].tolist()}


def test_changes_are_saved_to_the_index_that_took_them(folder, learned):
    service = service_of(folder, writable=True)
    client, X = client_of(service), learned[1]
    assert client.post("/items", json=items(X, "new1", "new2")).status_code == 200
    name(folder, "b")
    answer = client.post("/admin/reload").json()
    assert (answer["switched"], answer["size"]) == (True, N)
    assert client.post("/search", json={"id": "new1"}).status_code == 404  # b was built without it
    assert client.post("/items", json=items(X, "new3")).status_code == 200
    assert service.settle(20)
    check_served_alone(folder / "a-ix.dish")  # closed: no journal, no lock
    assert {"new1", "new2"} <= set(HammingIndex.load(folder / "a-ix.dish").ids)
    Alias(folder / "p.alias").roll_back()
    assert client.post("/admin/reload").json()["size"] == N + 2
    assert client.post("/search", json={"id": "new1"}).status_code == 200
    service.close()
    assert "new3" in HammingIndex.load(folder / "b-ix.dish")
    assert not list(folder.glob("*.journal*"))


def test_no_switch_unless_changes_can_be_saved(folder, learned, monkeypatch):
    service = service_of(folder, writable=True)
    client = client_of(service)
    assert client.post("/items", json=items(learned[1], "new1")).status_code == 200
    name(folder, "b")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(service.now.collection.writer.file, "write", full)
        answer = client.post("/admin/reload")
        assert (answer.status_code, "No space" in answer.json()["error"]) == (503, True)
    assert client.post("/search", json={"id": "new1"}).headers["x-dish-generation"] == "1"
    assert client.post("/items", json=items(learned[1], "new2")).status_code == 200
    check_served_alone(folder / "b-ix.dish")  # the refused one was closed
    service.close()
    assert {"new1", "new2"} <= set(HammingIndex.load(folder / "a-ix.dish").ids)


def test_writable_index_is_not_loaded_twice(folder):
    service = service_of(folder, writable=True)
    answer = client_of(service).post("/admin/reload").json()
    assert (answer["switched"], answer["generation"]) == (False, 1)
    content = (folder / "p.alias").read_text()
    (folder / "p.alias").write_text(content.replace("a-m.dish", "b-m.dish"))
    refused = client_of(service).post("/admin/reload")
    assert (refused.status_code, "open with another model" in refused.json()["error"]) == (409, True)
    service.close()


def test_index_replaced_under_a_writable_server_is_refused(folder, learned):
    service = service_of(folder, writable=True)
    client = client_of(service)
    assert client.post("/items", json=items(learned[1], "new1")).status_code == 200
    index = HammingIndex.load(folder / "b-ix.dish")
    index.save(folder / "other.dish")
    os.replace(folder / "other.dish", folder / "a-ix.dish")
    whole = (folder / "a-ix.dish").read_bytes()
    for one in ("a", "b"):
        Alias(folder / "p.alias").path.write_text((folder / "p.alias").read_text().replace("a-", f"{one}-"))
        answer = client.post("/admin/reload")
        assert (answer.status_code, "replaced by another program" in answer.json()["error"]) == (409, True)
    assert client.post("/search", json={"id": "new1"}).status_code == 200
    with pytest.raises(ValueError, match="replaced"):
        service.close()
    assert (folder / "a-ix.dish").read_bytes() == whole


def test_vectors_and_writable_exclude_each_other(folder, cli):
    np.save(folder / "x.npy", np.zeros((N, 64)))
    call = ["serve", "--model", folder / "a-m.dish", "--index", folder / "a-ix.dish", "--vectors", folder / "x.npy"]
    code, _, errors = cli(*call, "--writable")
    assert (code, "has no vector in that file" in errors) == (2, True)


# --- the command, and real servers ---


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["p.alias", "--model", "a-m.dish"], "leave out the options"),
        (["--model", "a-m.dish"], "--model and --index, or an alias"),
        (["none.alias"], "no alias"),
    ],
)
def test_bad_calls_are_refused(folder, cli, monkeypatch, options, says):
    monkeypatch.chdir(folder)
    code, _, errors = cli("serve", *options)
    assert (code, says in errors) == (2, True)


def wait_for(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert condition()


class Load:
    """Threads that search without a pause. ``seen`` has (time, collection, generation) of every answer."""

    def __init__(self, url, query, threads=3):
        self.url, self.query, self.seen, self.failed, self.stop = url, query, [], [], threading.Event()
        self.threads = [threading.Thread(target=self._run) for _ in range(threads)]

    def _run(self):
        with httpx.Client(timeout=30) as client:
            while not self.stop.is_set():
                try:
                    answer = client.post(self.url + "/search", json=self.query)
                    assert answer.status_code == 200, answer.text
                    self.seen.append((time.monotonic(), *world(answer)))
                except (httpx.HTTPError, AssertionError) as error:
                    self.failed.append(repr(error))

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join(30)


def log_of(folder):
    return [json.loads(line) for line in (folder / "log").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [pytest.param(1), pytest.param(2, marks=pytest.mark.long)])
def test_reload_under_load(folder, learned, workers):
    """By SIGHUP and by HTTP, and a rollback: no request fails, and no answer mixes two collections."""
    alias, worlds = folder / "p.alias", {1: "a", 2: "b", 3: "c", 4: "b"}
    query = {"vector": learned[1][3].tolist(), "k": N}
    with Server(folder, "--workers", workers, alias=alias) as one, Load(one.url, query) as load:
        wait_for(lambda: len(load.seen) > 30)
        for number in (2, 3, 4):
            if number == 4:
                Alias(alias).roll_back()
            else:
                name(folder, worlds[number])
            if number == 2:
                one.process.send_signal(signal.SIGHUP)
            else:
                status, body = one.ask("POST", "/admin/reload")
                assert (status, json.loads(body)["generation"]) == (200, number)
            wait_for(lambda number=number: (load.seen[-1][2] == number) or load.failed)
            n = len(load.seen)
            wait_for(lambda n=n: len(load.seen) > n + 30)
        damage = folder / "b-m.dish"
        damage.unlink()
        status, body = one.ask("POST", "/admin/reload")
        assert (status, "b-m.dish" in body.decode()) == (409, True)
        one.process.send_signal(signal.SIGHUP)
        wait_for(lambda: any(line["event"] == "reload refused" for line in log_of(folder)))
        n = len(load.seen)
        wait_for(lambda: len(load.seen) > n + 30)
        load.stop.set()
        assert one.stop() == 0
    assert not load.failed
    assert all(worlds[generation] == collection for _, collection, generation in load.seen)
    assert {generation for _, _, generation in load.seen} == {1, 2, 3, 4}
    for number in (2, 3, 4):  # once a generation has answered everywhere, the one before it does not answer again
        last = max(when for when, _, generation in load.seen if generation == number - 1)
        first = min(when for when, _, generation in load.seen if generation == number)
        assert last - first < 1.0, (number, last - first)


@pytest.mark.long  # test_changes_are_saved_to_the_index_that_took_them is quick
def test_kill_after_a_switch_keeps_all_acknowledged_items(folder, learned):
    X = learned[1]
    with Server(folder, "--writable", alias=folder / "p.alias") as one:
        assert one.post("/items", items(X, "old"))[0] == 200
        name(folder, "b")
        assert one.ask("POST", "/admin/reload")[0] == 200
        assert one.post("/items", items(X, "new"))[0] == 200
        one.stop(kill=True)
    with closing(server.open_collection(*list(vars(named(folder, "a")).values())[:2], writable=True)) as found:
        assert "old" in found.index
    with Server(folder, "--writable", alias=folder / "p.alias") as one:  # b, with its journal
        assert one.post("/search", {"id": "new"})[0] == 200
        assert one.post("/search", {"id": "old"})[0] == 404
        assert one.stop() == 0
    assert not list(folder.glob("*.journal*"))


@pytest.mark.long  # test_request_in_progress_is_answered_by_its_generation sees the old index go
def test_memory_is_released(folder):
    """A hundred switches to collections of 8 MB would take 0.8 GB."""
    big = HammingIndex(32)
    big.add(np.random.default_rng(0).integers(0, 256, (300_000, 4), np.uint8))
    big.save(folder / "b-ix.dish")
    name(folder, "b")
    with Server(folder, alias=folder / "p.alias") as one:
        for _ in range(4):
            assert one.ask("POST", "/admin/reload")[0] == 200
        before = one.status("VmRSS")
        for _ in range(20):
            assert one.post("/search", {"id": 7})[0] == 200
            assert one.ask("POST", "/admin/reload")[0] == 200
        assert one.status("VmRSS") - before < 30_000  # kB
        assert one.status("Threads") < 40
