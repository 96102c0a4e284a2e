"""A connection is cut when its client takes nothing, not when it takes long."""

from __future__ import annotations

import asyncio
from typing import cast

from pagemill.server.connection import StallTimer


class FakeTransport:
    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        return self.num_bytes

    def abort(self) -> None:
        self.aborted = True


def test_a_client_that_takes_a_little_in_each_span_is_left_alone() -> None:
    async def run() -> None:
        transport = FakeTransport(1000)
        timer = StallTimer(0.5, cast(asyncio.WriteTransport, transport))
        timer.set()
        for _ in range(8):
            await asyncio.sleep(0.1)
            transport.num_bytes -= 1
        assert not transport.aborted
        await asyncio.sleep(1.5)
        assert transport.aborted, "it stopped taking"

    asyncio.run(run())


def test_a_client_that_has_taken_all_is_watched_no_more() -> None:
    async def run() -> None:
        transport = FakeTransport(1000)
        timer = StallTimer(0.02, cast(asyncio.WriteTransport, transport))
        timer.set()
        timer.clear()
        await asyncio.sleep(0.1)
        assert not transport.aborted

    asyncio.run(run())
