"""Connect to a Ray cluster, or start one on this machine that other machines cannot reach."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any

from dish.checks import check_integer
from dish.errors import ClusterError
from dish.install import pip_install
from dish.machine import usable_cores

SETTINGS = {  # of a Ray of this machine
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # one machine only: Ray uses the loopback address; read at its import
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
}
OBJECT_STORE = 512 << 20  # bytes of shared memory for queries and results; rows and codes are read from files


def import_ray() -> Any:
    """Return the package ray, or raise ImportError that says how to install it."""
    try:
        import ray
    except ImportError:
        raise ImportError(f"this needs Ray: {pip_install('ray')}") from None
    return ray


def connected_ray(caller: str) -> Any:
    """Return the package ray, or raise ClusterError if this process is not connected to a cluster.

    Ray is not imported here: ``cluster`` has to change the environment before its import.
    """
    ray = sys.modules.get("ray") or (None if find_spec("ray") else import_ray())
    if ray is None or not ray.is_initialized():
        raise ClusterError(f"there is no connection to Ray: call {caller} inside `with dish.ray.cluster():`")
    return ray


@contextmanager
def cluster(address: str | None = None, cpus: int | None = None) -> Iterator[Any]:
    """Yield the package ray, connected to a cluster. The connection ends with the block.

    Without an address, a Ray of this machine is started and stopped with the block. All its ports are on the loopback
    interface, and clients need a random token, so that neither other machines nor other users can run code in it.
    If this process is connected already, that connection is used and left open.

    Parameters
    ----------
    address : str or None, default=None
        "HOST:PORT" of a cluster's head, "auto" for the cluster that this machine belongs to, or "ray://…". Its owner
        decides on ports and tokens: see docs/scale.md.
    cpus : int or None, default=None
        CPUs that a Ray of this machine hands out to its workers; None: the cores that this process may use.
    """
    if cpus is not None:
        check_integer("cpus", cpus, low=1)
    loaded = sys.modules.get("ray")
    if loaded is not None and loaded.is_initialized():
        yield loaded
        return
    with _settings(address is None):
        ray = import_ray()
        options: dict[str, Any] = {"logging_level": "warning", "log_to_driver": False}
        if address is None:
            _check_loopback(ray)
            options |= {"num_cpus": cpus or usable_cores(), "object_store_memory": OBJECT_STORE}
            options |= {"include_dashboard": False, "address": "local"}
        else:
            options["address"] = address
        try:
            ray.init(**options)
            yield ray
        finally:
            ray.shutdown()


@contextmanager
def _settings(local: bool) -> Iterator[None]:
    """Set the environment of a Ray of this machine, which its processes inherit, and restore it at the end."""
    wanted = SETTINGS | {"RAY_AUTH_TOKEN": _token()} if local else {}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@cache
def _token() -> str:
    """Return this process's token. Ray reads it once, so that a second start must use it again."""
    return secrets.token_hex(32)


def _check_loopback(ray: Any) -> None:
    """Raise ClusterError if a Ray started now would listen on the network."""
    host = ray.util.get_node_ip_address()
    if host not in ("127.0.0.1", "::1", "localhost"):
        raise ClusterError(
            f"ray was imported before, and would now listen on {host}, which other machines may reach: set the "
            "environment variable RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 before the import, or call ray.init() yourself"
        )
