"""``dish serve --ray``: the service over shards of the index, which are searched in Ray actors.

With a cluster, the service runs in replicas of Ray Serve: its proxies listen, and Ray restarts replicas that die.
Without one, the service runs in this process. Ray Serve would open a port to the network in each replica, without
asking for a token, even if the rest of Ray listens on the loopback interface only.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dish.errors import ClusterError, InputError
from dish.ray.connection import cluster
from dish.ray.search import ShardedIndex, open_shards
from dish.registry import load
from dish.web import server
from dish.web.app import create_app
from dish.web.collection import Collection
from dish.web.generations import Service
from dish.web.limits import Limits
from dish.web.logs import start_log
from dish.web.server import exit_process
from dish.web.sockets import limits_for_host, listen, url

READ_ONLY = "its shards are files that nobody may change; use --writable without --ray"


@dataclass(frozen=True)
class ServedShards:
    """What is served: a model, files of its codes, and into how many processes they are divided."""

    model: Path
    index: Path
    shards: int | None = None
    replicas: int = 1  # of each shard
    servers: int = 1  # replicas of the service, on a cluster
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
    if address is None and files.servers > 1:
        raise InputError("--workers with --ray needs a cluster: give --ray-address, or leave it out")
    with closing(listen(host, port)) as probe:  # reports now that a port is taken, and chooses one for port 0
        where, port = url(host, probe), probe.getsockname()[1]
    with (
        cluster(address),
        open_shards(files.index, files.shards, replicas=files.replicas) as index,
    ):
        collection = open_collection(str(files.model), index, files.title or files.index.stem)
        if address is None:
            server.serve(collection, limits, host=host, port=port, allowed_hosts=allowed_hosts)
            return
        from ray import serve as ray_serve

        signal.signal(signal.SIGTERM, exit_process)  # Ray has set its own
        if ray_serve.status().proxies:
            raise ClusterError(
                "this cluster runs Ray Serve already, on a port of its own: stop it with `serve shutdown`"
            )
        limits = limits_for_host(limits, host, allowed_hosts)
        try:
            ray_serve.start(http_options={"host": host, "port": port})
            ray_serve.run(_application(ray_serve, files, index, limits), name="dish", route_prefix="/")
            print(f"dish: serving {len(index):,} items on {where}  (Control-C stops)", flush=True)
            threading.Event().wait()
        finally:
            ray_serve.shutdown()


def open_collection(model: str, index: ShardedIndex, title: str) -> Collection:
    """Return the collection to serve. Raises an error if the model does not fit the index."""
    collection = Collection(load(model).without_names(), index, title=title)  # type: ignore[arg-type]
    collection.read_only_reason = READ_ONLY
    return collection


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
    return create_app(open_collection(model, index, title), limits)
