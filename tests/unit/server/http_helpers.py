"""A server of a byte-level vocabulary on the simulated engine, and clients of it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx
from fastapi import FastAPI

from pagemill.async_engine import EngineState
from pagemill.batch import Batch, SampledToken, StepResult, TokenLogprobs
from pagemill.engine import LLMEngine
from pagemill.loading.tokenizer import FileTokenizer
from pagemill.server.app import create_app
from pagemill.server.context import ServerContext
from pagemill.server.settings import ServerSettings
from tests.core_helpers import assert_idle, simulated_engine
from tests.unit.loading_text.tiny_vocabularies import CHATML, byte_level_metadata
from tests.unit.server.serving import Loaded

MODEL = "org/tiny"
HE, LL, IM_START, IM_END = range(256, 260)
TOKENIZER = FileTokenizer.from_gguf(
    byte_level_metadata(template=CHATML, eos_token_id=IM_END, merges=["h e", "l l"])
)
"""Byte b is token b; ``<|im_end|>`` ends a text."""


def new_engine(
    script: str | bytes | None = None, step_seconds: float = 0.0, **options: Any
) -> LLMEngine:
    """An engine on real time.

    Args:
        script: what every sample says, a byte a token, token i with the log-probability -i/8;
            None: what the simulated model makes of its prompt.
        step_seconds: how long each step takes.
        options: of `simulated_engine`.
    """
    engine = simulated_engine(tokenizer=cast(Any, TOKENIZER), **options)
    engine.clock = engine.metrics._clock = time.monotonic
    execute = engine.runner.execute
    said = list(script.encode() if isinstance(script, str) else script or b"")

    def scripted(batch: Batch) -> StepResult:
        if step_seconds:
            time.sleep(step_seconds)
        result = execute(batch)
        for i, task in enumerate(batch.sampling if script is not None else ()):
            at = len(task.output_token_ids)
            token = said[at] if at < len(said) else IM_END
            top = ((token, -at / 8), (ord("#"), -20.0), (HE, -21.0), (0xC3, -22.0))
            shown = top[: task.params.logprobs or 0]
            result.sampled[i] = SampledToken(token, TokenLogprobs(-at / 8, 1, shown))
        return result

    engine.runner.execute = scripted  # type: ignore[method-assign]
    return engine


def new_context(
    script: str | bytes | None = None,
    *,
    settings: dict[str, Any] | None = None,
    tokenizer: FileTokenizer | None = TOKENIZER,
    **engine_options: Any,
) -> ServerContext:
    def load() -> Loaded:
        return Loaded(make(), tokenizer)

    def make() -> LLMEngine:
        return new_engine(script, **engine_options)

    return ServerContext(ServerSettings(log_requests=False, **(settings or {})), load, MODEL)


class Served:
    """A server whose engine runs, and a client that calls it in this process."""

    def __init__(self, context: ServerContext, app: FastAPI, client: httpx.AsyncClient) -> None:
        self.context = context
        self.app = app
        self.client = client

    async def loaded(self) -> None:
        """Return when the engine, or its successor, has been made."""
        async with asyncio.timeout(20):
            while self.context.engine.state is EngineState.LOADING:
                await asyncio.sleep(0.001)

    async def post(self, path: str, **fields: Any) -> httpx.Response:
        return await self.post_text(path, json.dumps({"model": MODEL, **fields}))

    async def post_text(
        self, path: str, body: str | bytes, content_type: str = "application/json"
    ) -> httpx.Response:
        return await self.client.post(path, content=body, headers={"content-type": content_type})

    async def complete(self, prompt: Any, **fields: Any) -> dict[str, Any]:
        return self.body(await self.post("/v1/completions", prompt=prompt, **fields))

    async def chat(self, messages: Any, **fields: Any) -> dict[str, Any]:
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return self.body(await self.post("/v1/chat/completions", messages=messages, **fields))

    async def stream(self, path: str, **fields: Any) -> list[dict[str, Any]]:
        return events_of(await self.post(path, stream=True, **fields))

    @staticmethod
    def body(response: httpx.Response) -> dict[str, Any]:
        assert response.status_code == 200, response.text
        return cast(dict[str, Any], response.json())

    async def refusal(self, path: str, status: int = 400, **fields: Any) -> dict[str, Any]:
        """The error that a request is answered with."""
        response = await self.post(path, **fields)
        assert response.status_code == status, response.text
        return error_of(response)


@asynccontextmanager
async def served(script: str | bytes | None = None, **options: Any) -> AsyncIterator[Served]:
    """A server; afterwards its engine holds nothing."""
    context = new_context(script, **options)
    app = create_app(context)
    transport = httpx.ASGITransport(app)
    await context.engine.start()
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            one = Served(context, app, client)
            yield one
        await one.loaded()
        await asyncio.wait_for(context.engine.call(assert_idle), 20)
        assert context.num_open_sequences == 0
        assert context.lifecycle.num_in_flight == 0
    finally:
        await context.engine.close()


def error_of(response: httpx.Response) -> dict[str, Any]:
    assert set(response.json()) == {"error"}
    error = cast(dict[str, Any], response.json()["error"])
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The chunks of a stream that ended as it should."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    return parsed_events(response.text)


def parsed_events(text: str) -> list[dict[str, Any]]:
    *events, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert all(event.startswith("data: {") and "\n" not in event for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events]


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine, for a minute at most."""
    asyncio.run(asyncio.wait_for(test, 60))
