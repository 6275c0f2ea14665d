"""Attacks on a real `dish serve` on loopback: hostile requests, and crashes during writes.

    python tests/torture/service_attacks.py --seconds 400 --kills 20 --output attacks.json

Every attack reports what was seen and whether the server withstood it ("ok"). An attack for which no time is left is
reported as not run. The exit code is 1 if one that was run is not ok.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import random
import resource
import shutil
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from dish import HammingIndex
from helpers.service import Server, X, close, connect, is_open, prepare
from helpers.web import bomb

TOKEN = "open sesame"
SMALL_JOURNAL = 4_000  # bytes: the index file is rewritten often, so that kills hit that too


# --- attacks on one server ---


def slow_headers(server: Server) -> dict[str, Any]:
    """600 clients send the headers of a request one byte at a time."""
    sockets = connect(server.port, 600, b"GET /info HTTP/1.1\r\nhost: localhost\r\nx: ")
    seen = [server.seconds_of("/health") for _ in range(10)]
    end = time.monotonic() + 13
    while time.monotonic() < end:
        time.sleep(1)
        for one in sockets:
            with suppress(OSError):
                one.sendall(b"a")
    alive = sum(map(is_open, sockets))
    close(sockets)
    return {"ok": max(seen) < 5 and alive == 0, "health_s": max(seen), "still_open_after_13_s": alive}


def idle_flood(server: Server) -> dict[str, Any]:
    """Open as many idle connections as this machine allows, up to 10,000."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 10_300), hard))
    most = min(10_000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 200)
    sockets, seen = [], []
    for _ in range(10):
        sockets += connect(server.port, most // 10)
        seen.append(server.seconds_of("/health"))
    files = server.status("files")
    close(sockets)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return {"ok": max(seen) < 5 and files < 1000, "connections": len(sockets), "health_s": max(seen), "files": files}


def slow_bodies(server: Server) -> dict[str, Any]:
    """Send 600 requests whose body never arrives."""
    head = b"POST /search HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999\r\n\r\n{"
    sockets = connect(server.port, 600, head)
    seen = [server.seconds_of("/health") for _ in range(5)]
    searched = server.post("/search", {"id": "item1", "k": 1})[0]
    close(sockets)
    return {"ok": max(seen) < 5 and searched == 200, "health_s": max(seen), "a_search_meanwhile": searched}


def hostile_json(server: Server) -> dict[str, Any]:
    """Send bodies that are not valid requests."""
    row = ",".join(["1"] * 63).encode()
    bodies = {
        "nested arrays": b"[" * 100_000 + b"]" * 100_000,
        "nested objects": b'{"vector":' * 50_000 + b"1" + b"}" * 50_000,
        **{
            value: b'{"vector":[' + value.encode() + b"," + row + b"]}"
            for value in ("NaN", "Infinity", "1e400", "1e39")
        },
        "a number of 100,000 digits": b'{"vector":[' + b"9" * 100_000 + b"]}",
        "k of 5,000 digits": b'{"id":"item1","k":' + b"9" * 5000 + b"}",
        "k is half": b'{"id":"item1","k":1.5}',
        "k is true": b'{"id":"item1","k":true}',
        "lone surrogate": b'{"id":"\\ud800","k":1}',
        "NUL": b'{"id":"a\\u0000","k":1}',
        "UTF-16": '{"id":"item1"}'.encode("utf-16"),
        "5 MB of blanks": b" " * (5 << 20),
        "null": b"null",
        "nothing": b"",
    }
    statuses = {name: server.post("/search", body)[0] for name, body in bodies.items()}
    return {"ok": all(400 <= s < 500 for s in statuses.values()), "statuses": statuses} | _alive(server)


def image_bombs(server: Server) -> dict[str, Any]:
    """Upload small files that decode to large pictures, and files that are no pictures."""
    frames = io.BytesIO()
    first, *rest = [Image.new("P", (500, 500), i % 255) for i in range(200)]
    first.save(frames, "GIF", save_all=True, append_images=rest)
    flat = io.BytesIO()
    Image.new("L", (4000, 4000)).save(flat, "PNG")
    pictures = {f"PNG of {side}²": bomb(side) for side in (0, 5_000, 60_000, 2**31 - 1)}
    pictures |= {
        "GIF of 200 frames": frames.getvalue(),
        "PNG of 16 million pixels": flat.getvalue(),
        "text": b"x" * 99,
    }
    before = server.status("VmHWM")
    statuses = {name: _upload(server, data) for name, data in pictures.items()}
    work = [threading.Thread(target=_upload, args=(server, flat.getvalue())) for _ in range(16)]
    for thread in work:
        thread.start()
    seen = [server.seconds_of("/health") for _ in range(5)]
    for thread in work:
        thread.join(60)
    grown = (server.status("VmHWM") - before) // 1024
    ok = all(s < 500 for s in statuses.values()) and max(seen) < 5 and grown < 1500
    return {"ok": ok, "statuses": statuses, "health_s": max(seen), "memory_grown_mb": grown} | _alive(server)


def broken_http(server: Server) -> dict[str, Any]:
    """Send ambiguous, invalid and endless requests."""
    start = b"POST /search HTTP/1.1\r\nHost: localhost\r\n"
    raw = {
        "two lengths": start + b"Content-Length: 5\r\nContent-Length: 7\r\n\r\nabcdefg",
        "length and chunks": start + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /x",
        "negative length": start + b"Content-Length: -5\r\n\r\n",
        "length of 20 digits": start + b"Content-Length: 99999999999999999999\r\n\r\n",
        "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        "path of 200 kB": b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "two hosts": b"GET /info HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n",
        "host in brackets and more": b"GET /info HTTP/1.1\r\nHost: [::1].evil\r\n\r\n",
        "host of another": b"GET /info HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    }
    answers = {name: _raw(server, data) for name, data in raw.items()}
    return {"ok": not any("200" in line for line in answers.values()), "answers": answers} | _alive(server)


def wrong_tokens(server: Server) -> dict[str, Any]:
    """Send 1,000 wrong tokens."""
    statuses = [server.ask("GET", "/info", authorization=f"Bearer {i}")[0] for i in range(1000)]
    right = server.ask("GET", "/info", authorization=f"bearer {TOKEN}")[0]
    ok = set(statuses) == {401} and right == 200 and server.seconds_of("/health") < 5
    return {"ok": ok, "statuses": sorted(set(statuses)), "right_token": right}


def many_samples(server: Server) -> dict[str, Any]:
    """Ask for samples with 100 clients while another one searches."""
    work = [threading.Thread(target=lambda: server.ask("GET", "/samples?n=100")) for _ in range(100)]
    for thread in work:
        thread.start()
    seen = []
    while any(thread.is_alive() for thread in work) or len(seen) < 5:
        start = time.perf_counter()
        if server.post("/search", {"id": "item1", "k": 1})[0] == 200:
            seen.append(time.perf_counter() - start)
    return {"ok": max(seen) < 2, "a_search_meanwhile_s": max(seen), "median_s": statistics.median(seen)}


# --- crashes ---


@dataclass
class Model:
    """What clients know: the code of each item whose write was acknowledged, and the items that were removed."""

    codes: dict[str, str] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)

    @property
    def acknowledged(self) -> int:
        """Items written and removed."""
        return len(self.codes) + 2 * len(self.removed)

    def differences(self, code_of: Callable[[str], str | None], sample: Callable[[Any], Any] = list) -> list[str]:
        """The ids that are lost, have another code, or are back."""
        wrong = [id for id in sample(sorted(self.codes)) if code_of(id) != self.codes[id]]
        return wrong + [id for id in sample(sorted(self.removed)) if code_of(id) is not None]


def kill_loop(folder: Path, kills: int, end: float, seed: int) -> dict[str, Any]:
    """Kill the server during changes, again and again. Afterwards, items must be what clients know."""
    model, wrong = Model(), list[str]()
    done, peak, rng = 0, 0, random.Random(seed)

    def asked(id: str) -> str | None:
        status, content = server.post("/search", {"id": id, "k": 1})
        return json.loads(content)["code"] if status == 200 else None

    while True:
        server = Server(folder, "--writable", journal=SMALL_JOURNAL if done % 2 else None)
        codes = json.loads(server.post("/encode", {"vectors": X[:50].tolist()})[1])["codes"]
        wrong += model.differences(asked, lambda ids: rng.sample(ids, min(25, len(ids))))
        peak = max(peak, server.status("VmHWM"))
        if done >= kills or (done and time.monotonic() > end):
            break
        writers = [threading.Thread(target=_write, args=(server, f"r{done}t{t}", codes, model)) for t in range(4)]
        for thread in writers:
            thread.start()
        time.sleep(rng.uniform(0.1, 0.8))
        server.stop(kill=True)
        for thread in writers:
            thread.join(30)
        done += 1
    code = server.stop()
    index = HammingIndex.load(folder / "ix.dish")
    wrong += model.differences(lambda id: index.get([id]).tobytes().hex() if id in index else None)
    left = sorted(path.name for path in folder.iterdir() if path.suffix in (".tmp", ".db"))
    ok = not wrong and done > 0 and code == 0 and model.acknowledged > 10 * done and not left
    counts = {"kills": done, "acknowledged": model.acknowledged, "removed": len(model.removed), "lost": len(wrong)}
    return {"ok": ok, **counts, "first_lost": wrong[:10], "left_behind": left, "peak_memory_mb": peak // 1024}


def replaced_index(folder: Path) -> dict[str, Any]:
    """Replace the index of a writable server, and overwrite it: it refuses changes and leaves the file alone."""
    seen = []
    for replace in (os.replace, shutil.copyfile):
        other = HammingIndex(64)
        other.add(np.zeros((5, 8), np.uint8), ids=list("abcde"))
        other.save(folder / "other.dish")
        before = (folder / "ix.dish").read_bytes()
        server = Server(folder, "--writable")
        statuses = [server.post("/items", {"ids": ["x"], "vectors": X[:1].tolist()})[0]]
        replace(folder / "other.dish", folder / "ix.dish")
        statuses += [server.post("/items", {"ids": ["y"], "vectors": X[:1].tolist()})[0]]
        statuses += [server.post("/search", {"id": "x", "k": 1})[0]]
        code, left = server.stop(), len(HammingIndex.load(folder / "ix.dish"))
        try:
            Server(folder, "--writable").stop()
            again = "started"
        except RuntimeError:
            again = "refused"
        seen.append((statuses, code, left, again))
        for path in folder.glob("ix.dish*"):
            path.unlink()
        (folder / "ix.dish").write_bytes(before)
    return {"ok": all(one == ([200, 503, 200], 2, 5, "refused") for one in seen), "seen": seen}


def replaced_under_workers(folder: Path) -> dict[str, Any]:
    """Overwrite the index of two workers in place and kill one: both answer from the index they started with."""
    before = (folder / "ix.dish").read_bytes()
    server = Server(folder, "--workers", 2)
    first = server.post("/search", {"id": "item1", "k": 5})[1]
    (folder / "ix.dish").write_bytes(before[: len(before) // 2])
    worker = int(Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()[-1])
    os.kill(worker, signal.SIGKILL)
    answers, end = Counter[str](), time.monotonic() + 12
    while time.monotonic() < end:
        with suppress(OSError, http.client.HTTPException):  # connections to the killed worker
            status, content = server.post("/search", {"id": "item1", "k": 5})
            same = status == 200 and json.loads(content)["ids"] == json.loads(first)["ids"]
            answers["same" if same else "other"] += 1
    code = server.stop()
    (folder / "ix.dish").write_bytes(before)
    return {"ok": set(answers) == {"same"} and code == 0, "answers": dict(answers), "exit_code": code}


def full_disk(folder: Path) -> dict[str, Any]:
    """Limit the size of files, like a full disk: writes get 503, and no acknowledged item is lost."""
    server = Server(folder, "--writable", file_bytes=300_000)
    acknowledged, statuses = [], set()
    for i in range(400):
        ids = [f"full{i}-{j}" for j in range(200)]
        status, _ = server.post("/items", {"ids": ids, "vectors": X[:200].tolist()})
        statuses.add(status)
        if status == 200:
            acknowledged += ids
        elif i > 20:
            break
    searched = server.post("/search", {"id": acknowledged[-1], "k": 1})[0]
    server.stop()
    again = Server(folder, "--writable")  # the disk has room again
    code = again.stop()
    index = HammingIndex.load(folder / "ix.dish")
    lost = [id for id in acknowledged if id not in index]
    ok = statuses == {200, 503} and searched == 200 and not lost and code == 0
    return {"ok": ok, "statuses": sorted(statuses), "acknowledged": len(acknowledged), "lost": lost[:10]}


# --- parts ---


def _alive(server: Server) -> dict[str, Any]:
    return {"health_after_s": round(server.seconds_of("/health"), 3)}


def _upload(server: Server, data: bytes) -> int:
    head = b'--BOUND\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
    body = head + data + b"\r\n--BOUND--\r\n"
    return int(server.ask("POST", "/encode", body, 60, content_type="multipart/form-data; boundary=BOUND")[0])


def _raw(server: Server, data: bytes) -> str:
    with socket.create_connection(("127.0.0.1", server.port), timeout=15) as one:
        try:
            one.sendall(data)
            return one.recv(200).partition(b"\r\n")[0].decode("latin1")
        except OSError as error:
            return type(error).__name__


def _write(server: Server, name: str, codes: list[str], model: Model) -> None:
    """Write items and remove every tenth. What was not acknowledged is not known."""
    for i in range(10_000):
        rows = [(5 * i + j) % 50 for j in range(5)]
        ids = [f"{name}i{i}-{j}" for j in range(5)]
        try:
            status, _ = server.post("/items", {"ids": ids, "vectors": X[rows].tolist(), "labels": ["new"] * 5})
            if status == 200:
                model.codes.update({id: codes[row] for id, row in zip(ids, rows, strict=True)})
            if status == 200 and i % 2:
                model.codes.pop(ids[0])
                if server.ask("DELETE", f"/items/{ids[0]}")[0] == 200:
                    model.removed.add(ids[0])
        except (OSError, http.client.HTTPException):
            return


def main() -> None:
    """Run all attacks within the time limit; print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=400.0)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    start = time.monotonic()
    end, results, peak = start + given.seconds, dict[str, dict[str, Any]](), 0
    attacks = (slow_headers, idle_flood, slow_bodies, hostile_json, image_bombs, broken_http, many_samples)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "one")
        folder.mkdir()
        prepare(folder)
        crash, full = (Path(shutil.copytree(folder, folder.with_name(name))) for name in ("crash", "full"))
        some = start + 0.4 * given.seconds
        results["kill_loop"] = _within(end, kill_loop, crash, given.kills, some, given.seed)
        results["full_disk"] = _within(end, full_disk, full)  # an index of its own: a larger one could not be written
        for attack in (replaced_index, replaced_under_workers):
            results[attack.__name__] = _within(end, attack, folder)
        for group, options in [(attacks, ("--input", "digits8")), ((wrong_tokens,), ("--token", TOKEN))]:
            server = Server(folder, *options)
            try:
                for attack in group:
                    results[attack.__name__] = _within(end, attack, server)
                peak = max(peak, server.status("VmHWM"))
            finally:
                server.stop()
    ok = all(result["ok"] for result in results.values() if "not_run" not in result)
    peak = max(peak // 1024, results["kill_loop"].get("peak_memory_mb", 0))
    content = {
        "ok": ok,
        "seconds": round(time.monotonic() - start, 1),
        "not_run": sum("not_run" in result for result in results.values()),
        **{name: results["kill_loop"].get(name) for name in ("kills", "acknowledged", "lost")},
        "longest_health_s": max((result.get("health_s", 0.0) for result in results.values()), default=0.0),
        "peak_memory_mb": peak,
        "attacks": results,
    }
    text = json.dumps(content, indent=1, default=float)
    print(text)
    if given.output:
        given.output.write_text(text + "\n")
    sys.exit(0 if ok else 1)


def _within(end: float, attack: Any, *args: Any) -> dict[str, Any]:
    if time.monotonic() > end:
        return {"ok": False, "not_run": "the time limit was reached"}
    try:
        return dict(attack(*args))
    except Exception as error:
        return {"ok": False, "seen": f"{type(error).__name__}: {str(error)[-300:]}"}


if __name__ == "__main__":
    main()
