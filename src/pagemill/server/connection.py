"""`Connection`: uvicorn's HTTP/1.1 over h11, with what it lacks against clients that only hold on.

h11 and not httptools, which sets no bound to the size of headers.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from pagemill.server.errors import ApiError
from pagemill.server.settings import ServerSettings

if TYPE_CHECKING:
    from starlette.types import ASGIApp


class ConnectionConfig(uvicorn.Config):
    """uvicorn's settings, from ours."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        super().__init__(
            app,
            loop="asyncio",
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,  # `pagemill.server.front_door` writes one
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=settings.keep_alive_seconds,  # type: ignore[arg-type]
            timeout_graceful_shutdown=CLOSING_SECONDS,
            h11_max_incomplete_event_size=settings.max_header_bytes,
        )
        self.settings = settings


CLOSING_SECONDS = 2
"""What is left of connections when all requests have ended is cut after so long."""
_BUSY = ApiError(503, "too many connections; try again later", retry_after=2)


class Connection(H11Protocol):
    """One client's connection.

    It is closed when the head of a request, or the rest of a body that nobody waits for any more,
    does not come in time; and when the client takes nothing of an answer for so long.
    """

    def __init__(self, config: ConnectionConfig, *args: Any, **more: Any) -> None:
        super().__init__(config, *args, **more)
        self._settings = config.settings

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there."""
        super().connection_made(transport)
        self._reading = _Timer(self._settings.header_timeout_seconds, transport.close)
        self._writing = StallTimer(self._settings.write_timeout_seconds, transport)
        if len(self.connections) > self._settings.max_connections:
            self._answer(_BUSY)
        self._watch_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._reading.clear()
        self._writing.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Some bytes of a request, or of several."""
        # h11 sees that a head is too large only while a part of it is missing.
        piece = max(self._settings.max_header_bytes // 16, 1)
        start = 0
        while self.conn.their_state is h11.IDLE and len(data) - start > piece:
            super().data_received(data[start : start + piece])
            start += piece
        if not self.transport.is_closing():
            super().data_received(data[start:])
        self._watch_reading()

    def on_response_complete(self) -> None:
        """An answer is written."""
        super().on_response_complete()
        self._watch_reading()

    def pause_writing(self) -> None:
        """The client does not take what there is for it."""
        super().pause_writing()
        self._writing.set()

    def resume_writing(self) -> None:
        """It takes it again."""
        super().resume_writing()
        self._writing.clear()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, or too large a head; h11's error is being handled."""
        raised = sys.exception()
        if getattr(raised, "error_status_hint", 400) == 431:
            limit = self._settings.max_header_bytes
            self._answer(ApiError(431, f"the head of the request is larger than {limit} bytes"))
        else:
            self._answer(ApiError(400, msg))

    def _answer(self, error: ApiError) -> None:
        """Answer outside of any request, and close."""
        if self.conn.our_state is h11.IDLE or self.conn.our_state is h11.SEND_RESPONSE:
            response = error.to_response()
            headers = [*response.raw_headers, (b"connection", b"close")]
            for event in (
                h11.Response(status_code=error.status, headers=headers),
                h11.Data(data=bytes(response.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _watch_reading(self) -> None:
        """Set or clear the time until the client must have sent what is due."""
        waits_for_head = self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None
        discards_body = self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY
        if self.transport.is_closing() or not (waits_for_head or discards_body):
            self._reading.clear()
        else:
            self._reading.set()


class StallTimer:
    """Cuts a connection whose client takes nothing of what is written for some time.

    It may take long to take all of it: a large answer is written in one piece.
    """

    def __init__(self, seconds: float, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        self._timer = _Timer(seconds, self._look)
        self._num_left_bytes = 0

    def set(self) -> None:
        """There is more than the client takes."""
        self._num_left_bytes = self._transport.get_write_buffer_size()
        self._timer.set()

    def clear(self) -> None:
        """It has taken it."""
        self._timer.clear()

    def _look(self) -> None:
        left = self._transport.get_write_buffer_size()
        if left >= self._num_left_bytes:
            self._transport.abort()
            return
        self._timer.clear()
        self.set()


class _Timer:
    """Calls something once, some time after it was first set, unless it is cleared before."""

    def __init__(self, seconds: float, function: Callable[[], None]) -> None:
        self._seconds = seconds
        self._function = function
        self._handle: asyncio.TimerHandle | None = None

    def set(self) -> None:
        """Again changes nothing."""
        if self._handle is None:
            loop = asyncio.get_running_loop()
            self._handle = loop.call_later(self._seconds, self._function)

    def clear(self) -> None:
        """Again is harmless."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
