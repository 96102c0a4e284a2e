"""`RequestBody`: takes in the whole body of a request before anybody works on it."""

from __future__ import annotations

import asyncio
import contextlib

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagemill.server.errors import ApiError

LINGER_SECONDS = 2.0
LINGER_TIMES = 4
MAX_DIGITS = 18
"""Of a length; Python refuses to read numbers of thousands of digits."""


class RequestBody:
    """Refuses what is too large (413), however its length was announced, or too slow (408).

    A body that is refused is read on for a moment and thrown away: many clients look for an answer
    only when they have sent everything.

    Args:
        app: the rest of the server.
        max_bytes: of a body.
        timeout_seconds: until a body has to be there, from its first byte to its last.
    """

    def __init__(self, app: ASGIApp, *, max_bytes: int, timeout_seconds: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._timeout_seconds = timeout_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on with the body in one piece."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._check_announced(headers.get("content-length"))
            async with asyncio.timeout(self._timeout_seconds):
                body = await self._read(receive)
        except (ApiError, TimeoutError) as refused:
            if isinstance(refused, ApiError):
                error = refused
                await self._discard(headers, receive)
            else:
                seconds = self._timeout_seconds
                error = ApiError(408, f"the body did not arrive within {seconds:g} seconds")
            error.headers["connection"] = "close"
            await error.to_response()(scope, receive, send)
            return
        if body is None:
            return  # the client has left
        await self._app(scope, _Replay(body, receive), send)

    def _check_announced(self, length: str | None) -> None:
        digits = "" if length is None else length.lstrip("0")
        if digits.isdecimal() and (len(digits) > MAX_DIGITS or int(digits) > self._max_bytes):
            raise self._too_large()

    async def _read(self, receive: Receive) -> bytes | None:
        pieces: list[bytes] = []
        num_bytes = 0
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            piece = message.get("body", b"")
            num_bytes += len(piece)
            if num_bytes > self._max_bytes:
                raise self._too_large()
            pieces.append(piece)
            more = message.get("more_body", False)
        return b"".join(pieces)

    def _too_large(self) -> ApiError:
        return ApiError(413, f"the body is larger than {self._max_bytes} bytes, the limit here")

    async def _discard(self, headers: Headers, receive: Receive) -> None:
        if "expect" in headers:
            return  # it waits to be told whether to send it
        left = LINGER_TIMES * self._max_bytes
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while left > 0:
                    message = await receive()
                    left -= len(message.get("body", b""))
                    if not message.get("more_body", False):
                        return


class _Replay:
    """Gives the body once, and then what comes after it: that the client has left."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}
