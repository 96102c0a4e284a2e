"""Sockets to listen at."""

from __future__ import annotations

import contextlib
import ipaddress
import socket

from pagemill.errors import PagemillError

BACKLOG = 2048


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets for all addresses of ``host``, at one port.

    Raises:
        PagemillError: nobody can listen there; says why.
    """
    try:
        found = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE, proto=socket.IPPROTO_TCP
        )
    except (OSError, UnicodeError) as error:
        raise PagemillError(f"--host {host} leads nowhere: {_reason(error)}") from None
    sockets: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((f[0], f[4]) for f in found):
            taken_port = sockets[0].getsockname()[1] if sockets else port
            sockets.append(_bound(family, (address[0], taken_port, *address[2:])))
    except OSError as error:
        for other in sockets:
            other.close()
        raise PagemillError(
            f"cannot listen at {url_of(host, port)}: {_reason(error)}; choose another --port or "
            f"--host"
        ) from None
    return sockets


def _bound(family: int, address: tuple[object, ...]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            only_ipv6 = address[0] != "::" or not socket.has_dualstack_ipv6()
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only_ipv6)
        listener.bind(address)
        listener.listen(BACKLOG)  # here, where an error can still be told
    except BaseException:
        listener.close()
        raise
    return listener


def url_of(host: str, port: int) -> str:
    """Where a client finds it."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
