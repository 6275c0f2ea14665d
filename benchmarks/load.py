"""Throughput, latency, errors and memory of a saturated server; optionally of two versions in one run.

The server is `dish serve` in its own processes, on this machine, with 1,000,000 codes: those of scikit-learn's digits
(real), repeated, with every bit flipped with probability 0.1. This process is the client: asyncio on uvloop,
kept-alive connections, prepared requests. Client and server share the cores. Measured are single queries in JSON
(vectors, by k and mixed with some by radius) and packed codes by the binary route, many per request, with one process
and with one worker per core. An ASGI application that does nothing, on the same HTTP server, gives the upper limit.
/health is requested meanwhile.

    python benchmarks/load.py                       # benchmarks/results/load.json, and the table of docs/serve.md
    python benchmarks/load.py --against ../old/src  # also measures the JSON load on other sources, first
    python benchmarks/load.py --table               # only the table, from existing results
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
import uvloop
from sklearn.datasets import load_digits

N, BITS, K, RADIUS, SEED = 1_000_000, 64, 10, 2, 0
CONNECTIONS, CONCURRENCY = 64, 64
CODES = 500  # per request of the binary route
BINARY_CONNECTIONS = 2
RESULTS = Path(__file__).parent / "results" / "load.json"
WORKERS = max(2, len(os.sched_getaffinity(0)))
LENGTH = re.compile(rb"(?i)\r\ncontent-length: (\d+)")


def prepare(folder: Path) -> None:
    """Write the model, the index and the query codes with the version of dish on the path."""
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
    """Return single queries by k. Mixed: every fifth by radius, which mostly has 1,000 hits."""
    found = []
    for i, x in enumerate(load_digits().data[:300]):
        extent = {"radius": RADIUS} if mixed and i % 5 == 0 else {"k": K}
        found.append(_request("/search", "application/json", json.dumps({"vector": x.tolist(), **extent}).encode()))
    return found


def binary_requests(folder: Path) -> list[bytes]:
    """Return requests with many packed codes each."""
    codes, rng = np.load(folder / "codes.npy"), np.random.default_rng(SEED)
    kind = "application/octet-stream"
    return [_request(f"/search/codes?k={K}", kind, codes[rng.integers(300, size=CODES)].tobytes()) for _ in range(50)]


def _request(path: str, kind: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


# --- the client ---


class Client(asyncio.Protocol):
    """One kept-alive connection that sends its next request as soon as a response is complete."""

    def __init__(self, requests: list[bytes], first: int, end: float, seen: Observations) -> None:
        self.requests, self.i, self.end, self.seen = requests, first, end, seen
        self.buffer, self.needed = b"", 0
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        """Send the first request."""
        self.transport = transport
        self._ask()

    def _ask(self) -> None:
        self.i += 1
        self.start = time.perf_counter()
        self.transport.write(self.requests[self.i % len(self.requests)])

    def data_received(self, data: bytes) -> None:
        """Count a response once it is complete."""
        self.buffer += data
        if not self.needed:
            at = self.buffer.find(b"\r\n\r\n")
            if at < 0:
                return
            found = LENGTH.search(self.buffer, 0, at + 2)
            self.needed = at + 4 + int(found[1] if found else 0)
        if len(self.buffer) < self.needed:
            return
        response, self.buffer, self.needed = self.buffer[: self.needed], self.buffer[self.needed :], 0
        now = time.perf_counter()
        self.seen.note(response, self.start, now)
        if now < self.end:
            self._ask()
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count a connection that ends too early as an error."""
        if time.perf_counter() < self.end:
            self.seen.statuses["closed"] += 1
        if not self.done.done():
            self.done.set_result(None)


class Observations:
    """Statuses and latencies that the clients observed."""

    def __init__(self) -> None:
        self.statuses: Counter[str] = Counter()
        self.seconds: list[float] = []
        self.health: list[float] = []

    def note(self, response: bytes, start: float, end: float) -> None:
        """Count a response to a request that was sent at ``start``."""
        status = response[9:12].decode()
        self.statuses[status] += 1
        if status == "200":
            self.seconds.append(end - start)


async def saturate(
    port: int, requests: list[bytes], connections: int, seconds: float, seen: Observations | None = None
) -> Observations:
    """Keep all connections busy for some seconds."""
    loop, seen = asyncio.get_running_loop(), Observations() if seen is None else seen
    end = time.perf_counter() + seconds
    clients = []
    for i in range(connections):
        make = lambda i=i: Client(requests, i * 7, end, seen)  # noqa: E731
        clients.append((await loop.create_connection(make, "127.0.0.1", port))[1])
    watch = asyncio.create_task(_watch_health(port, end, seen))
    await asyncio.gather(*(client.done for client in clients), watch)
    return seen


