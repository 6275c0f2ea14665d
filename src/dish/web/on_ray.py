"""``dish serve --ray``: the service in replicas of Ray Serve, over shards of the index in Ray actors.

The process of the command owns the actors and waits. Ray Serve's proxy listens, and sends requests to the replicas,
each of which encodes queries and asks the shards. Ray restarts replicas and shards that die.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dish.errors import InputError
from dish.ray.connection import cluster
from dish.ray.search import ShardedIndex, open_shards
from dish.registry import load
from dish.web.app import create_app
from dish.web.collection import Collection
from dish.web.generations import Service
from dish.web.limits import Limits
from dish.web.logs import start_log
from dish.web.server import exit_process
from dish.web.sockets import limits_for_host, listen, url

ANSWER_SECONDS = 20.0  # for all shards to answer a request, restarts included
READ_ONLY = "its shards are files that nobody may change; use --writable without --ray"


@dataclass(frozen=True)
class ServedShards:
    """What is served: a model, files of its codes, and into how many processes they are divided."""

    model: Path
    index: Path
    shards: int | None = None
    replicas: int = 1  # of each shard
    servers: int = 1  # replicas of the service
    title: str | None = None


def serve(
    files: ServedShards,
    limits: Limits,
    *,
    address: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    allowed_hosts: Sequence[str] = (),
) -> None:
    """Serve until SIGTERM or Control-C. Prints the address on standard output once clients can connect."""
    limits = limits_for_host(limits, host, allowed_hosts)
    with closing(listen(host, port)) as probe:  # reports now that a port is taken, and chooses one for port 0
        where, port = url(host, probe), probe.getsockname()[1]
    signal.signal(signal.SIGTERM, exit_process)
    with (
        cluster(address),
        open_shards(files.index, files.shards, replicas=files.replicas, timeout=ANSWER_SECONDS) as index,
    ):
        _check(load(files.model), index)
        from ray import serve as ray_serve

        try:
            ray_serve.start(http_options={"host": host, "port": port})
            ray_serve.run(_application(ray_serve, files, index, limits), name="dish", route_prefix="/")
            print(f"dish: serving {len(index):,} items on {where}  (Control-C stops)", flush=True)
            threading.Event().wait()
        finally:
            ray_serve.shutdown()


def _application(ray_serve: Any, files: ServedShards, index: ShardedIndex, limits: Limits) -> Any:
    model, title = str(files.model.absolute()), files.title or files.index.stem

    def build() -> Service:  # runs in each replica; Ray Serve accepts only plain functions
        return build_app(model, index, limits, title)

    deployment = ray_serve.deployment(
        name="search",
        num_replicas=files.servers,
        max_ongoing_requests=limits.connections,  # the app itself limits those in progress
        ray_actor_options={"num_cpus": 0},  # like the shards: it must not wait for other work to end
    )
    return deployment(ray_serve.ingress(build)()).bind()


def build_app(model: str, index: ShardedIndex, limits: Limits, title: str) -> Service:
    """Return the app of a replica: the same routes and answers as `dish serve` without Ray, read-only."""
    start_log()
    collection = Collection(load(model).without_names(), index, title=title)  # type: ignore[arg-type]
    collection.read_only_reason = READ_ONLY
    return create_app(collection, limits)


def _check(hasher: Any, index: ShardedIndex) -> None:
    """Raise an error if the model does not fit the index: here, not in the log of a replica."""
    if index.n_bits != hasher.n_bits:
        raise InputError(f"the model's codes have {hasher.n_bits} bits, those of the index {index.n_bits}")
    index.check_model(getattr(hasher, "fingerprint_", None))
