"""The ``openai`` client reads every kind of answer; it calls the app in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.unit.server.http_helpers import MODEL, TOKENIZER, Served, run, served
from tests.unit.server.test_http_errors import break_next_step

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]


@asynccontextmanager
async def client_of(server: Served) -> AsyncIterator[openai.AsyncOpenAI]:
    transport = httpx2.ASGITransport(server.app)
    async with openai.AsyncOpenAI(
        api_key="none",
        base_url="http://127.0.0.1/v1",
        max_retries=0,
        http_client=httpx2.AsyncClient(transport=transport),
    ) as client:
        yield client


def test_models_completions_chats_and_embeddings_are_read() -> None:
    async def test() -> None:
        async with served("né!") as server, client_of(server) as client:
            assert [model.id async for model in client.models.list()] == [MODEL]
            assert (await client.models.retrieve(MODEL)).id == MODEL

            text = await client.completions.create(
                model=MODEL, prompt=["ab", "cd"], n=2, echo=True, logprobs=2, max_tokens=9
            )
            assert [choice.text for choice in text.choices] == ["abné!"] * 2 + ["cdné!"] * 2
            assert text.choices[0].logprobs is not None
            assert text.choices[0].logprobs.text_offset == [0, 1, 2, 3, 3, 4, 5]

            chat = await client.chat.completions.create(
                model=MODEL, messages=HELLO, logprobs=True, top_logprobs=1
            )
            assert chat.choices[0].message.content == "né!"
            assert chat.choices[0].logprobs is not None
            assert chat.choices[0].logprobs.content is not None
            assert chat.choices[0].logprobs.content[1].bytes == [0xC3]
            assert chat.usage is not None
            assert chat.usage.prompt_tokens == len(TOKENIZER.encode_chat([*map(dict, HELLO)]))

            vectors = await client.embeddings.create(model=MODEL, input=["a", "b"])
            floats = await client.embeddings.create(
                model=MODEL, input=["a", "b"], encoding_format="float"
            )
            assert [v.embedding for v in vectors.data] == [v.embedding for v in floats.data]

    run(test())


def test_streams_are_read_to_their_usage() -> None:
    async def test() -> None:
        async with served("good day", step_seconds=0.002) as server, client_of(server) as client:
            options: Any = {"include_usage": True}
            stream = await client.chat.completions.create(
                model=MODEL, messages=HELLO, n=2, stream=True, stream_options=options
            )
            texts = ["", ""]
            usage = None
            async for chunk in stream:
                for choice in chunk.choices:
                    texts[choice.index] += choice.delta.content or ""
                usage = chunk.usage or usage
            assert texts == ["good day"] * 2
            assert usage is not None
            assert usage.completion_tokens == 18

            async with client.chat.completions.stream(model=MODEL, messages=HELLO) as events:
                final = await events.get_final_completion()
            assert final.choices[0].message.content == "good day"

            pieces = await client.completions.create(
                model=MODEL, prompt="hello", stream=True, max_tokens=20
            )
            assert "".join([piece.choices[0].text async for piece in pieces]) == "good day"

    run(test())


def test_errors_are_raised_as_what_they_are() -> None:
    async def test() -> None:
        async with served(step_seconds=0.005) as server, client_of(server) as client:
            with pytest.raises(openai.NotFoundError) as missing:
                await client.completions.create(model="gpt", prompt="hello")
            assert missing.value.code == "model_not_found"
            with pytest.raises(openai.BadRequestError) as refused:
                await client.completions.create(model=MODEL, prompt="hello", temperature=-1)
            assert refused.value.param == "temperature"

            loaded = server.context._loaded
            assert loaded is not None
            stream = client.completions.create(
                model=MODEL,
                prompt="hello",
                stream=True,
                max_tokens=300,
                extra_body={"ignore_eos": True},
            )
            with pytest.raises(openai.APIError, match="the engine failed"):
                # The transport hands over the whole stream at its end.
                await read_while_breaking(server, stream)

    run(test())


async def read_while_breaking(server: Served, stream: Any) -> None:
    import asyncio

    loaded = server.context._loaded
    assert loaded is not None
    reading = asyncio.create_task(stream)
    while loaded.engine.metrics.num_generation_tokens < 5:
        await asyncio.sleep(0.001)
    break_next_step(server, RuntimeError("secret"))
    async for _ in await reading:
        pass
