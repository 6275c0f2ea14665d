import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from dish import DISH, HammingIndex

httpx = pytest.importorskip("httpx")
psutil = pytest.importorskip("psutil")
pytestmark = pytest.mark.engines

BINARY = {"content-type": "application/octet-stream"}
TOKEN = "a token of sixteen characters or more"


@pytest.fixture(scope="module", params=["this machine", "Ray Serve"])
def served(request, tmp_path_factory):
    """`dish serve --ray`: (rows, model, index of their codes, client, the process whose children search)."""
    folder = tmp_path_factory.mktemp("served")
    X = np.random.default_rng(0).normal(size=(3000, 6)).astype(np.float32)
    hasher = DISH(n_bits=24, n_anchors=20, random_state=0).fit(X[:200], X[:200, 0] > 0)
    index = HammingIndex(24, model=hasher.fingerprint_)
    index.add(hasher.transform(X), [f"row {i}" for i in range(len(X))], [i % 3 for i in range(len(X))])
    hasher.save(folder / "model.dish")
    index.save(folder / "index.dish")
    command = f"serve --model {folder}/model.dish --index {folder}/index.dish --ray --shards 2 --port 0".split()
    environment, owner = dict(os.environ), None
    if request.param == "Ray Serve":  # the cluster of the other tests; its token is in the environment
        address = request.getfixturevalue("ray").get_runtime_context().gcs_address
        command += ["--ray-address", address]
        owner = psutil.Process()
    server = subprocess.Popen(
        [sys.executable, "-m", "dish", *command],
        stdout=subprocess.PIPE,
        stderr=open(folder / "log", "w"),  # noqa: SIM115 (the server writes it)
        text=True,
        env=environment | {"DISH_TOKEN": TOKEN},
    )
    try:
        line = next((line for line in server.stdout if line.startswith("dish: serving")), "")
        found = re.search(r"3,000 items on (http://127\.0\.0\.1:\d+)/", line)
        assert found, (folder / "log").read_text()[-3000:]
        with httpx.Client(base_url=found[1], headers={"authorization": f"Bearer {TOKEN}"}, timeout=60) as client:
            yield X, hasher, index, client, owner or psutil.Process(server.pid)
    finally:
        children = psutil.Process(server.pid).children(recursive=True)
        server.send_signal(signal.SIGTERM)
        try:
            assert server.wait(60) == 0
        finally:
            server.kill()
            end = time.monotonic() + 30
            while (left := [one for one in children if is_running(one)]) and time.monotonic() < end:
                time.sleep(0.1)
            for process in left:
                process.kill()
            assert left == []


def is_running(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def title(process):
    """The first word of its command line; "" for a process that has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return next(iter(process.cmdline()), "")
    return ""


def wanted_hits(index, code, k):
    D, ids = index.search(code, k)
    codes = [code.tobytes().hex() for code in index.get(ids[0])]
    return {
        "ids": ids[0].tolist(),
        "distances": D[0].tolist(),
        "labels": index.labels_of(ids[0]).tolist(),
        "codes": codes,
    }


def test_search_health_and_info_are_those_of_one_process(served):
    X, hasher, index, client, _ = served
    for i in range(5):
        answer = client.post("/search", json={"vector": X[i].tolist(), "k": 7}).json()
        assert wanted_hits(index, hasher.transform(X[i : i + 1]), 7).items() <= answer.items()
    by_id = client.post("/search", json={"id": "row 2999", "radius": 1}).json()
    lims, D, ids = index.radius_search(index.get(["row 2999"]), 1)
    assert (by_id["ids"], by_id["distances"], by_id["found"]) == (ids.tolist(), D.tolist(), lims[-1])
    assert client.get("/health").json() == {"status": "ok", "size": 3000}
    about = client.get("/info").json()
    assert (about["n_bits"], about["size"], about["ids"], about["writable"]) == (24, 3000, "string", False)
    assert client.post("/search", json={"id": "unknown"}).status_code == 404
    assert client.post("/items", json={"ids": ["new"], "vectors": X[:1].tolist()}).status_code == 403
    page = client.post("/search/codes?k=5", content=index.get(["row 1"]).tobytes(), headers=BINARY)
    assert page.status_code == 200


def test_the_token_is_needed(served):
    client = served[3]
    assert client.post("/search", json={"id": "row 1"}, headers={"authorization": "Bearer wrong"}).status_code == 401


def test_nothing_listens_beyond_this_machine(served):
    root, hosts = served[-1], set()
    if root == psutil.Process():
        pytest.skip("Ray Serve opens a port to the network in each replica: a cluster is for a network of its own")
    for process in [root, *root.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            hosts |= {one.laddr.ip for one in process.net_connections("inet") if one.status == "LISTEN"}
    assert "127.0.0.1" in hosts
    assert hosts <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}


@pytest.mark.parametrize("name", ["ray::Shard", "ray::ServeReplica"])
def test_a_killed_process_costs_no_wrong_answer(served, name):
    """Requests that reach a dead replica of the service may fail; answers are complete and right."""
    X, hasher, index, client, owner = served
    if name == "ray::ServeReplica" and owner != psutil.Process():
        pytest.skip("without a cluster, the service has no replicas")
    wanted, answers, stop = wanted_hits(index, hasher.transform(X[:1]), 9), [], threading.Event()

    def search():
        while not stop.is_set():
            try:
                answers.append(client.post("/search", json={"vector": X[0].tolist(), "k": 9}))
            except httpx.HTTPError as error:
                answers.append(error)

    thread = threading.Thread(target=search)
    thread.start()
    try:
        victim = next(one for one in owner.children(recursive=True) if title(one).startswith(name))
        victim.send_signal(signal.SIGKILL)
        killed, end = len(answers), time.monotonic() + 90
        while time.monotonic() < end:
            later = answers[killed + 5 :]
            if len(later) >= 5 and getattr(later[-1], "status_code", 0) == 200:
                break
            time.sleep(0.05)
    finally:
        stop.set()
        thread.join()
    good = [json.loads(answer.content) for answer in answers if getattr(answer, "status_code", 0) == 200]
    assert good[-1:] == [json.loads(answers[-1].content)]  # it has recovered
    assert all(wanted.items() <= answer.items() for answer in good)
    if name == "ray::Shard":
        assert len(good) == len(answers)
