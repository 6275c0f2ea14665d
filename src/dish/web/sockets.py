"""The address of a server: its socket, its host names, and the warning if other machines can reach it."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from dataclasses import replace

from dish.errors import InputError
from dish.web.limits import LOOPBACK, Limits

SHORT_TOKEN = 16  # characters


def limits_for_host(limits: Limits, host: str, allowed_hosts: Sequence[str]) -> Limits:
    """Add the host names that a server on this host answers to. Warns if other machines can reach it."""
    loopback = host in LOOPBACK or host.startswith("127.")
    if not loopback:
        _warn_reachable(host, limits)
    return replace(limits, hosts=host_names(host, allowed_hosts), any_address=not loopback)


def url(host: str, listener: socket.socket) -> str:
    """Return the URL of a server."""
    shown = host if ":" not in host else f"[{host}]"
    return f"http://{shown}:{listener.getsockname()[1]}/"


def listen(host: str, port: int) -> socket.socket:
    """Open the listening socket. Clients can connect, and wait, from here on."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, OverflowError) as error:
        raise InputError(f"--host {host} --port {port}: no such address ({error})") from None
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    return listener


def host_names(host: str, allowed_hosts: Sequence[str]) -> tuple[str, ...]:
    """Return the host names to answer to. Empty means any, if "*" is allowed."""
    if "*" in allowed_hosts:
        return ()
    own = (host, socket.gethostname(), socket.getfqdn()) if host not in LOOPBACK else (host,)
    return tuple({name.lower() for name in (*LOOPBACK, *own, *allowed_hosts)})


def _warn_reachable(host: str, limits: Limits) -> None:
    text = f"WARNING: listening on {host}: other machines can reach this server, and it speaks plain HTTP."
    if limits.token is None:
        text += " ANYONE who can reach it may search: set --token."
    else:
        text += " A token is required."
        if len(limits.token) < SHORT_TOKEN:
            text += f" It can be guessed: use at least {SHORT_TOKEN} random characters."
    bar = "!" * 79
    print(f"{bar}\ndish: {text}\n{bar}", file=sys.stderr, flush=True)
