"""`dish serve --workers`: several processes, one address, one index that none of them changes."""

import os
import signal
import time
from pathlib import Path

import httpx
import pytest

from dish.web import sockets, workers
from dish.web.middleware import Limits
from helpers.web import Server


def lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(true, seconds=40):
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert true()


client = httpx.Client(timeout=40, headers={"connection": "close"})  # a new connection each: the system spreads them


def metric(url, name):
    """Samples of a metric by their labels."""
    lines = client.get(url + "/metrics").text.splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)}


def pids_of(server):
    found = metric(server.url, "process_resident_memory_bytes")
    return {int(labels.split('worker="')[1].split('"')[0]) for labels in found}


@pytest.mark.slow
def test_workers_answer_alike_count_together_are_replaced_and_stop(files, learned):
    _, X, _, _ = learned
    with Server(files, "--workers", 2) as server:
        pids = pids_of(server)
        assert len(pids) == 2
        assert server.process.pid not in pids
        answers, asked = set(), 40
        for _ in range(asked):
            answer = client.post(server.url + "/search", json={"vector": X[3].tolist(), "k": 5})
            assert answer.status_code == 200
            answers.add(tuple(answer.json()["ids"]))
        assert len(answers) == 1
        for _ in range(5):  # whoever is asked
            assert sum(metric(server.url, 'dish_requests_total{method="POST",route="/search"').values()) == asked
        refused = client.post(server.url + "/items", json={"ids": [1], "vectors": X[:1].tolist()})
        assert refused.status_code == 403
        assert "workers share one index" in refused.json()["error"]

        dead = min(pids)
        os.kill(dead, signal.SIGKILL)
        wait_until(lambda: '"event": "a worker died"' in (files / "log").read_text())
        wait_until(lambda: not lives(dead))
        for i in range(10):  # also those that waited on its socket
            assert client.post(server.url + "/search", json={"id": 1000 + i}).status_code == 200
        now = pids_of(server)
        assert len(now) == 2
        assert dead not in now
        assert sum(metric(server.url, 'dish_requests_total{method="POST",route="/search"').values()) == asked + 10

        assert server.stop() == 0
        assert not any(lives(pid) for pid in now)
        with pytest.raises(httpx.ConnectError):
            client.get(server.url + "/health")


@pytest.mark.slow
def test_a_parent_that_is_killed_leaves_nobody_behind(files):
    (files / "tmp").mkdir()
    with Server(files, "--workers", 2, env={"TMPDIR": str(files / "tmp")}) as server:
        pids = pids_of(server)
        assert len(pids) == 2
        server.process.kill()
        wait_until(lambda: not any(lives(pid) for pid in pids))
    assert not list((files / "tmp").glob("dish-workers-*"))


@pytest.mark.slow
def test_what_a_worker_cannot_serve_is_one_clear_line(files, monkeypatch, capsys):
    (files / "ix.dish").write_bytes(b"this is no index")
    served = workers.Served(files / "m.dish", files / "ix.dish")
    with pytest.raises(ValueError, match=r"ix\.dish"):
        workers.serve(served, Limits(), 2, host="127.0.0.1", port=0)


def test_workers_do_not_take_items(files, capsys, monkeypatch):
    from dish.cli import main

    call = ["dish", "serve", "--model", files / "m.dish", "--index", files / "ix.dish", "--workers", 2, "--writable"]
    monkeypatch.setattr("sys.argv", [*map(str, call)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "--workers 2 and --writable do not go together" in capsys.readouterr().err


def test_an_address_in_use_is_not_shared_with_a_stranger():
    first = sockets.listen("127.0.0.1", 0, workers=2)
    try:
        port = first[0].getsockname()[1]
        assert {one.getsockname()[1] for one in first} == {port}
        for n in (1, 2):
            with pytest.raises(OSError, match="cannot listen"):
                sockets.listen("127.0.0.1", port, workers=n)
    finally:
        for one in first:
            one.close()
