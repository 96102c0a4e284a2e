"""Clients on real sockets that go away in every state of a request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pagemill.server.run import Server
from tests.core_helpers import assert_idle
from tests.unit.server.http_helpers import MODEL, new_context, run
from tests.unit.server.test_clients_that_leave import note_when_idle, until

LONG: dict[str, Any] = {"model": MODEL, "prompt": "hello", "max_tokens": 900, "ignore_eos": True}


@asynccontextmanager
async def listening(**options: Any) -> AsyncIterator[Server]:
    server = Server(new_context(settings={"port": 0}, **options))
    serving = asyncio.create_task(server.run())
    await until(lambda: server.context.engine.state.value == "ready")
    try:
        yield server
        await server.context.engine.call(assert_idle)
        assert server.context.num_open_sequences == 0
    finally:
        server.stop()
        assert await serving


async def connect(
    server: Server, **fields: Any
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client that has sent its request."""
    port = int(server.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({**LONG, **fields}).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()
    return reader, writer


@pytest.mark.parametrize("stream", [True, False])
def test_a_connection_that_is_closed_frees_everything_within_two_steps(stream: bool) -> None:
    async def test() -> None:
        async with listening(step_seconds=0.02) as server:
            loaded = server.context._loaded
            assert loaded is not None
            engine = loaded.engine
            idle_at: list[int] = []
            note_when_idle(engine, idle_at)
            reader, writer = await connect(server, stream=stream)
            await until(lambda: engine.metrics.num_generation_tokens > 3)
            if stream:
                assert b"200 OK" in await reader.readline()
            left_at = engine.metrics.num_steps
            writer.transport.abort()
            await until(lambda: bool(idle_at))
            assert idle_at[-1] - left_at <= 2
            await until(lambda: server.context.num_open_sequences == 0)

    run(test())


def test_a_connection_that_is_closed_while_its_request_waits_leaves_the_queue() -> None:
    async def test() -> None:
        async with listening(step_seconds=0.005, max_num_seqs=1) as server:
            loaded = server.context._loaded
            assert loaded is not None
            engine = loaded.engine
            _, first = await connect(server, stream=True)
            await until(lambda: engine.metrics.num_generation_tokens > 3)
            _, second = await connect(server)
            await until(lambda: len(engine.scheduler.waiting) == 1)
            second.transport.abort()
            await until(lambda: len(engine.scheduler.waiting) == 0)
            assert len(engine.scheduler.running) == 1
            first.transport.abort()
            await until(lambda: server.context.num_open_sequences == 0)

    run(test())
