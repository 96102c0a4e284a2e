"""`Lifecycle`: from the first signal to stop to the last answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Lifecycle:
    """Counts the requests under way, and says whether new ones are taken. For one asyncio loop."""

    def __init__(self) -> None:
        self._in_flight = 0
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def draining(self) -> bool:
        """Whether it has begun to stop, so that new requests are refused."""
        return self._draining

    @property
    def num_in_flight(self) -> int:
        """Requests under way, their streams included."""
        return self._in_flight

    def begin_draining(self) -> None:
        """Take no new requests from now on. Again is harmless."""
        self._draining = True

    @contextmanager
    def request(self) -> Iterator[None]:
        """Around every request that draining waits for."""
        self._in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()

    async def wait_until_idle(self) -> None:
        """Return when no request is under way."""
        await self._idle.wait()
