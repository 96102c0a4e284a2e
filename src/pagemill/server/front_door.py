"""`FrontDoor`: the outermost piece of the server. It notes when a request arrives, gives it a name,
answers what nobody else did, counts it, and writes the access log.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagemill.server.errors import ApiError
from pagemill.server.keys import ANONYMOUS
from pagemill.server.metrics import ServerMetrics

log = logging.getLogger("pagemill.server")
access_log = logging.getLogger("pagemill.access")

REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
"""What a client may choose itself in ``X-Request-Id``: nothing that could forge a line of a log."""
KNOWN_METHODS = ("GET", "HEAD", "POST", "OPTIONS")
MAX_SHOWN_PATH = 200


class FrontDoor:
    """Sets ``arrival_seconds``, ``request_id`` and ``caller`` of ``request.state``.

    Args:
        app: the rest of the server.
        metrics: counts answers.
        log_requests: whether to write the access log.
    """

    def __init__(self, app: ASGIApp, *, metrics: ServerMetrics, log_requests: bool) -> None:
        self._app = app
        self._metrics = metrics
        self._log_requests = log_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request to its end."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["arrival_seconds"] = time.monotonic()
        state["request_id"] = _request_id(Headers(scope=scope))
        state["caller"] = ANONYMOUS
        exchange = _Exchange(receive, send, state["request_id"])
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except Exception:
            log.exception("request %s failed", state["request_id"])
            if exchange.status is not None:
                raise  # the connection is cut, so that nobody takes half an answer for a whole one
            response = ApiError(500, "the server failed; its log says why").to_response()
            await response(scope, exchange.receive, exchange.send)
        finally:
            self._note(scope, exchange)

    def _note(self, scope: Scope, exchange: _Exchange) -> None:
        method = scope["method"]
        route = getattr(scope.get("route"), "path", "none")
        status = "none" if exchange.status is None else str(exchange.status)
        known = method if method in KNOWN_METHODS else "other"
        self._metrics.on_response(known, route, status)
        if self._log_requests:
            access_log.info(
                "%s %s %s %.1fms %dB caller=%s id=%s%s",
                escaped(method),
                escaped(scope["path"]),
                status,
                (time.monotonic() - scope["state"]["arrival_seconds"]) * 1000,
                exchange.num_bytes,
                scope["state"]["caller"].name,
                scope["state"]["request_id"],
                " disconnected" if exchange.disconnected else "",
            )


class _Exchange:
    """What goes in and out while a request is served."""

    def __init__(self, receive: Receive, send: Send, request_id: str) -> None:
        self._receive = receive
        self._send = send
        self._request_id = request_id
        self.status: int | None = None
        self.num_bytes = 0
        self.complete = False
        self.disconnected = False
        """The client left before the end of the answer."""

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" and not self.complete:
            self.disconnected = True
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message.setdefault("headers", [])
            MutableHeaders(scope=message)["x-request-id"] = self._request_id
        elif message["type"] == "http.response.body":
            self.num_bytes += len(message.get("body", b""))
            self.complete = not message.get("more_body", False)
        await self._send(message)


def _request_id(headers: Headers) -> str:
    given = headers.get("x-request-id", "")
    return given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def escaped(text: Any) -> str:
    """Text from a client for a line of a log: printable ASCII, and not longer than it has to be."""
    shown = str(text).encode("unicode_escape").decode("ascii").replace(" ", "\\x20")
    return shown if len(shown) <= MAX_SHOWN_PATH else shown[: MAX_SHOWN_PATH - 3] + "..."
