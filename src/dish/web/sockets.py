"""The address of a server: its sockets, the names it answers to, the warning when other machines can reach it."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from dataclasses import replace

from dish.errors import InputError
from dish.web.middleware import LOOPBACK, Limits

FILES = 8192  # open at a time, connections among them
SPARE_FILES = 128  # for everything but connections


def prepared(limits: Limits, host: str, allowed: Sequence[str]) -> Limits:
    """The limits of a server on this host: with the names it answers to, and no more connections than it may have."""
    loopback = host in LOOPBACK or host.startswith("127.")
    if not loopback:
        _warn_open(host, limits)
    connections = min(limits.connections, _most_files() - SPARE_FILES)
    return replace(limits, hosts=names(host, allowed), any_address=not loopback, connections=connections)


def url(host: str, listener: socket.socket) -> str:
    """Where a server is reached."""
    shown = host if ":" not in host else f"[{host}]"
    return f"http://{shown}:{listener.getsockname()[1]}/"


def listen(host: str, port: int, workers: int = 1) -> list[socket.socket]:
    """A socket per worker, on one address; the system shares new connections out between them.

    The first is taken for itself alone, so that an address in use is noticed.
    """
    first = _listen(host, port)
    if workers == 1:
        return [first]
    if not hasattr(socket, "SO_REUSEPORT"):
        first.close()
        raise InputError("--workers needs a system whose processes can share an address (SO_REUSEPORT)")
    port = first.getsockname()[1]
    first.close()
    return [_listen(host, port, shared=True) for _ in range(workers)]


def names(host: str, allowed: Sequence[str]) -> tuple[str, ...]:
    """The host names that are answered to; none given in the list ("*"): any."""
    if "*" in allowed:
        return ()
    own = (host, socket.gethostname(), socket.getfqdn()) if host not in LOOPBACK else (host,)
    return tuple({name.lower() for name in (*LOOPBACK, *own, *allowed)})


def _most_files() -> int:
    """How many files and connections the process may have open, raised as far as the system lets it."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return FILES
    if soft < FILES and (hard == resource.RLIM_INFINITY or hard > soft):
        soft = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft


def _listen(host: str, port: int, shared: bool = False) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, OverflowError) as error:
        raise InputError(f"--host {host} --port {port}: no such address ({error})") from None
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind(address)
        listener.listen(2048)  # from here on clients wait instead of being turned away
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    return listener


def _warn_open(host: str, limits: Limits) -> None:
    text = f"WARNING: listening on {host}: other machines can reach this server, and it speaks plain HTTP."
    text += " A token is required." if limits.token else " ANYONE who can reach it may search: set --token."
    bar = "!" * 79
    print(f"{bar}\ndish: {text}\n{bar}", file=sys.stderr, flush=True)
