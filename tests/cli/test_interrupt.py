"""Ctrl-C in every command: one line, exit code 130, no file that was not there before, and no process left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from dish import DISH, HammingIndex
from helpers.photos import draw

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads the processes in /proc")

BLOCK = """
import importlib, sys, time
module, _, name = sys.argv.pop(1).partition(":")
where = importlib.import_module(module)
*path, last = name.split(".")
for part in path:
    where = getattr(where, part)

def block(*args, **kwargs):
    print("working", flush=True)
    time.sleep(60)

setattr(where, last, block)
from dish.__main__ import main
main()
"""  # runs a command until it calls a function in the middle of its work

COMMANDS = {  # name → the function, and the words of the command
    "encode": ("dish.hasher:Hasher.transform", "encode m.dish X.npy -o new.npy"),
    "fit": ("dish.posterior.dish:DISH._learn", "fit X.npy y.npy -o new.dish"),
    "fit lsh": ("dish.baselines.lsh:LSH.fit", "fit X.npy -o new.dish --method lsh"),
    "eval": ("dish.hasher:Hasher.transform", "eval m.dish --db X.npy y.npy --queries X.npy y.npy --picture new.png"),
    "tune": ("dish.evaluation.tune:HeldOut.trial", "tune X.npy y.npy --picture new.png"),
    "bench": ("dish.experiments.bench:_attempt", "bench --methods lsh --results runs --table new.md"),
    "reproduce": ("dish.experiments.bench:_attempt", "reproduce table1 --data digits --results runs -o report"),
    "index": ("dish.index.hamming:HammingIndex.add", "index codes.npy -o new.dish"),
    "index --add": ("dish.index.hamming:HammingIndex.add", "index codes.npy -o ix.dish --add"),
    "search": ("dish.index.hamming:HammingIndex.search", "search ix.dish --codes codes.npy"),
    "features": ("dish.deep.image_features:file_features", "features photos -o new.npy"),
    "photos": ("dish.deep.image_features:file_features", "photos photos --no-page"),
    "demo": ("dish.experiments.demo:run", "demo -o new"),
    "store push": (
        "dish.stores.postgres:PostgresStore.__init__",
        "store push codes.npy --address postgresql://no --table t",
    ),
}
SERVERS = {  # name → the words of the command, and what it prints when it is at work
    "serve": ("serve --model m.dish --index ix.dish --port 0", "http://"),
    "serve --workers": ("serve --model m.dish --index ix.dish --port 0 --workers 2", "http://"),
    "demo --serve": ("demo --serve --port 0", "learning codes"),
    "warmup": ("warmup", "compiling"),
}


@pytest.fixture
def work(tmp_path, blobs):
    """A folder with everything that the commands read."""
    X, y = blobs
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    hasher = DISH(8, n_anchors=10).fit(X, y)
    hasher.save(tmp_path / "m.dish")
    np.save(tmp_path / "codes.npy", hasher.codes_)
    ix = HammingIndex(8, model=hasher.fingerprint_)
    ix.add(hasher.codes_)
    ix.save(tmp_path / "ix.dish")
    for i in range(3):
        draw(tmp_path / "photos" / f"{i}.png", i)
    return tmp_path


def session(number):
    """The processes of a session that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if fields[3] == str(number) and fields[0] != "Z":
            found.append(stat.parent.name)
    return found


def files(folder):
    """The content of all files, except features with which the same command continues."""
    kept = ".unfinished.db"
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.name.endswith(kept)}


def interrupted(command, folder, ready="working", delay=0.0):
    """Start a command, wait until it is at work, press Ctrl-C, and check how it ends and what it leaves."""
    before = files(folder)
    environment = {**os.environ, "DISH_CACHE": str(folder.parent / f"{folder.name}-cache"), "PYTHONUNBUFFERED": "1"}
    environment["NUMBA_CACHE_DIR"] = environment["DISH_CACHE"]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said = []
        for line in process.stdout:
            said.append(line)
            if ready in line:
                break
        time.sleep(delay)
        assert process.poll() is None, said
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process
        rest = process.communicate(timeout=30)[0]
        code = process.returncode
        assert code in (130, -signal.SIGINT), (code, said, rest)  # both are 130 for a shell
        assert "Traceback" not in rest, rest
        assert rest.strip().splitlines()[-1] == "dish: stopped", rest
        time.sleep(0.1)
        assert session(process.pid) == []
        assert files(folder) == before
    finally:
        if left := session(process.pid):
            for pid in left:
                os.kill(int(pid), signal.SIGKILL)
        process.wait()


@pytest.mark.slow
def test_encode_and_its_imports_can_be_interrupted(work):
    function, words = COMMANDS["encode"]
    interrupted([sys.executable, "-c", BLOCK, function, *words.split()], work)
    interrupted([sys.executable, "-X", "importtime", "-m", "dish", *words.split()], work, ready="typer")


@pytest.mark.long
@pytest.mark.parametrize("name", COMMANDS)
def test_commands_can_be_interrupted(work, name):
    if name == "store push":
        pytest.importorskip("psycopg")
    function, words = COMMANDS[name]
    interrupted([sys.executable, "-c", BLOCK, function, *words.split()], work)


@pytest.mark.long
@pytest.mark.parametrize("name", SERVERS)
def test_servers_and_their_processes_can_be_interrupted(work, name):
    words, ready = SERVERS[name]
    interrupted([sys.executable, "-m", "dish", *words.split()], work, ready, delay=1.0)
