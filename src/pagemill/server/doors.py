"""What stands before the routes, as ASGI middleware: hosts and origins, keys, readiness."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Collection, Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from pagemill.server.context import ServerContext
from pagemill.server.errors import ApiError
from pagemill.server.keys import Caller, Keyring

OPEN_PATHS = frozenset({"/live", "/health"})
"""The only ones that need no key."""
ALWAYS_PATHS = OPEN_PATHS | {"/metrics", "/version"}
"""Answered also while no work is taken."""


class HostCheck:
    """Refuses requests that a web page somewhere else makes a browser send.

    A page can reach this server under a name of its own (DNS rebinding), but then the ``Host``
    header has that name; an IP address or ``localhost`` cannot be had that way. A script of a page
    from elsewhere says where it is from in ``Origin``.

    Args:
        app: the rest of the server.
        hosts: names that are allowed besides; ``*.example.com`` and ``*`` are patterns.
        origins: of pages that are allowed; ``*`` for all.
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str], origins: Collection[str]) -> None:
        self._app = app
        self._names = frozenset(h.lower() for h in hosts if "*" not in h) | {"localhost"}
        self._endings = tuple(h.lower()[1:] for h in hosts if h.startswith("*."))
        self._any_host = "*" in hosts
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on."""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            error = self._refusal(headers.getlist("host"), headers.get("origin"))
            if error is not None:
                await error.to_response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, hosts: Sequence[str], origin: str | None) -> ApiError | None:
        if not all(self._allows(host) for host in hosts):
            return ApiError(
                403,
                "this server does not answer to the name in the Host header; its operator can "
                "allow it with --allowed-host",
                code="host_not_allowed",
            )
        own = [f"{scheme}://{host}" for host in hosts for scheme in ("http", "https")]
        allowed = self._origins | set(own) | {None}
        if origin not in allowed and "*" not in self._origins:
            return ApiError(
                403,
                "this server does not answer to web pages from this origin; its operator can "
                "allow it with --allowed-origin",
                code="origin_not_allowed",
            )
        return None

    def _allows(self, host: str) -> bool:
        if self._any_host:
            return True
        name = host_name(host)
        return name in self._names or name.endswith(self._endings) or _is_address(name)


def host_name(host: str) -> str:
    """The name in a ``Host`` header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Authentication:
    """Lets nobody in without a key, but to `OPEN_PATHS`; and each key only as often as it may.

    Sets ``request.state.caller``.
    """

    def __init__(self, app: ASGIApp, *, keyring: Keyring) -> None:
        self._app = app
        self._keyring = keyring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            caller = self._find(Headers(scope=scope).getlist("authorization"))
            error = _refusal(caller)
            if caller is not None:
                scope["state"]["caller"] = caller
            if error is not None:
                await error.to_response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _find(self, authorizations: Sequence[str]) -> Caller | None:
        if len(authorizations) != 1:
            return None
        scheme, _, key = authorizations[0].partition(" ")
        return self._keyring.find(key.strip()) if scheme.lower() == "bearer" else None


def _refusal(caller: Caller | None) -> ApiError | None:
    if caller is None:
        return ApiError(
            401,
            "this needs a key that the server knows, in a header 'Authorization: Bearer KEY'",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )
    wait_seconds = 0.0 if caller.requests is None else caller.requests.take()
    if not wait_seconds:
        return None
    assert caller.requests is not None
    return ApiError(
        429,
        f"the key {caller.name!r} has made its {caller.requests.per_minute} requests a minute",
        code="rate_limit_exceeded",
        retry_after=math.ceil(wait_seconds),
    )


class Gate:
    """Open while the server takes work; counts who is inside, for draining to wait for."""

    def __init__(self, app: ASGIApp, *, context: ServerContext) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on."""
        if scope["type"] != "http" or scope["path"] in ALWAYS_PATHS:
            await self._app(scope, receive, send)
            return
        try:
            self._context.check_open()
        except ApiError as error:
            error.headers["connection"] = "close"  # the next try may find another server
            await error.to_response()(scope, receive, send)
            return
        with self._context.lifecycle.request():
            await self._app(scope, receive, send)
