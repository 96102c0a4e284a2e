"""Answers that take time: server-sent events, or one JSON text at the end.

    client ──disconnect──> receive()     watched all the time
                              │ cancels
    client <──── send() ── work(reply)   may wait for the engine, or for a client that reads slowly

Nothing is sent before there is something to send, so what fails until then is an answer with a
status of its own; what fails later is an event.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from pagemill.server.errors import ApiError, as_api_error
from pagemill.server.requests import arrival_of, context_of

DONE = "data: [DONE]\n\n"
LAST_WORD_SECONDS = 5.0
"""How long a stream that failed waits for its client to take the error."""
_EVENT_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx
)


class Reply:
    """What a handler's work sends."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def json(self, text: str) -> None:
        """The whole answer."""
        body = text.encode()
        headers = [(b"content-type", b"application/json")]
        headers.append((b"content-length", str(len(body)).encode()))
        await self._start(headers)
        await self._send({"type": "http.response.body", "body": body})

    async def events(self, text: str, *, last: bool = False) -> None:
        """One or more events, each ``data: …`` and an empty line; waits while nobody reads."""
        if not self.started:
            await self._start(list(_EVENT_HEADERS))
        message: Message = {
            "type": "http.response.body",
            "body": text.encode(),
            "more_body": not last,
        }
        await self._send(message)

    async def _start(self, headers: list[tuple[bytes, bytes]]) -> None:
        self.started = True
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})


class ComputedResponse(Response):
    """A response whose body is computed while it is sent.

    Args:
        request: what is answered.
        work: computes and sends. It is cancelled when the client goes away, and when
            ``request_timeout_seconds`` have passed since the request arrived.
    """

    def __init__(
        self, request: Request, work: Callable[[Reply], Coroutine[Any, Any, None]]
    ) -> None:
        super().__init__()
        self._work = work
        self._limit_seconds = context_of(request).settings.request_timeout_seconds
        self._arrival_seconds = arrival_of(request)

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, unless the client has gone. Raises what failed before anything was sent."""
        reply = Reply(send)
        try:
            await self._work_in_time(reply, receive)
        except _ClientGoneError:
            pass
        except Exception as error:
            if not reply.started:
                raise
            event = f"data: {as_api_error(error).to_json()}\n\n"
            with contextlib.suppress(TimeoutError):  # it does not even read this
                async with asyncio.timeout(LAST_WORD_SECONDS):
                    await reply.events(event + DONE, last=True)

    async def _work_in_time(self, reply: Reply, receive: Receive) -> None:
        left_seconds = self._arrival_seconds + self._limit_seconds - time.monotonic()
        try:
            async with asyncio.timeout(left_seconds) as limit:
                await _while_connected(receive, self._work(reply))
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise ApiError(
                504,
                f"the request took longer than {self._limit_seconds:g} seconds, the most that "
                f"this server gives one",
                code="request_timeout",
            ) from error


class _ClientGoneError(Exception):
    """Nobody is there to answer."""


async def _while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run ``work`` to its end, or cancel it and raise when the client goes away."""
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise _ClientGoneError
        await working
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
