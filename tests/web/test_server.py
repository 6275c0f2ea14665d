"""Opening a collection, and `dish serve` as a real process."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from contextlib import closing

import httpx
import numpy as np
import pytest
from starlette.testclient import TestClient

from dish import DISH, DeepDISH
from dish.errors import JournalError
from dish.index.hamming import HammingIndex
from dish.index.index_file import in_use
from dish.web import server
from dish.web.app import create_app
from dish.web.collection import Collection
from dish.web.journal import Journal, count_pending, journal_path
from helpers.service import Server
from helpers.web import png, upload


@pytest.mark.long  # test_crash_keeps_acknowledged_records in test_journal.py is quick
def test_kill_during_writes_keeps_acknowledged_items(files, learned):
    hasher, X, _, _ = learned
    acknowledged, stop = {}, threading.Event()

    def write(url, start):
        with httpx.Client(timeout=10) as client:
            for i in range(start, start + 10_000):
                row = i % len(X)
                try:
                    body = {"ids": [i], "vectors": [X[row].tolist()], "labels": [f"n{row}"]}
                    if client.post(url + "/items", json=body).status_code == 200:
                        acknowledged[i] = row
                except httpx.HTTPError:
                    return
                if stop.is_set():
                    return

    with Server(files, "--writable") as server:
        threads = [threading.Thread(target=write, args=(server.url, s)) for s in (100_000, 200_000, 300_000)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 20
        while len(acknowledged) < 60 and time.monotonic() < deadline:
            time.sleep(0.005)
        server.process.kill()  # SIGKILL during writes
        stop.set()
        for thread in threads:
            thread.join(10)
    assert len(acknowledged) >= 60

    with Server(files, "--writable") as server:
        assert server.stop() == 0  # right after it has printed its address
    assert count_pending(files / "ix.dish") == 0
    log = [json.loads(line) for line in (files / "log").read_text().splitlines()]
    requests = [line for line in log if line["event"] == "request"]
    assert {"time", "level", "method", "path", "status", "ms", "client"} <= requests[0].keys()
    index = HammingIndex.load(files / "ix.dish")
    ids = list(acknowledged)
    np.testing.assert_array_equal(index.get(ids), hasher.transform(X[list(acknowledged.values())]))
    assert list(index.labels_of(ids)) == [f"n{row}" for row in acknowledged.values()]


def test_files_are_locked_before_the_index_is_read(files, monkeypatch):
    """Otherwise a server that stops meanwhile could write items to an index file that was read already."""
    load, seen = HammingIndex.load, []

    def watch(path, **options):
        assert in_use(files / "ix.dish")
        with pytest.raises(JournalError, match="in use"):
            Journal(journal_path(files / "ix.dish"), None, files / "ix.dish")
        seen.append(path)
        return load(path, **options)

    monkeypatch.setattr(HammingIndex, "load", watch)
    with closing(server.open_collection(files / "m.dish", files / "ix.dish", writable=True)) as found:
        assert len(found) == 600
    assert len(seen) == 1


@pytest.mark.long
def test_overlapping_restart_keeps_acknowledged_items(files, learned):
    """The second server starts while the first one stops: it is rejected, or it has all items."""
    body = {"vectors": learned[1][:1].tolist()}
    outcomes = []
    for i, delay in enumerate((0.0, 1.0, 2.0)):
        with Server(files, "--writable") as first:
            assert httpx.post(first.url + "/items", json={"ids": [i], **body}).status_code == 200
            call = [*first.call[:-1], "--writable"]
            second = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            try:
                time.sleep(delay)
                assert first.stop() == 0
                line = second.stdout.readline()
                if "http://" in line:
                    url = re.search(r"http://[^/]+", line)[0]
                    for id in range(i + 1):
                        assert httpx.post(url + "/search", json={"id": id}).status_code == 200, (delay, id)
                    outcomes.append("has the items")
                    second.terminate()
                    assert second.wait(20) == 0
                else:
                    assert second.wait(20) == 2
                    assert "in use" in second.stderr.read()
                    outcomes.append("refused")
            finally:
                second.kill()
                second.communicate()
        index = HammingIndex.load(files / "ix.dish")
        assert all(id in index for id in range(i + 1)), (delay, outcomes)
    assert len(outcomes) == 3


def test_second_server_on_the_same_index_is_rejected(files, cli):
    call = ["serve", "--model", files / "m.dish", "--index", files / "ix.dish", "--port", 0]
    with closing(server.open_collection(files / "m.dish", files / "ix.dish", writable=True)):
        for options in (["--writable"], [], ["--workers", 2]):
            code, _, errors = cli(*call, *options)
            assert (code, "ix.dish is in use" in errors) == (2, True)


@pytest.mark.long  # test_second_server_on_the_same_index_is_rejected and test_writer_note.py are quick
def test_command_line_and_server_do_not_change_one_index_at_a_time(files, cli, monkeypatch):
    path, ids = files / "ix.dish", files / "gone.npy"
    np.save(ids, [1003, 1005])
    with Server(files, "--writable") as running:
        code, out, errors = cli("index", "-o", path, "--remove", ids)
        assert (code, out) == (2, "")
        assert f"process {running.process.pid} on" in errors
        assert f"POST {running.url}/items/delete removes" in errors
        assert running.ask("DELETE", "/items/1004")[0] == 200
        assert running.stop() == 0
    assert {1003, 1004, 1005} - set(HammingIndex.load(path).ids.tolist()) == {1004}
    refused = []

    def start_server(*_):
        with pytest.raises(RuntimeError, match=rf"in use: `dish index` \(process {os.getpid()} on .*Try again"):
            Server(files, "--writable")
        refused.append(True)
        return ""

    monkeypatch.setattr("dish.cli.search._remove", start_server)  # in the middle of the command
    assert cli("index", "-o", path, "--remove", ids)[0] == 0
    assert refused


def test_rejects_the_index_of_another_model(files, learned):
    hasher, X, _, _ = learned
    index = HammingIndex(32, model=hasher.fingerprint_)
    index.add(hasher.transform(X))
    index.save(files / "ix.dish")
    with closing(server.open_collection(files / "m.dish", files / "ix.dish")) as found:
        assert len(found) == 600
    DISH(n_bits=32, n_anchors=40, random_state=1).fit(X, learned[2]).save(files / "m.dish")
    with pytest.raises(ValueError, match="model"):
        server.open_collection(files / "m.dish", files / "ix.dish", writable=True)
    assert not in_use(files / "ix.dish")  # it was released


def test_serves_an_index_without_a_model_name(files):
    with closing(server.open_collection(files / "m.dish", files / "ix.dish")) as found:
        assert len(found) == 600


def test_damaged_files_give_one_line_and_exit_code_2(files, cli):
    def serve(*options):
        code, _, errors = cli(
            "serve", "--model", files / "m.dish", "--index", files / "ix.dish", "--port", 0, *options
        )
        lines = [line for line in errors.splitlines() if not line.startswith("{")]
        assert code == 2, errors
        assert len(lines) == 1, errors
        return lines[0]

    whole = (files / "ix.dish").read_bytes()
    (files / "ix.dish").write_bytes(whole[: len(whole) // 2])
    assert "ix.dish" in serve()
    middle = len(whole) - 40
    (files / "ix.dish").write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    assert "ix.dish" in serve()
    (files / "ix.dish").unlink()
    assert "ix.dish" in serve()
    (files / "ix.dish").write_bytes(whole)
    (journal_path(files / "ix.dish")).write_bytes(b"this is no journal at all")
    assert "damaged" in serve("--writable")
    assert "damaged" in serve()
    (journal_path(files / "ix.dish")).unlink()
    assert "not a folder" in serve("--images", files / "nowhere")
    assert "--input" in serve("--input", "sound")
    assert "--token" in serve("--token", " ")
    assert "no such address" in serve("--host", "no.such.host.invalid")
    HammingIndex(16).save(files / "ix.dish")
    assert "16" in serve()


def test_network_for_vectors(learned):
    _, X, y, _ = learned
    hasher = DeepDISH(n_bits=16, net="mlp", n_iter=1, epochs=2, device="cpu").fit(X.astype(np.float32), y)
    index = HammingIndex(16)
    index.add(hasher.transform(X.astype(np.float32)), labels=[str(v) for v in y])
    found = Collection(hasher, index)
    assert (found.takes, found.n_features) == ("vector", 64)
    server.warm_up(found)
    client = TestClient(create_app(found))
    answer = client.post("/search", json={"vector": X[3].tolist(), "k": 3}).json()
    assert answer["code"] == hasher.transform(X[3:4].astype(np.float32)).tobytes().hex()
    assert answer["distances"][0] == 0
    assert client.get("/info").json()["takes"] == "vector"
    assert upload(client, png(np.zeros((8, 8), np.uint8))).status_code == 415
    with pytest.raises(ValueError, match="takes vectors"):
        Collection(hasher, index, takes="image")


def test_missing_package_is_named():
    program = "import sys; sys.modules['fastapi'] = None\nfrom dish.web import server"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "pip install 'dish-hash[serve]'" in done.stderr


@pytest.mark.long
def test_empty_cache_of_kernels_delays_the_start_and_no_request(files, learned, tmp_path):
    """As in a new container, where the home folder cannot be written to, either."""
    env = {"NUMBA_CACHE_DIR": str(tmp_path / "kernels"), "HOME": "/proc/none", "XDG_CACHE_HOME": "/proc/none"}
    codes = np.tile(learned[0].transform(learned[1][:100]), (10, 1)).tobytes()
    with Server(files, env=env) as server:
        times = []
        for i in range(12):  # after some, compiled kernels are worth while
            start = time.perf_counter()
            answer = server.ask("POST", "/search/codes?k=5", codes, content_type="application/octet-stream")
            assert answer[0] == 200
            assert server.post("/search", {"id": 1000 + i, "radius": i})[0] == 200
            times.append(time.perf_counter() - start)
        assert max(times) < 1.5, max(times)
