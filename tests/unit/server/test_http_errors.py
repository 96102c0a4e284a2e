"""Whatever goes wrong is told in the one form, with the status that clients expect."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from pagemill.batch import Batch, SampledToken, StepResult, TokenLogprobs
from pagemill.server.errors import ApiError
from pagemill.server.schemas.base import ErrorAnswer
from tests.unit.server.http_helpers import (
    MODEL,
    Served,
    error_of,
    new_context,
    parsed_events,
    run,
    served,
)

HELLO = [{"role": "user", "content": "hello"}]
CHAT, TEXT, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
NEEDED: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO, "max_tokens": 4},
    TEXT: {"prompt": "hello", "max_tokens": 4},
    EMBEDDINGS: {"input": "hello"},
}
FLOATS = ["NaN", "Infinity", "-Infinity", "1e999"]


def test_an_error_has_its_four_fields_whatever_they_hold() -> None:
    error = ApiError(429, "later \ud800", param="é", code="c", retry_after=1.5)
    response = error.to_response()
    assert response.status_code == 429
    assert response.headers["retry-after"] == "2"
    body = ErrorAnswer.model_validate_json(bytes(response.body).replace(b"\\ud800", b""))
    assert body.error.type == "rate_limit_error"
    assert (body.error.param, body.error.code) == ("é", "c")


@pytest.mark.parametrize(
    "body",
    ["", "{", "[]", "null", "5", '"text"', b"\xff\xfe", "{" * 5000, '{"a":' * 5000, "[" * 100_000,
     '{"n": ' + "9" * 5000 + "}"],
)  # fmt: skip
def test_what_is_no_json_object_is_refused(body: str | bytes) -> None:
    async def test() -> None:
        async with served() as server:
            for path in NEEDED:
                response = await server.post_text(path, body)
                assert response.status_code == 400
                error_of(response)

    run(test())


def test_a_body_must_say_that_it_is_json() -> None:
    async def test() -> None:
        async with served("x") as server:
            body = '{"model": "org/tiny", "prompt": "x", "max_tokens": 1}'
            assert (await server.post_text(TEXT, body)).status_code == 200
            form = "application/x-www-form-urlencoded"  # what curl says unless it is told
            response = await server.post_text(TEXT, body, form)
            assert response.status_code == 400
            assert "application/json" in error_of(response)["message"]

    run(test())


@pytest.mark.parametrize("number", FLOATS)
@pytest.mark.parametrize("name", ["temperature", "top_p", "presence_penalty", "min_p"])
def test_numbers_that_are_none_are_refused(name: str, number: str) -> None:
    async def test() -> None:
        async with served() as server:
            body = f'{{"model": "{MODEL}", "prompt": "x", "{name}": {number}}}'
            response = await server.post_text(TEXT, body)
            assert response.status_code == 400
            assert error_of(response)["param"] == name

    run(test())


def test_another_model_is_not_found() -> None:
    async def test() -> None:
        async with served() as server:
            for path, fields in NEEDED.items():
                for name in ("gpt-4o", "", "org/tiny2", "\ud800"):
                    error = await server.refusal(path, 404, **{**fields, "model": name})
                    assert error["code"] == "model_not_found"
                    assert error["param"] == "model"

    run(test())


def test_unknown_routes_and_methods_are_refused_in_the_same_form() -> None:
    async def test() -> None:
        async with served() as server:
            response = await server.client.get("/v1/nothing")
            assert response.status_code == 404
            assert error_of(response)["code"] == "unknown_route"
            response = await server.client.get(TEXT)
            assert response.status_code == 405
            assert response.headers["allow"] == "POST"
            error_of(response)

    run(test())


def test_a_prompt_beyond_the_context_says_both_numbers() -> None:
    async def test() -> None:
        async with served(max_model_len=64) as server:
            error = await server.refusal(TEXT, prompt="a" * 60, max_tokens=10)
            assert error["code"] == "context_length_exceeded"
            assert error["param"] == "prompt"
            assert "60" in error["message"]
            assert "64" in error["message"]
            error = await server.refusal(EMBEDDINGS, input="a" * 70)
            assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
            error = await server.refusal(TEXT, prompt=[65] * 65)
            assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")

    run(test())


def test_one_prompt_that_is_refused_ends_the_others() -> None:
    async def test() -> None:
        async with served(max_model_len=64, step_seconds=0.01) as server:
            prompts = ["abc", "a" * 60, "xyz"]
            for stream in (False, True):
                error = await server.refusal(TEXT, prompt=prompts, max_tokens=30, stream=stream)
                assert error["code"] == "context_length_exceeded"
                assert error["param"] == "prompt[1]"

    run(test())


def test_one_input_that_is_refused_ends_the_others() -> None:
    async def test() -> None:
        async with served(step_seconds=0.01, max_num_batched_tokens=16) as server:
            inputs = [[65] * 1000, [10**6]]
            error = await server.refusal(EMBEDDINGS, input=inputs)
            assert error["param"] == "input[1][0]"
            loaded = server.context._loaded
            assert loaded is not None
            assert loaded.engine.metrics.num_steps < 30  # the first one would have taken 63

    run(test())


def test_the_queue_is_bounded_and_says_when_to_come_back() -> None:
    async def test() -> None:
        settings = {"max_queued_sequences": 1}
        async with served(settings=settings, max_num_seqs=1, step_seconds=0.01) as server:
            fields: dict[str, Any] = {"prompt": "hello", "max_tokens": 20, "ignore_eos": True}
            running = [asyncio.create_task(server.post(TEXT, **fields)) for _ in range(2)]
            while server.context.num_open_sequences < 2:
                await asyncio.sleep(0.001)
            response = await server.post(TEXT, **fields)
            assert response.status_code == 429
            assert error_of(response)["code"] == "queue_full"
            assert int(response.headers["retry-after"]) >= 1
            assert [(await task).status_code for task in running] == [200, 200]
            error = await server.refusal(TEXT, prompt="hello", n=3)
            assert "sequences" in error["message"]

    run(test())


def break_next_step(server: Served, exception: Exception) -> None:
    loaded = server.context._loaded
    assert loaded is not None
    runner = loaded.engine.runner

    def fail(batch: Batch) -> StepResult:
        raise exception

    runner.execute = fail  # type: ignore[method-assign]


@pytest.mark.parametrize("path", NEEDED)
def test_an_engine_that_fails_is_our_fault_and_shows_nothing_of_the_inside(path: str) -> None:
    async def test() -> None:
        async with served("x") as server:
            break_next_step(server, RuntimeError("secret /path of ours"))
            response = await server.post(path, **NEEDED[path])
            assert response.status_code == 500
            error = error_of(response)
            assert error["type"] == "server_error"
            assert "secret" not in response.text
            # Another one takes its place.
            await server.loaded()
            assert (await server.post(path, **NEEDED[path])).status_code == 200

    run(test())


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_an_engine_that_fails_in_a_stream_is_an_error_event(path: str) -> None:
    async def test() -> None:
        async with served(step_seconds=0.005) as server:
            fields = {**NEEDED[path], "max_tokens": 500, "ignore_eos": True, "stream": True}
            task = asyncio.create_task(server.post(path, **fields))
            loaded = server.context._loaded
            assert loaded is not None
            while loaded.engine.metrics.num_generation_tokens < 5:
                await asyncio.sleep(0.001)
            break_next_step(server, RuntimeError("secret"))
            response = await task
            assert response.status_code == 200
            *chunks, last = parsed_events(response.text)
            assert chunks
            assert set(last) == {"error"}
            assert last["error"]["type"] == "server_error"
            assert "secret" not in response.text

    run(test())


class Damaged:
    """Lets the model compute NaN from the third token on."""

    def __init__(self, server: Served) -> None:
        loaded = server.context._loaded
        assert loaded is not None
        runner = loaded.engine.runner
        execute = runner.execute

        def damaged(batch: Batch) -> StepResult:
            result = execute(batch)
            for i, task in enumerate(batch.sampling):
                if len(task.output_token_ids) >= 2:
                    result.sampled[i] = SampledToken(None, TokenLogprobs(math.nan, 0, ()))
            return result

        runner.execute = damaged  # type: ignore[method-assign]


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_damaged_logits_are_an_error_and_no_reason_to_finish(path: str) -> None:
    async def test() -> None:
        async with served(step_seconds=0.002) as server:
            Damaged(server)
            fields = {**NEEDED[path], "ignore_eos": True}
            error = await server.refusal(path, 500, **fields)
            assert error["code"] == "damaged_logits"
            response = await server.post(path, **fields, stream=True)
            if response.status_code == 200:
                assert parsed_events(response.text)[-1]["error"]["code"] == "damaged_logits"
            else:  # the stream had not begun
                assert error_of(response)["code"] == "damaged_logits"

    run(test())


def test_damaged_log_probabilities_of_a_prompt_are_an_error() -> None:
    async def test() -> None:
        async with served() as server:
            loaded = server.context._loaded
            assert loaded is not None
            runner = loaded.engine.runner
            execute = runner.execute

            def damaged(batch: Batch) -> StepResult:
                result = execute(batch)
                result.scored[:] = [TokenLogprobs(math.nan, 1, ())] * len(result.scored)
                return result

            runner.execute = damaged  # type: ignore[method-assign]
            fields: dict[str, Any] = {"echo": True, "max_tokens": 0, "logprobs": 0}
            error = await server.refusal(TEXT, 500, prompt="abc", **fields)
            assert error["code"] == "damaged_logits"

    run(test())


def test_a_damaged_vector_is_an_error() -> None:
    async def test() -> None:
        async with served() as server:
            loaded = server.context._loaded
            assert loaded is not None
            runner = loaded.engine.runner
            execute = runner.execute

            def damaged(batch: Batch) -> StepResult:
                result = execute(batch)
                for pooled in result.pooled:
                    pooled[:] = math.nan
                return result

            runner.execute = damaged  # type: ignore[method-assign]
            error = await server.refusal(EMBEDDINGS, 500, input=["abc", "x"])
            assert error["code"] == "damaged_embedding"

    run(test())


def test_a_request_that_takes_too_long_is_ended_with_an_error() -> None:
    async def test() -> None:
        settings = {"request_timeout_seconds": 0.2}
        async with served(settings=settings, step_seconds=0.01) as server:
            fields: dict[str, Any] = {"max_tokens": 900, "ignore_eos": True}
            error = await server.refusal(TEXT, 504, prompt="hello", **fields)
            assert error["code"] == "request_timeout"
            assert "0.2 seconds" in error["message"]
            response = await server.post(TEXT, prompt="hello", stream=True, **fields)
            *chunks, last = parsed_events(response.text)
            assert chunks
            assert last["error"]["code"] == "request_timeout"

    run(test())


def test_nothing_is_computed_while_the_model_is_loaded_or_when_the_engine_has_failed() -> None:
    import httpx

    from pagemill.server.app import create_app

    async def test() -> None:
        context = new_context("x")
        transport = httpx.ASGITransport(create_app(context))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            for path, fields in NEEDED.items():
                response = await client.post(path, json={"model": MODEL, **fields})
                assert response.status_code == 503
                assert error_of(response)["type"] == "service_unavailable_error"
                assert "retry-after" in response.headers

    run(test())
