"""`dish serve --workers`: several processes, one address, one read-only index."""

import os
import shutil
import signal
import time
from pathlib import Path

import httpx
import pytest

from dish.alias import CollectionFiles
from dish.errors import InputError
from dish.index.hamming import HammingIndex
from dish.web import workers
from dish.web.limits import Limits
from dish.web.prometheus_metrics import METRICS_FOLDER
from dish.web.source import Source
from helpers.service import Server


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition, seconds=40):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert condition()


client = httpx.Client(timeout=40, headers={"connection": "close"})  # new connections reach both workers


def metric(url, name):
    """Values of a metric by labels."""
    lines = client.get(url + "/metrics").text.splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)}


def pids_of(server):
    found = metric(server.url, "process_resident_memory_bytes")
    return {int(labels.split('worker="')[1].split('"')[0]) for labels in found}


@pytest.mark.long
def test_workers_agree_share_metrics_are_replaced_and_stop(files, learned):
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
        for _ in range(5):  # whichever worker answers
            assert sum(metric(server.url, 'dish_requests_total{method="POST",route="/search"').values()) == asked
        refused = client.post(server.url + "/items", json={"ids": [1], "vectors": X[:1].tolist()})
        assert refused.status_code == 403
        assert "workers share one index" in refused.json()["error"]

        dead = min(pids)
        os.kill(dead, signal.SIGKILL)
        wait_until(lambda: '"event": "a worker died"' in (files / "log").read_text())
        wait_until(lambda: not is_alive(dead))
        for i in range(10):  # the other worker, or the new one
            assert client.post(server.url + "/search", json={"id": 1000 + i}).status_code == 200
        wait_until(lambda: len(pids_of(server)) == 2)
        now = pids_of(server)
        assert dead not in now
        assert sum(metric(server.url, 'dish_requests_total{method="POST",route="/search"').values()) == asked + 10

        assert server.stop() == 0
        assert not any(is_alive(pid) for pid in now)
        with pytest.raises(httpx.ConnectError):
            client.get(server.url + "/health")


@pytest.mark.long
def test_killed_parent_leaves_no_worker(files):
    (files / "tmp").mkdir()
    with Server(files, "--workers", 2, env={"TMPDIR": str(files / "tmp")}) as server:
        pids = pids_of(server)
        assert len(pids) == 2
        server.process.kill()
        wait_until(lambda: not any(is_alive(pid) for pid in pids))
    assert not list((files / "tmp").glob("dish-workers-*"))


@pytest.mark.long
def test_error_of_a_worker_reaches_the_parent(files, monkeypatch):
    for variable in (METRICS_FOLDER, "NUMBA_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.setenv(variable, "1")  # restored afterwards: serve changes the environment
    (files / "ix.dish").write_bytes(b"this is no index")
    source = Source(CollectionFiles(files / "m.dish", files / "ix.dish"))
    with pytest.raises(InputError, match=r"ix\.dish"):
        workers.serve(source, Limits(), 2, host="127.0.0.1", port=0)


def test_rejects_workers_with_writable(files, cli):
    call = ["serve", "--model", files / "m.dish", "--index", files / "ix.dish", "--workers", 2, "--writable"]
    code, _, errors = cli(*call)
    assert code == 2
    assert "--workers 2" in errors
    assert "--writable" in errors


@pytest.mark.long
def test_workers_serve_one_index_whatever_happens_to_its_file(files, learned):
    """Overwritten in place, replaced by one of another model, deleted: also a new worker serves the first index."""
    hasher, X, _, _ = learned
    other = HammingIndex(32, model="b" * 16)
    other.add(hasher.transform(X[:20]))
    other.save(files / "other.dish")
    with Server(files, "--workers", 2) as server:
        query = {"vector": X[3].tolist(), "k": 5}
        first = client.post(server.url + "/search", json=query).json()["ids"]
        shutil.copyfile(files / "other.dish", files / "ix.dish")  # shorter: mapped pages would be gone
        for change in (lambda: None, lambda: os.replace(files / "other.dish", files / "ix.dish")):
            change()
            wait_until(lambda: len(pids_of(server)) == 2)
            pids = pids_of(server)
            os.kill(min(pids), signal.SIGKILL)
            wait_until(lambda pids=pids: len(pids_of(server) - pids) == 1)
            for _ in range(20):
                answer = client.post(server.url + "/search", json=query)
                assert (answer.status_code, answer.json()["ids"]) == (200, first)
                assert client.get(server.url + "/health").json()["size"] == 600
        (files / "m.dish").unlink()
        os.kill(min(pids_of(server)), signal.SIGKILL)
        wait_until(lambda: len(pids_of(server)) == 2)
        assert server.stop() == 0
    assert 'exit_code": -7' not in (files / "log").read_text()  # SIGBUS


@pytest.mark.long
def test_worker_that_cannot_start_does_not_end_the_others(files, learned):
    (files / "tmp").mkdir()
    with Server(files, "--workers", 2, env={"TMPDIR": str(files / "tmp")}) as server:
        copy = next((files / "tmp").glob("dish-workers-*/generation-1/model.dish"))
        content = copy.read_bytes()
        copy.write_bytes(b"this is no model")
        wait_until(lambda: len(pids_of(server)) == 2)
        pids = pids_of(server)
        os.kill(min(pids), signal.SIGKILL)
        wait_until(lambda: "a worker could not start" in (files / "log").read_text())
        assert client.get(server.url + "/health").status_code == 200
        copy.write_bytes(content)
        wait_until(lambda: len(pids_of(server)) == 2)
        assert max(pids) in pids_of(server)
        assert server.stop() == 0
