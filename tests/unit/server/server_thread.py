"""`ServerThread`: a server for clients that are no coroutines."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from pagemill.async_engine import EngineState
from pagemill.server.run import Server
from tests.core_helpers import assert_idle
from tests.unit.server.http_helpers import new_context
from tests.unit.server.serving import until


class ServerThread(threading.Thread):
    """A server on a real socket, beside the test; in the end its engine must hold nothing.

    Args:
        settings: of the server.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self._settings = {"port": 0, **settings}
        self.url = ""
        self.error: BaseException | None = None
        self._listens = threading.Event()
        self._ends: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.start()
        assert self._listens.wait(30)

    def run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self.error = error
        self._listens.set()

    async def _serve(self) -> None:
        self._loop, self._ends = asyncio.get_running_loop(), asyncio.Event()
        context = new_context(settings=self._settings)
        server = Server(context)
        running = asyncio.create_task(server.run())
        try:
            await until(lambda: context.engine.state is EngineState.READY)
            self.url = server.url
            self._listens.set()
            await self._ends.wait()
            await until(lambda: context.lifecycle.num_in_flight == 0)
            await asyncio.wait_for(context.engine.call(assert_idle), 20)
            assert context.num_open_sequences == 0
            assert context.engine.num_restarts == 0
        finally:
            server.stop()
            assert await running

    def end(self) -> None:
        assert self._loop is not None
        assert self._ends is not None
        self._loop.call_soon_threadsafe(self._ends.set)
        self.join(30)
        if self.error is not None:
            raise self.error
