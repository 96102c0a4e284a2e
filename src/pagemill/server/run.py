"""`Server`: a socket, the app behind it, the engine; and the order in which they start and stop.

    listen ── load the model ── serve ── stop(): drain ── close the engine ── close the connections
      │                           │              │
      /live 200, the rest 503     /health 200    /health 503, new requests 503, running ones go on

The socket listens from the first moment to the last, so that a client is always told what is going
on. `pagemill.server.process` runs one as a process, with signals.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import uvicorn

from pagemill.async_engine import EngineState
from pagemill.server.app import create_app
from pagemill.server.connection import CLOSING_SECONDS, ConnectionConfig
from pagemill.server.context import ServerContext
from pagemill.server.listening import is_loopback, listen, url_of

ABORT_SECONDS = 5.0
"""How long the engine may take to end the step in which it is told to stop."""
log = logging.getLogger("pagemill.server")


class Server:
    """One server; any number may run in a process.

    Args:
        context: its settings and its engine, which is started here.
        say: told, in a line, what an operator wants to know.

    Raises:
        PagemillError: it cannot listen where it should.

    Attributes:
        url: where it listens.
    """

    def __init__(self, context: ServerContext, *, say: Callable[[str], None] = log.info) -> None:
        self.context = context
        self._say = say
        self._sockets = listen(context.settings.host, context.settings.port)
        self.url = url_of(context.settings.host, self._sockets[0].getsockname()[1])
        self._http = _Http(ConnectionConfig(create_app(context), context.settings))
        self._stop = asyncio.Event()
        self._stop_at_once = asyncio.Event()

    def stop(self) -> None:
        """Begin to drain; called again: stop at once. On the loop that runs it."""
        if self._stop.is_set():
            self._stop_at_once.set()
        self._stop.set()

    async def run(self) -> bool:
        """Serve until `stop`, and drain.

        Returns:
            Whether all requests that were let in have been answered.

        Raises:
            PagemillError: the model cannot be loaded; what `build_engine` raises.
        """
        self._warn()
        serving = asyncio.create_task(self._http.serve(sockets=self._sockets))
        serving.add_done_callback(lambda _: self._stop.set())
        try:
            self._say(f"listening at {self.url}; loading {self.context.model_root}")
            if await self._load():
                self._say(f"serving {self.context.model_id} at {self.url}/v1")
                await self._stop.wait()
            return await self._drain(self.context.settings.shutdown_timeout_seconds)
        finally:
            at_once = self._stop_at_once.is_set()
            if at_once:
                self._http.cut()
            self._http.should_exit = True
            await serving
            loads = self.context.engine.state is EngineState.LOADING
            wait_seconds = 0.0 if at_once or loads else ABORT_SECONDS
            await _within(wait_seconds, self.context.engine.close())

    async def _load(self) -> bool:
        """Whether the engine is ready, and not asked to stop before it was."""
        loading = asyncio.create_task(self.context.engine.start())
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not loading.done():
            loading.cancel()
            return False
        await loading
        return True

    async def _drain(self, seconds: float) -> bool:
        lifecycle = self.context.lifecycle
        lifecycle.begin_draining()
        if not lifecycle.num_in_flight:
            return True
        self._say(
            f"stopping: {lifecycle.num_in_flight} requests may go on for {seconds:g} s; "
            f"a second signal stops them"
        )
        at_once = asyncio.create_task(self._stop_at_once.wait())
        idle = asyncio.create_task(lifecycle.wait_until_idle())
        await asyncio.wait({at_once, idle}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        at_once.cancel()
        if idle.done():
            return True
        self._say(f"aborting {lifecycle.num_in_flight} requests")
        if not self._stop_at_once.is_set():
            # Their clients are told so, as far as they still listen.
            await _within(ABORT_SECONDS, self.context.engine.close())
            await _within(CLOSING_SECONDS, idle)
        self._http.cut()
        idle.cancel()
        return False

    def _warn(self) -> None:
        settings = self.context.settings
        if self.context.keyring is None and not is_loopback(settings.host):
            self._say(
                f"warning: whoever reaches {self.url} may use this server, since it has no keys; "
                f"give it some with --api-key-file"
            )
        if self.context.keyring is None and "*" in settings.allowed_origins:
            self._say("warning: the scripts of any web page may use this server (allowed_origins)")


class _Http(uvicorn.Server):
    """uvicorn's server, which leaves signals alone: they would close the socket at once."""

    def cut(self) -> None:
        """Close all connections, whatever is still on its way to a client."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _within(seconds: float, awaitable: Awaitable[Any]) -> None:
    """Wait, but not for longer."""
    await asyncio.wait({asyncio.ensure_future(awaitable)}, timeout=seconds)
