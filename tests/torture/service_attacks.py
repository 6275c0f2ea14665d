"""Attacks on a real `dish serve` on loopback: hostile requests, and crashes during writes.

    python tests/torture/service_attacks.py --seconds 400 --kills 20 --output attacks.json

Every attack reports what was seen and whether the server withstood it ("ok"). An attack for which no time is left is
reported as not ok. The exit code is 1 unless all are ok.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import random
import resource
import shutil
import socket
import statistics
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))
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


def kill_loop(folder: Path, kills: int, end: float) -> dict[str, Any]:
    """Kill the server during writes, again and again. Every acknowledged item must be there afterwards."""
    acknowledged: dict[str, str] = {}
    missing: list[str] = []
    done, rng = 0, random.Random(0)
    while True:
        server = Server(folder, "--writable", journal=SMALL_JOURNAL if done % 2 else None)
        codes = json.loads(server.post("/encode", {"vectors": X[:50].tolist()})[1])["codes"]
        for id in rng.sample(sorted(acknowledged), min(50, len(acknowledged))):
            status, content = server.post("/search", {"id": id, "k": 1})
            if status != 200 or json.loads(content)["code"] != acknowledged[id]:
                missing.append(id)
        if done >= kills or time.monotonic() > end:
            break
        writers = [threading.Thread(target=_write, args=(server, done, t, codes, acknowledged)) for t in range(4)]
        for thread in writers:
            thread.start()
        time.sleep(rng.uniform(0.1, 0.8))
        server.stop(kill=True)
        for thread in writers:
            thread.join(30)
        done += 1
    code = server.stop()
    index = HammingIndex.load(folder / "ix.dish")
    missing += [id for id in acknowledged if id not in index]
    left = sorted(path.name for path in folder.iterdir() if path.suffix == ".tmp")
    ok = not missing and done >= kills and code == 0 and len(acknowledged) > 10 * done and not left
    return {"ok": ok, "kills": done, "acknowledged": len(acknowledged), "lost": missing[:10], "left_behind": left}


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


def _write(server: Server, round_: int, thread: int, codes: list[str], acknowledged: dict[str, str]) -> None:
    for i in range(10_000):
        rows = [(5 * i + j) % 50 for j in range(5)]
        ids = [f"r{round_}t{thread}i{i}-{j}" for j in range(5)]
        try:
            status, _ = server.post("/items", {"ids": ids, "vectors": X[rows].tolist(), "labels": ["new"] * 5})
        except (OSError, http.client.HTTPException):
            return
        if status == 200:
            acknowledged.update({id: codes[row] for id, row in zip(ids, rows, strict=True)})


def main() -> None:
    """Run all attacks within the time limit; print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=400.0)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    start = time.monotonic()
    results: dict[str, dict[str, Any]] = {}
    attacks = (slow_headers, idle_flood, slow_bodies, hostile_json, image_bombs, broken_http, many_samples)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "one")
        folder.mkdir()
        prepare(folder)
        shutil.copytree(folder, folder.with_name("crash"))
        plans = [(attacks, ("--input", "digits8")), ((wrong_tokens,), ("--token", TOKEN))]
        for group, options in plans:
            server = Server(folder, *options)
            try:
                for attack in group:
                    results[attack.__name__] = _within(start + given.seconds, attack, server)
            finally:
                server.stop()
        crash = folder.with_name("crash")
        results["full_disk"] = _within(start + given.seconds, full_disk, crash)
        results["kill_loop"] = _within(start + given.seconds, kill_loop, crash, given.kills, start + given.seconds)
    ok = all(result["ok"] for result in results.values())
    content = {"ok": ok, "seconds": round(time.monotonic() - start, 1), "attacks": results}
    text = json.dumps(content, indent=1, default=float)
    print(text)
    if given.output:
        given.output.write_text(text + "\n")
    sys.exit(0 if ok else 1)


def _within(end: float, attack: Any, *args: Any) -> dict[str, Any]:
    if time.monotonic() > end:
        return {"ok": False, "seen": "not run: the time limit was reached"}
    try:
        return dict(attack(*args))
    except Exception as error:
        return {"ok": False, "seen": repr(error)[:300]}


if __name__ == "__main__":
    main()
