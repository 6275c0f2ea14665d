"""Requests at saturation against a real server: throughput, latency, errors, memory; before and after in one run.

The server is `dish serve` in a process of its own, on this machine, over 1,000,000 codes: those of scikit-learn's
digits (real) repeated, with every bit turned with probability 0.1, so that the codes are not all the same. This
process is the client: asyncio, kept connections, requests made beforehand; the two share the cores. Measured are
single queries by JSON (vectors; by k, and mixed with some by radius) and packed codes by the binary route, many per
request. /health is asked meanwhile.

    python benchmarks/load.py                           # writes benchmarks/results/load.json
    python benchmarks/load.py --against ../old/src  # and, before it, the JSON load on other sources
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

N, BITS, K, RADIUS, SEED = 1_000_000, 64, 10, 2, 0
CONNECTIONS, CONCURRENCY = 64, 64
CODES = 500  # per request of the binary route, on BINARY_CONNECTIONS of them
BINARY_CONNECTIONS = 2
RESULTS = Path(__file__).parent / "results" / "load.json"


def prepare(folder: Path) -> None:
    """Write the model, the index and the codes to ask with, by whichever version of dish is on the path."""
    from dish import DISH, HammingIndex

    X, y = load_digits(return_X_y=True)
    hasher = DISH(n_bits=BITS, n_anchors=500, random_state=SEED).fit(X[300:], y[300:])
    rng = np.random.default_rng(SEED)
    rows = rng.integers(300, len(X), N)
    flips = np.packbits(rng.random((N, BITS), np.float32) < 0.1, axis=1)
    index = HammingIndex(BITS)
    index.add(hasher.transform(X)[rows] ^ flips, labels=[str(label) for label in y[rows]])
    hasher.save(folder / "m.dish")
    index.save(folder / "ix.dish")
    np.save(folder / "codes.npy", hasher.transform(X[:300]))


# --- requests ---


def json_requests(mixed: bool) -> list[bytes]:
    """Single queries: vectors by k; mixed: every fifth by radius, which mostly has a thousand hits."""
    found = []
    for i, x in enumerate(load_digits().data[:300]):
        extent = {"radius": RADIUS} if mixed and i % 5 == 0 else {"k": K}
        found.append(_request("/search", "application/json", json.dumps({"vector": x.tolist(), **extent}).encode()))
    return found


def binary_requests(folder: Path) -> list[bytes]:
    """Many packed codes per request."""
    codes, rng = np.load(folder / "codes.npy"), np.random.default_rng(SEED)
    kind = "application/octet-stream"
    return [_request(f"/search/codes?k={K}", kind, codes[rng.integers(300, size=CODES)].tobytes()) for _ in range(50)]


def _request(path: str, kind: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


# --- the client ---


class Client(asyncio.Protocol):
    """One kept connection: the next request as soon as an answer is there."""

    def __init__(self, requests: list[bytes], first: int, end: float, seen: Seen) -> None:
        self.requests, self.i, self.end, self.seen = requests, first, end, seen
        self.buffer, self.needed = b"", 0
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._ask()

    def _ask(self) -> None:
        self.i += 1
        self.start = time.perf_counter()
        self.transport.write(self.requests[self.i % len(self.requests)])

    def data_received(self, data: bytes) -> None:
        """Count an answer once all of it is there."""
        self.buffer += data
        if not self.needed:
            at = self.buffer.find(b"\r\n\r\n")
            if at < 0:
                return
            found = re.search(rb"(?i)content-length: (\d+)", self.buffer[:at])
            self.needed = at + 4 + int(found[1] if found else 0)
        if len(self.buffer) < self.needed:
            return
        status = self.buffer[9:12].decode()
        self.buffer, self.needed = self.buffer[self.needed :], 0
        now = time.perf_counter()
        self.seen.statuses[status] += 1
        if status == "200":
            self.seen.seconds.append(now - self.start)
        if now < self.end:
            self._ask()
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """A connection that ends too early is an error."""
        if time.perf_counter() < self.end:
            self.seen.statuses["closed"] += 1
        if not self.done.done():
            self.done.set_result(None)


class Seen:
    """What the clients saw."""

    def __init__(self) -> None:
        self.statuses: Counter[str] = Counter()
        self.seconds: list[float] = []
        self.health: list[float] = []


async def saturate(port: int, requests: list[bytes], connections: int, seconds: float) -> Seen:
    """All connections for some seconds."""
    loop, seen = asyncio.get_running_loop(), Seen()
    end = time.perf_counter() + seconds
    clients = []
    for i in range(connections):
        make = lambda i=i: Client(requests, i * 7, end, seen)  # noqa: E731
        clients.append((await loop.create_connection(make, "127.0.0.1", port))[1])
    watch = asyncio.create_task(_watch_health(port, end, seen))
    await asyncio.gather(*(client.done for client in clients), watch)
    return seen


async def _watch_health(port: int, end: float, seen: Seen) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.perf_counter() < end:
        start = time.perf_counter()
        writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        found = re.search(rb"(?i)content-length: (\d+)", head)
        await reader.readexactly(int(found[1] if found else 0))
        seen.health.append(time.perf_counter() - start)
        await asyncio.sleep(0.25)
    writer.close()


# --- the run ---


class Server:
    """`dish serve` of this version, or of the sources at a path."""

    def __init__(self, folder: Path, sources: Path | None) -> None:
        self.env = {**os.environ, **({} if sources is None else {"PYTHONPATH": str(sources)})}
        folder.mkdir()
        subprocess.run([sys.executable, __file__, "--prepare", folder], env=self.env, check=True)
        call = [sys.executable, "-m", "dish", "serve", "--model", folder / "m.dish", "--index", folder / "ix.dish"]
        call += ["--port", "0", "--concurrency", str(CONCURRENCY)]
        self.log = open(folder / "log", "wb")  # noqa: SIM115 (closed by stop)
        self.process = subprocess.Popen(
            [*map(str, call)], stdout=subprocess.PIPE, stderr=self.log, text=True, env=self.env
        )
        line = self.process.stdout.readline() if self.process.stdout else ""
        self.port = int(re.findall(r":(\d+)/", line)[0])

    def resident(self) -> int:
        """Resident bytes."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

    def cpu_seconds(self) -> float:
        """Of all its threads, so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> int:
        """The exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(30)
        self.log.close()
        return code