async def _watch_health(port: int, end: float, seen: Observations) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.perf_counter() < end:
        start = time.perf_counter()
        writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        found = LENGTH.search(head)
        await reader.readexactly(int(found[1] if found else 0))
        seen.health.append(time.perf_counter() - start)
        await asyncio.sleep(0.25)
    writer.close()


# --- the run ---


class Server:
    """A server process that prints its address, and its child processes."""

    def __init__(self, call: list[Any], log: Path, env: dict[str, str] | None = None) -> None:
        self.log = open(log, "wb")  # noqa: SIM115 (closed by stop)
        self.process = subprocess.Popen(
            [*map(str, call)], stdout=subprocess.PIPE, stderr=self.log, text=True, env=env
        )
        line = self.process.stdout.readline() if self.process.stdout else ""
        self.port = int(re.findall(r":(\d+)/", line)[0])

    def _all(self) -> list[int]:
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [pid, *map(int, children)]

    def memory(self) -> int:
        """Return the bytes in memory. Shared memory is counted once."""
        texts = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in self._all()]
        return sum(1024 * int(re.findall(r"(?m)^Pss: +(\d+)", text)[0]) for text in texts)

    def cpu_seconds(self) -> float:
        """Return the processor time of all processes so far."""
        fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in self._all()]
        return sum(int(user) + int(system) for *_, user, system in (f[:13] for f in fields)) / os.sysconf(
            "SC_CLK_TCK"
        )

    def stop(self) -> int:
        """Stop the server and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(30)
        self.log.close()
        return code


def serve(folder: Path, sources: Path | None = None, workers: int = 1) -> Server:
    """Start `dish serve` of this version, or of the sources at a path."""
    env = {**os.environ, **({} if sources is None else {"PYTHONPATH": str(sources)})}
    if not folder.exists():
        folder.mkdir()
        subprocess.run([sys.executable, __file__, "--prepare", folder], env=env, check=True)
    call = [sys.executable, "-m", "dish", "serve", "--model", folder / "m.dish", "--index", folder / "ix.dish"]
    call += ["--port", "0", "--concurrency", CONCURRENCY, *(["--workers", workers] if workers > 1 else [])]
    return Server(call, folder / "log", env)


def serve_nothing() -> None:
    """Serve an application that reads a body and sends a response as long as that of a search."""
    import socket

    import uvicorn

    async def application(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        headers = [(b"content-type", b"application/json"), (b"content-length", b"900")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b" " * 900})

    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/", flush=True)
    uvicorn.Server(uvicorn.Config(application, log_config=None, access_log=False, lifespan="off")).run([listener])


def quantiles(seconds: list[float]) -> dict[str, float]:
    """Return latency quantiles in milliseconds."""
    return {f"p{q}": round(1000 * float(np.percentile(seconds, q)), 2) for q in (50, 90, 99, 100)}


def measure(server: Server, requests: list[bytes], connections: int, seconds: float, queries: int) -> dict[str, Any]:
    """Warm up, then saturate the server and return the results."""
    uvloop.run(saturate(server.port, requests, connections, min(3.0, seconds / 2)))  # warm up
    before, cpu, own = server.memory(), server.cpu_seconds(), time.process_time()
    seen = uvloop.run(saturate(server.port, requests, connections, seconds))
    return {
        "load_average": os.getloadavg(),
        "seconds": seconds,
        "connections": connections,
        "queries_per_request": queries,
        "answers": dict(seen.statuses),
        "failed": sum(n for status, n in seen.statuses.items() if status != "200"),
        "queries_per_second": round(queries * len(seen.seconds) / seconds, 1),
        "cpu_us_per_query": {
            "server": round(1e6 * (server.cpu_seconds() - cpu) / (queries * len(seen.seconds))),
            "client": round(1e6 * (time.process_time() - own) / (queries * len(seen.seconds))),
        },
        "latency_ms": quantiles(seen.seconds),
        "health_ms": quantiles(seen.health),
        "server_memory_bytes": {"start": before, "end": server.memory()},
    }


def measure_json(server: Server, seconds: float, suffix: str) -> dict[str, Any]:
    """Measure single queries by k, and mixed with some by radius."""
    return {
        f"{name}{suffix}": measure(server, json_requests(mixed), CONNECTIONS, seconds, 1)
        for name, mixed in (("json_k", False), ("json_mixed", True))
    }


def measure_all(folder: Path, against: Path | None, seconds: float) -> dict[str, Any]:
    """Measure every load on every server, one after another."""
    results: dict[str, Any] = {}
    if against is not None:
        server = serve(folder / "before", against)
        results |= measure_json(server, seconds, "_before")
        server.stop()
    server = Server([sys.executable, __file__, "--nothing"], folder / "log")
    results["nothing"] = measure(server, json_requests(False), CONNECTIONS, seconds / 2, 1)
    server.stop()
    for workers in (1, WORKERS):
        suffix = "" if workers == 1 else "_workers"
        server = serve(folder / "now", workers=workers)
        results |= measure_json(server, seconds, suffix)
        requests = binary_requests(folder / "now")
        results[f"binary{suffix}"] = measure(server, requests, BINARY_CONNECTIONS, seconds, CODES)
        results[f"exit_code{suffix}"] = server.stop()
    return results


# --- the table ---


ROWS = {
    "json_k": "single, JSON, k = 10",
    "json_mixed": "single, JSON, every fifth within radius 2 (mostly 1,000 hits)",
    "binary": "packed codes, 500 per request, k = 10",
    "nothing": "an application that does nothing, same HTTP server",
}


def table(content: dict[str, Any]) -> str:
    """Return the results as a Markdown table."""
    workers, environment = content["workers"], content["environment"]
    runs = [content[name] for name in content if isinstance(content[name], dict) and "failed" in content[name]]
    lines = [
        f"| queries | per second | with {workers} workers | before | server's processor time per query | before "
        "| 99th percentile, with workers |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, about in ROWS.items():
        now, many, before = (content.get(name + suffix) for suffix in ("", "_workers", "_before"))
        rates = [f"{run['queries_per_second']:,.0f}" if run else "–" for run in (now, many, before)]
        costs = [f"{run['cpu_us_per_query']['server'] / 1000:.2f} ms" if run else "–" for run in (now, before)]
        slowest = [f"{run['latency_ms']['p99']:.0f}" for run in (now, many) if run]
        lines.append(f"| {about} | {' | '.join(rates + costs)} | {', '.join(slowest)} ms |")
    failed, loads = sum(run["failed"] for run in runs), [run["load_average"][0] for run in runs]
    lines += [
        "",
        f"{failed or 'No'} answer{'s' if failed > 1 else ''} failed; `/health` took "
        f"{content['json_k']['health_ms']['p50']:.0f} ms at the median during the first load. {environment['cpu']}, "
        f"{environment['cores']} cores, shared by client and server; load average before the runs "
        f"{min(loads):.1f} to {max(loads):.1f}; Python {environment['python']}, "
        f"NumPy {environment['versions']['numpy']}, commit {environment['commit']}, "
        f"before: {content.get('before', '–')}.",
    ]
    return "\n".join(lines)


def write_table(content: dict[str, Any]) -> None:
    """Write the table into the page, between the marks."""
    import pages

    pages.write("load", table(content))


def commit_of(sources: Path) -> str:
    """Return the commit of a checkout."""
    call = ["git", "-C", str(sources), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(call, capture_output=True, text=True).stdout.strip() or "unknown"


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=12.0, help="seconds of each load")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--against", type=Path, help="sources of another version, measured first")
    parser.add_argument("--table", action="store_true", help="only write the table, from existing results")
    parser.add_argument("--prepare", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--nothing", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.prepare:
        prepare(given.prepare)
    elif given.nothing:
        serve_nothing()
    elif given.table:
        write_table(json.loads(given.output.read_text()))
    else:
        run(given.against, given.seconds, given.output)


def run(against: Path | None, seconds: float, output: Path) -> None:
    """Measure everything; write the results and the table."""
    from dish import machine
    from dish.experiments.bench import write_json

    what = f"{N:,} codes of {BITS} bits (digits, bits flipped with probability 0.1)"
    how = f"json_k and binary: k={K}; json_mixed: 4 in 5 by k={K}, else radius {RADIUS}"
    content = {"what": f"{what}; {how}", "workers": WORKERS, "load_average_before": os.getloadavg()}
    with tempfile.TemporaryDirectory() as temporary:
        content |= measure_all(Path(temporary), against, seconds)
    if against is not None:
        content["before"] = commit_of(against)
    content["environment"] = machine.environment("web", "index")
    write_json(output, content)
    if output == RESULTS:
        write_table(content)
    print(table(content))


if __name__ == "__main__":
    main()
