"""A server on the simulated engine, for tests: asked in this process, or through a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import httpx
from fastapi import FastAPI, Request
from starlette.responses import StreamingResponse

from pagemill.batch import Batch, StepResult
from pagemill.engine import LLMEngine
from pagemill.loading.tokenizer import FileTokenizer
from pagemill.sampling_params import SamplingParams
from pagemill.server.app import create_app
from pagemill.server.context import ServerContext
from pagemill.server.settings import ServerSettings
from tests.core_helpers import ByteTokenizer, simulated_engine

PROMPT = [1, 2, 3, 4]


@dataclass
class Loaded:
    """What a server takes for a loaded model."""

    engine: LLMEngine
    tokenizer: FileTokenizer | None


def new_engine(step_seconds: float = 0.0, **options: Any) -> LLMEngine:
    """A simulated engine on real time; a step takes ``step_seconds``."""
    engine = simulated_engine(tokenizer=ByteTokenizer(), **options)
    engine.clock = engine.metrics._clock = time.monotonic
    execute = engine.runner.execute

    def slowly(batch: Batch) -> StepResult:
        time.sleep(step_seconds)
        return execute(batch)

    engine.runner.execute = slowly  # type: ignore[method-assign]
    return engine


def loaded(make: Callable[[], LLMEngine] = new_engine) -> Loaded:
    engine = make()
    return Loaded(engine, cast(FileTokenizer, engine.tokenizer))


def new_context(
    make: Callable[[], LLMEngine] = new_engine, *, model: str = "tiny", **settings: Any
) -> ServerContext:
    return ServerContext(ServerSettings(**settings), lambda: loaded(make), model)


def new_app(context: ServerContext) -> FastAPI:
    """The server's app, and a route that streams 40 tokens, one number a line."""
    app = create_app(context)
    num_asked = 0

    @app.post("/test/stream")
    async def stream(request: Request, n: int = 40) -> StreamingResponse:
        nonlocal num_asked
        num_asked += 1
        name = f"test-{num_asked}"

        async def lines() -> AsyncIterator[str]:
            params = SamplingParams(max_tokens=n, temperature=0, ignore_eos=True)
            with context.work(1, caller=request.state.caller):
                outputs = context.engine.generate(
                    name, PROMPT, params, arrival_seconds=request.state.arrival_seconds
                )
                async with contextlib.aclosing(cast(Any, outputs)):
                    async for output in outputs:
                        yield f"{len(output.outputs[0].token_ids)}\n"

        return StreamingResponse(lines())

    @app.post("/test/echo")
    async def echo(request: Request) -> dict[str, Any]:
        return {"num_bytes": len(await request.body()), "caller": request.state.caller.name}

    @app.post("/test/flood")
    async def flood() -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            while True:
                yield b"x" * 2**16
                await asyncio.sleep(0)

        return StreamingResponse(pieces())

    @app.post("/test/fault")
    async def fault() -> None:
        raise RuntimeError("a secret of the inside")

    return app


@asynccontextmanager
async def started(context: ServerContext) -> AsyncIterator[ServerContext]:
    await context.engine.start()
    try:
        yield context
    finally:
        await context.engine.close()


@asynccontextmanager
async def client_of(
    context: ServerContext, *, start: bool = True, **options: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """A client that calls the app in this process; the engine runs meanwhile."""
    transport = httpx.ASGITransport(new_app(context))
    options = {"base_url": "http://127.0.0.1", **options}
    async with httpx.AsyncClient(transport=transport, **options) as client:
        if start:
            async with started(context):
                yield client
        else:
            yield client


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error of an answer, in the one shape that it may have."""
    assert set(response.json()) == {"error"}
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return cast(dict[str, Any], error)


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not become so in time"
        await asyncio.sleep(0.005)