def quantiles(seconds: list[float]) -> dict[str, float]:
    """In milliseconds."""
    return {f"p{q}": round(1000 * float(np.percentile(seconds, q)), 2) for q in (50, 90, 99, 100)}


def measure(server: Server, requests: list[bytes], connections: int, seconds: float, queries: int) -> dict[str, Any]:
    """Warm up, then load; what was seen."""
    asyncio.run(saturate(server.port, requests, connections, min(5.0, seconds / 2)))  # warm up
    before, cpu, own = server.resident(), server.cpu_seconds(), time.process_time()
    seen = asyncio.run(saturate(server.port, requests, connections, seconds))
    return {
        "seconds": seconds,
        "connections": connections,
        "queries_per_request": queries,
        "answers": dict(seen.statuses),
        "queries_per_second": round(queries * len(seen.seconds) / seconds, 1),
        "cpu_us_per_query": {
            "server": round(1e6 * (server.cpu_seconds() - cpu) / (queries * len(seen.seconds))),
            "client": round(1e6 * (time.process_time() - own) / (queries * len(seen.seconds))),
        },
        "latency_ms": quantiles(seen.seconds),
        "health_ms": quantiles(seen.health),
        "server_resident_bytes": {"start": before, "end": server.resident()},
    }


def measure_json(server: Server, seconds: float, suffix: str) -> dict[str, Any]:
    """Single queries by k, and mixed with some by radius."""
    return {
        f"{name}{suffix}": measure(server, json_requests(mixed), CONNECTIONS, seconds, 1)
        for name, mixed in (("json_k", False), ("json_mixed", True))
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--against", type=Path, help="sources of another version, measured first by JSON")
    parser.add_argument("--prepare", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.prepare:
        prepare(given.prepare)
        return
    results: dict[str, Any] = {"load_average_before": os.getloadavg()}
    with tempfile.TemporaryDirectory() as temporary:
        if given.against:
            server = Server(Path(temporary, "before"), given.against)
            results |= measure_json(server, given.seconds, "_before")
            server.stop()
        folder = Path(temporary, "now")
        server = Server(folder, None)
        results |= measure_json(server, given.seconds, "")
        results["binary"] = measure(server, binary_requests(folder), BINARY_CONNECTIONS, given.seconds, CODES)
        results["exit_code"] = server.stop()
    from dish import machine
    from dish.experiments.bench import write_json

    what = f"{N:,} codes of {BITS} bits (digits, bits turned with probability 0.1)"
    how = f"json_k and binary: k={K}; json_mixed: 4 in 5 by k={K}, else radius {RADIUS}"
    content = {"what": f"{what}; {how}", **results, "environment": machine.environment()}
    write_json(given.output, content)
    print(json.dumps({name: value for name, value in content.items() if name != "environment"}, indent=1))


if __name__ == "__main__":
    main()
