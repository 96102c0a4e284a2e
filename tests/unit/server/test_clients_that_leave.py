"""Clients that go away, or do not read: they hold nothing, and nobody else notices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pagemill.engine import LLMEngine
from tests.core_helpers import assert_idle
from tests.unit.server.asgi_client import AsgiRequest
from tests.unit.server.http_helpers import MODEL, Served, parsed_events, run, served

LONG: dict[str, Any] = {"model": MODEL, "max_tokens": 900, "ignore_eos": True}
HELLO = {"messages": [{"role": "user", "content": "hello"}]}
CHAT, TEXT, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {**LONG, **HELLO}),
    "chat stream": (CHAT, {**LONG, **HELLO, "stream": True}),
    "text": (TEXT, {**LONG, "prompt": "hello"}),
    "text stream": (TEXT, {**LONG, "prompt": "hello", "stream": True}),
    "several": (TEXT, {**LONG, "prompt": ["hello", "you", "there"], "n": 2}),
    "several stream": (TEXT, {**LONG, "prompt": ["hello", "you"], "n": 2, "stream": True}),
}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


def engine_of(server: Served) -> LLMEngine:
    loaded = server.context._loaded
    assert loaded is not None
    return loaded.engine


def note_when_idle(engine: LLMEngine, idle_at: list[int]) -> None:
    """Note the number of steps at which an abort left the engine without requests."""
    abort = engine.abort

    def noting(request_id: str, *, report: bool = True) -> bool:
        found = abort(request_id, report=report)
        if not engine.has_unfinished_requests():
            assert_idle(engine)
            idle_at.append(engine.metrics.num_steps)
        return found

    engine.abort = noting  # type: ignore[method-assign]


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_client_that_leaves_frees_everything_within_two_steps(kind: str) -> None:
    async def test() -> None:
        path, fields = REQUESTS[kind]
        async with served(step_seconds=0.02) as server:
            engine = engine_of(server)
            idle_at: list[int] = []
            note_when_idle(engine, idle_at)
            request = AsgiRequest(server.app, path, fields)
            await until(lambda: engine.metrics.num_generation_tokens > 10)
            left_at = engine.metrics.num_steps
            request.leave()
            await asyncio.wait_for(request.task, 10)
            await until(lambda: bool(idle_at))
            assert idle_at[-1] - left_at <= 2
            assert server.context.num_open_sequences == 0
            assert not request.complete
            if not fields.get("stream"):
                assert request.status is None

    run(test())


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_the_queue_is_taken_out_of_it(stream: bool) -> None:
    async def test() -> None:
        async with served(step_seconds=0.005, max_num_seqs=1) as server:
            engine = engine_of(server)
            first = AsgiRequest(server.app, *REQUESTS["text stream"])
            await until(lambda: engine.metrics.num_generation_tokens > 2)
            second = AsgiRequest(server.app, TEXT, {**REQUESTS["text"][1], "stream": stream})
            await until(lambda: len(engine.scheduler.waiting) == 1)
            second.leave()
            await asyncio.wait_for(second.task, 10)
            await until(lambda: len(engine.scheduler.waiting) == 0)
            assert second.status is None
            first.leave()
            await first.task

    run(test())


def test_a_client_that_leaves_while_its_vectors_are_computed_frees_everything() -> None:
    async def test() -> None:
        async with served(step_seconds=0.02, max_num_batched_tokens=16) as server:
            engine = engine_of(server)
            idle_at: list[int] = []
            note_when_idle(engine, idle_at)
            fields = {"model": MODEL, "input": ["a" * 500, "b" * 500]}
            request = AsgiRequest(server.app, EMBEDDINGS, fields)
            await until(lambda: engine.metrics.num_steps > 2)
            left_at = engine.metrics.num_steps
            request.leave()
            await asyncio.wait_for(request.task, 10)
            await until(lambda: bool(idle_at))
            assert idle_at[-1] - left_at <= 2
            assert request.status is None

    run(test())


def test_a_client_that_does_not_read_holds_nobody_up_and_loses_nothing() -> None:
    async def test() -> None:
        async with served(step_seconds=0.001) as server:
            engine = engine_of(server)
            fields = {**LONG, "prompt": "hello", "stream": True, "max_tokens": 60, "seed": 1}
            slow = AsgiRequest(server.app, TEXT, fields)
            await until(lambda: b"data" in slow.body)
            slow.stop_reading()
            num_chunks = slow.body.count(b"data:")
            await server.complete("xyz", max_tokens=60, ignore_eos=True)
            await until(lambda: not engine.has_unfinished_requests())
            slow.read_on()
            await asyncio.wait_for(slow.task, 10)
            chunks = parsed_events(slow.body.decode())
            text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
            whole = await server.complete("hello", max_tokens=60, ignore_eos=True, seed=1)
            assert text == whole["choices"][0]["text"]
            # What came meanwhile is one chunk: nothing was kept for it but the newest state.
            assert len(chunks) <= num_chunks + 5

    run(test())


def test_a_client_that_does_not_read_is_ended_when_its_time_is_over() -> None:
    async def test() -> None:
        settings = {"request_timeout_seconds": 1.0}
        async with served(step_seconds=0.001, settings=settings) as server:
            request = AsgiRequest(server.app, *REQUESTS["text stream"])
            await until(lambda: b"data" in request.body)
            request.stop_reading()
            await until(lambda: server.context.num_open_sequences == 0)
            await until(lambda: not engine_of(server).has_unfinished_requests())
            request.read_on()
            await asyncio.wait_for(request.task, 10)
            assert parsed_events(request.body.decode())[-1]["error"]["code"] == "request_timeout"

    run(test())


def test_nothing_of_many_requests_that_were_left_stays_behind() -> None:
    async def test() -> None:
        async with served(step_seconds=0.001) as server:
            before = len(asyncio.all_tasks())
            for number in range(60):
                request = AsgiRequest(server.app, *REQUESTS[[*REQUESTS][number % len(REQUESTS)]])
                for _ in range(number % 7):
                    await asyncio.sleep(0.001)
                request.leave()
                await asyncio.wait_for(request.task, 10)
            assert len(asyncio.all_tasks()) == before
            assert server.context.engine.num_unfinished_requests == 0

    run(test())
